"""Scores that turn attention into Nadaraya-Watson regression: a softmax over log-kernels is the kernel over its sum.

Some lecture notes call max(1 - |u|, 0) the Epanechnikov kernel, but that kernel is triangular.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.energies import distance, squared_distance
from visattn.core.scores import SCORES, Score


def gaussian_kernel(u: Tensor) -> Tensor:
    """exp(-u²/2), not divided by its integral."""
    return torch.exp(-u.square() / 2)


def boxcar_kernel(u: Tensor) -> Tensor:
    """One inside the unit interval, zero outside."""
    return (u.abs() <= 1).to(u.dtype)


def triangular_kernel(u: Tensor) -> Tensor:
    """max(1 - |u|, 0)."""
    return (1 - u.abs()).clamp_min(0)


def epanechnikov_kernel(u: Tensor) -> Tensor:
    """3/4 max(1 - u², 0)."""
    return 0.75 * (1 - u.square()).clamp_min(0)


class Kernel(Score):
    """Log of a Nadaraya-Watson kernel of u = |q - k| / width; minus infinity where the kernel is zero."""

    one_length = True

    @checked
    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        width: float = 1.0,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        positive("a kernel", width=width)
        self.width = width

    @abstractmethod
    def kernel(self, u: Tensor) -> Tensor:
        """The kernel itself, not its logarithm."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
        self._check(query, key)
        weight = self.kernel(distance(query, key) / self.width)
        inside = weight > 0
        return torch.where(inside, weight, 1).log().masked_fill(~inside, -torch.inf)

    def extra_repr(self) -> str:
        """Width, for print(model)."""
        return f"{self.query_dim}, width={self.width}"


class Gaussian(Kernel):
    """The Gaussian kernel."""

    def kernel(self, u: Tensor) -> Tensor:
        """exp(-u²/2)."""
        return gaussian_kernel(u)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies -u²/2, without the detour over exp and log that underflows far away."""
        self._check(query, key)
        return squared_distance(query, key) / (-2 * self.width**2)


class Boxcar(Kernel):
    """The boxcar kernel: the mean of all keys within one width."""

    def kernel(self, u: Tensor) -> Tensor:
        """[u <= 1]."""
        return boxcar_kernel(u)


class Triangular(Kernel):
    """The triangular kernel."""

    def kernel(self, u: Tensor) -> Tensor:
        """max(1 - u, 0)."""
        return triangular_kernel(u)


class Epanechnikov(Kernel):
    """The true Epanechnikov kernel."""

    def kernel(self, u: Tensor) -> Tensor:
        """3/4 max(1 - u², 0)."""
        return epanechnikov_kernel(u)


SCORES.add("gaussian", Gaussian)
SCORES.add("boxcar", Boxcar)
SCORES.add("triangular", Triangular)
SCORES.add("epanechnikov", Epanechnikov)
