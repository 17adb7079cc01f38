r"""Score functions: how well a key answers a query, :math:`e_{ij} = f(q_i, k_j)`.

Each score exists twice: as a pure function of queries ``(..., Nq, dq)`` and keys ``(..., Nk, dk)`` that returns
energies ``(..., Nq, Nk)``, and as a thin module that owns the parameters and is known by name.

=================  ===========================================  ==========================================
name               energy                                       source
=================  ===========================================  ==========================================
``dot``            q·k                                          Luong et al. 2015
``scaled_dot``     q·k / sqrt(d)                                Vaswani et al. 2017
``cosine``         cos(q, k) / tau                              Graves et al. 2014; Liu et al. 2022 (Swin v2)
``general``        q' W k                                       Luong et al. 2015
``biased_general`` k' (W q + b)                                 Sordoni et al. 2016
``additive``       v' tanh(W q + U k + b)                       Bahdanau et al. 2015
``concat``         v' tanh(W [q; k] + b)                        Luong et al. 2015
``location``       W q + b: one energy per key position         Luong et al. 2015
``gaussian``       log of exp(-u²/2), u = |q - k| / width       Nadaraya 1964, Watson 1964
``boxcar``         log of [u <= 1]
``triangular``     log of max(1 - u, 0)
``epanechnikov``   log of 3/4 max(1 - u², 0)                    Epanechnikov 1969
=================  ===========================================  ==========================================

The last four turn attention into Nadaraya-Watson regression: a softmax over log-kernels is the kernel divided by
its sum. Some lecture notes call max(1 - |u|, 0) the Epanechnikov kernel; that one is triangular.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.precision import precise, without_autocast
from visattn.registry import Registry


def dot(query: Tensor, key: Tensor) -> Tensor:
    """q·k; of half precision, in single: where softmax looks at differences, large energies must not be rounded.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    with without_autocast(query.device):
        return precise(query) @ precise(key).mT


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """q·k / sqrt(d), where d is the number of features of a key."""
    return dot(query, key) * key.shape[-1] ** -0.5


def cosine(query: Tensor, key: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """cos(q, k) / temperature; zero where one of them has no length."""
    return dot(unit(query), unit(key)) / temperature


def unit(x: Tensor) -> Tensor:
    """Vectors of length one, in single precision at least; those without length stay zero."""
    return F.normalize(precise(x), dim=-1)


def general(query: Tensor, key: Tensor, w: Tensor) -> Tensor:
    """q' W k with W (dq, dk)."""
    return dot(query @ w, key)


def biased_general(query: Tensor, key: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """k' (W q + b) with W (dk, dq)."""
    return dot(F.linear(query, w, b), key)


def additive(query: Tensor, key: Tensor, w: Tensor, u: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v' tanh(W q + U k + b); a matrix v (features, hidden) gives one energy per feature."""
    hidden = torch.tanh((F.linear(query, w, b)).unsqueeze(-2) + F.linear(key, u).unsqueeze(-3))
    return F.linear(hidden, v) if v.ndim == 2 else hidden @ v  # (..., Nq, Nk[, features])


def concat(query: Tensor, key: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v' tanh(W [q; k] + b), computed as the additive score it is equal to."""
    w_query, w_key = w.split([query.shape[-1], key.shape[-1]], dim=1)
    return additive(query, key, w_query, w_key, b, v)


def location(query: Tensor, key: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """W q + b: depends on the query only; row j of W speaks for key position j."""
    if key.shape[-2] != w.shape[0]:
        raise ValueError(f"the location score was built for {w.shape[0]} keys and got {key.shape[-2]}")
    return F.linear(query, w, b)


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """|q - k|² for every pair, exactly zero where they are equal; in single precision at least.

    The values come from differences. The gradient, of any order, is that of |q|² + |k|² - 2 q·k, which needs no memory
    for the differences, and whose values would be rounding errors where q and k are close.
    """
    query, key = precise(query), precise(key)
    if torch.compiler.is_exporting():  # ONNX has no cdist
        return (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
    values = torch.cdist(query.detach(), key.detach(), compute_mode="donot_use_mm_for_euclid_dist").square()
    if not (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)):
        return values
    middle = key.detach().mean(-2, keepdim=True)  # distances do not change, and rounding errors become smaller
    query, key = query - middle, key - middle
    slope = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2) - 2 * dot(query, key)
    return values + (slope - slope.detach())


def distance(query: Tensor, key: Tensor) -> Tensor:
    """|q - k| for every pair, with gradient zero (not infinite) where they coincide."""
    squared = squared_distance(query, key)
    same = squared == 0
    return torch.where(same, 1, squared).sqrt().masked_fill(same, 0)


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


class Score(nn.Module, ABC):
    """Energies of every query against every key.

    Args:
        query_dim: features of a query (of one head).
        key_dim: features of a key; the same as the query's unless given.
    """

    @checked
    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.key_dim = query_dim if key_dim is None else key_dim
        positive(type(self).__name__, query_dim=self.query_dim, key_dim=self.key_dim)
        self._factory: dict[str, Any] = {"device": device, "dtype": dtype}

    def _parameter(self, *shape: int, fan_in: int) -> nn.Parameter:
        """Uniform in ±1/sqrt(fan_in), as nn.Linear starts."""
        bound = fan_in**-0.5
        return nn.Parameter(torch.empty(shape, **self._factory).uniform_(-bound, bound))

    def _same_dims(self) -> None:
        if self.query_dim != self.key_dim:
            raise ValueError(
                f"{type(self).__name__} compares vectors of one length, got queries of {self.query_dim} and "
                f"keys of {self.key_dim} features: use 'general', 'additive' or 'concat'"
            )

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""

    def extra_repr(self) -> str:
        """Dimensions, for print(model)."""
        return f"{self.query_dim}, {self.key_dim}"


class DotScore(Score):
    """A score that is a scaled dot product once query and key have been mapped, so that fused kernels can run it."""

    @abstractmethod
    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """(q', k', scale) such that the energy is scale * q'·k'."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
        query, key, scale = self.dot_form(query, key)
        return dot(query, key) * scale


class Dot(DotScore):
    """q·k."""

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        self._same_dims()

    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Query and key as they are."""
        return query, key, 1.0


class ScaledDot(Dot):
    """q·k / sqrt(d)."""

    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Query and key as they are, and the scale."""
        return query, key, self.key_dim**-0.5


class Cosine(DotScore):
    """cos(q, k) / tau with a learned tau, kept at 0.01 or more as in Swin v2 (starts at 0.1).

    ``log_scale`` is log(1/tau); one value serves all heads.
    """

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        self._same_dims()
        self.log_scale = nn.Parameter(torch.full((1,), math.log(10.0), **self._factory))

    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Unit vectors, the temperature multiplied into the query."""
        scale = self.log_scale.clamp(max=math.log(100.0)).exp()
        return (unit(query) * scale).to(query.dtype), unit(key).to(key.dtype), 1.0


class General(DotScore):
    """q' W k."""

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        self.w = self._parameter(self.query_dim, self.key_dim, fan_in=self.query_dim)

    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """The query, mapped to the keys' space."""
        return query @ self.w, key, 1.0


class BiasedGeneral(DotScore):
    """k' (W q + b)."""

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        self.w = self._parameter(self.key_dim, self.query_dim, fan_in=self.query_dim)
        self.b = self._parameter(self.key_dim, fan_in=self.query_dim)

    def dot_form(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """The query, mapped to the keys' space."""
        return F.linear(query, self.w, self.b), key, 1.0


class Additive(Score):
    """v' tanh(W q + U k + b).

    Args:
        query_dim: features of a query.
        key_dim: features of a key.
        hidden: width of the hidden layer; the keys' width unless given.
        features: when given, one energy per feature instead of one per pair (multi-dimensional attention).
    """

    @checked
    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        hidden: int | None = None,
        features: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        hidden = self.key_dim if hidden is None else hidden
        positive(type(self).__name__, hidden=hidden)
        self.w = self._parameter(hidden, self.query_dim, fan_in=self.query_dim)
        self.u = self._parameter(hidden, self.key_dim, fan_in=self.key_dim)
        self.b = self._parameter(hidden, fan_in=self.key_dim)
        self.v = self._parameter(*([] if features is None else [features]), hidden, fan_in=hidden)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk), with a last axis of features if there are several."""
        return additive(query, key, self.w, self.u, self.b, self.v)


class Concat(Score):
    """v' tanh(W [q; k] + b)."""

    @checked
    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        hidden: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        hidden = self.key_dim if hidden is None else hidden
        positive(type(self).__name__, hidden=hidden)
        both = self.query_dim + self.key_dim
        self.w = self._parameter(hidden, both, fan_in=both)
        self.b = self._parameter(hidden, fan_in=both)
        self.v = self._parameter(hidden, fan_in=hidden)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
        return concat(query, key, self.w, self.b, self.v)


class Location(Score):
    """W q + b: where to look follows from the query alone, so the number of keys is fixed.

    Args:
        query_dim: features of a query.
        key_dim: accepted for uniformity; the keys are not read.
        num_keys: how many key positions there are.
    """

    @checked
    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        num_keys: int,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
        positive("Location", num_keys=num_keys)
        self.w = self._parameter(num_keys, self.query_dim, fan_in=self.query_dim)
        self.b = self._parameter(num_keys, fan_in=self.query_dim)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
        return location(query, key, self.w, self.b)


class Kernel(Score):
    """Log of a Nadaraya-Watson kernel of u = |q - k| / width; minus infinity where the kernel is zero."""

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
        self._same_dims()
        positive("a kernel", width=width)
        self.width = width

    @abstractmethod
    def kernel(self, u: Tensor) -> Tensor:
        """The kernel itself, not its logarithm."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
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


SCORES: Registry[type[Score]] = Registry(
    "score",
    {
        "dot": Dot,
        "scaled_dot": ScaledDot,
        "cosine": Cosine,
        "general": General,
        "biased_general": BiasedGeneral,
        "additive": Additive,
        "concat": Concat,
        "location": Location,
        "gaussian": Gaussian,
        "boxcar": Boxcar,
        "triangular": Triangular,
        "epanechnikov": Epanechnikov,
    },
)
