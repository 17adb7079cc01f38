r"""Score functions: how well a key answers a query, :math:`e_{ij} = f(q_i, k_j)`.

Each score exists twice: as a pure function (:mod:`visattn.core.energies`), and as a thin module that owns the
parameters and is known by name: those below, and the last four of the table in :mod:`visattn.core.kernels`.

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
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.energies import additive, concat, dot, location, unit
from visattn.registry import Registry


class Score(nn.Module, ABC):
    """Energies of every query against every key.

    Args:
        query_dim: features of a query (of one head).
        key_dim: features of a key; the same as the query's unless given.
    """

    one_length = False  # whether queries and keys must have the same number of features

    @checked
    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.key_dim = query_dim if key_dim is None else key_dim
        positive(type(self).__name__, query_dim=self.query_dim, key_dim=self.key_dim)
        if self.one_length and self.query_dim != self.key_dim:
            raise ValueError(
                f"{type(self).__name__} compares vectors of one length, got queries of {self.query_dim} and "
                f"keys of {self.key_dim} features: use 'general', 'additive' or 'concat'"
            )
        self._factory: dict[str, Any] = {"device": device, "dtype": dtype}

    def _parameter(self, *shape: int, fan_in: int) -> nn.Parameter:
        """Uniform in ±1/sqrt(fan_in), as nn.Linear starts."""
        bound = fan_in**-0.5
        return nn.Parameter(torch.empty(shape, **self._factory).uniform_(-bound, bound))

    def _hidden(self, hidden: int | None) -> int:
        """Width of a hidden layer; the keys' unless given."""
        hidden = self.key_dim if hidden is None else hidden
        positive(type(self).__name__, hidden=hidden)
        return hidden

    def _check(self, query: Tensor, key: Tensor) -> None:
        """Raise for queries and keys of other widths."""
        widths = query.shape[-1], key.shape[-1]
        if widths != (self.query_dim, self.key_dim):
            raise ValueError(
                f"{type(self).__name__} was built for queries of {self.query_dim} and keys of {self.key_dim} features, "
                f"got {widths[0]} and {widths[1]}"
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
        self._check(query, key)
        query, key, scale = self.dot_form(query, key)
        return dot(query, key) * scale


class Dot(DotScore):
    """q·k."""

    one_length = True

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

    one_length = True

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__(query_dim, key_dim, device=device, dtype=dtype)
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
        hidden = self._hidden(hidden)
        self.w = self._parameter(hidden, self.query_dim, fan_in=self.query_dim)
        self.u = self._parameter(hidden, self.key_dim, fan_in=self.key_dim)
        self.b = self._parameter(hidden, fan_in=self.key_dim)
        self.v = self._parameter(*([] if features is None else [features]), hidden, fan_in=hidden)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk), with a last axis of features if there are several."""
        self._check(query, key)
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
        hidden, both = self._hidden(hidden), self.query_dim + self.key_dim
        self.w = self._parameter(hidden, both, fan_in=both)
        self.b = self._parameter(hidden, fan_in=both)
        self.v = self._parameter(hidden, fan_in=hidden)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Energies (..., Nq, Nk)."""
        self._check(query, key)
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
        self._check(query, key)
        return location(query, key, self.w, self.b)


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
    },
)
