"""Scopes: which keys a query may see.

A scope turns queries ``(..., Nq, d)`` and a number of keys into a :class:`View`: a boolean mask (true = visible) that
is applied to the energies, and, for soft windows, a gain that multiplies the weights afterwards.

====================  =========================================================================  ===================
name                  visible
====================  =========================================================================  ===================
``global``            everything
``causal``            keys up to the query's own position
``local``             keys within ``radius`` of the query's position (local-m)                   Luong et al. 2015
``local_predictive``  keys within ``radius`` of a predicted centre, under a Gaussian (local-p)   Luong et al. 2015
``local_2d``          pixels within ``radius`` rows and columns: a sliding 2-D window            Ramachandran 2019
``window_2d``         pixels of the same ``size`` x ``size`` tile: a partition                   Liu et al. 2021
====================  =========================================================================  ===================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive, whole
from visattn.core.precision import precise
from visattn.registry import Registry


class View(NamedTuple):
    """What a scope leaves visible; None means everything, and no gain."""

    mask: Tensor | None = None
    gain: Tensor | None = None


def causal(num_queries: int, num_keys: int, *, device: Device = None) -> Tensor:
    """Key j is visible to query i if j <= i; with more keys than queries, the last query sees the last key.

    >>> causal(2, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(num_keys - num_queries)


def local(num_queries: int, num_keys: int, radius: int, *, device: Device = None) -> Tensor:
    """Key j is visible to query i if |i - j| <= radius.

    >>> local(3, 4, 1).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1]], dtype=torch.int32)
    """
    return near(torch.arange(num_queries, device=device), torch.arange(num_keys, device=device), radius)


def near(queries: Tensor, keys: Tensor, radius: int) -> Tensor:
    """A key is visible to a query if their places (Nk,) and (Nq,) on a line are at most ``radius`` apart: (Nq, Nk).

    >>> near(torch.tensor([0, 2]), torch.tensor([-1, 0, 1, 2]), 1).int()
    tensor([[1, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    return (queries[:, None] - keys).abs() <= _not_negative(radius)


def on_grid(rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels whose rows (h, H) and columns (w, W) both see each other: (h·w, H·W)."""
    return (rows[:, None, :, None] & columns[None, :, None, :]).flatten(2).flatten(0, 1)


def local_2d(height: int, width: int, radius: int, *, device: Device = None) -> Tensor:
    """Pixels at most ``radius`` rows and columns away, as (H·W, H·W)."""
    rows = local(height, height, radius, device=device)
    columns = local(width, width, radius, device=device)
    return on_grid(rows, columns)


def window_2d(height: int, width: int, size: int, *, device: Device = None) -> Tensor:
    """Pixels of the same tile, counted from the top left corner, as (H·W, H·W)."""
    if whole(size) is None or size < 1:
        raise ValueError(f"the side of a tile is a whole number from 1 up, got {size!r}")
    row = torch.arange(height, device=device) // size
    column = torch.arange(width, device=device) // size
    return on_grid(row[:, None] == row, column[:, None] == column)


def _not_negative(radius: int) -> int:
    if whole(radius) is None:
        raise TypeError(f"a radius is a whole number, got {radius!r}")
    if radius < 0:
        raise ValueError(f"a radius cannot be negative, got {radius}")
    return radius


class Scope(nn.Module, ABC):
    """Which keys each query may see."""

    @abstractmethod
    def forward(self, query: Tensor, num_keys: int) -> View:
        """The view of ``num_keys`` keys from queries (..., Nq, d)."""


class Global(Scope):
    """Every query sees every key."""

    def forward(self, query: Tensor, num_keys: int) -> View:  # noqa: ARG002  (one signature for all)
        """No mask."""
        return View()


class Causal(Scope):
    """Every query sees the keys up to its own position."""

    def forward(self, query: Tensor, num_keys: int) -> View:
        """Lower triangular mask."""
        return View(causal(query.shape[-2], num_keys, device=query.device))


class Local(Scope):
    """Monotonic window: query i looks around key i."""

    @checked
    def __init__(self, radius: int = 3) -> None:
        super().__init__()
        self.radius = _not_negative(radius)

    def forward(self, query: Tensor, num_keys: int) -> View:
        """Band mask."""
        return View(local(query.shape[-2], num_keys, self.radius, device=query.device))


class LocalPredictive(Scope):
    r"""Each query predicts where to look.

    .. math:: p = S\,\sigma(v^\top \tanh(W q)), \quad a_j \leftarrow a_j\, e^{-(j-p)^2 / 2\sigma^2}, \quad |j-p| \le D

    with S the number of keys, D the radius and sigma = D/2. The gain is applied after the distribution and the
    weights are not renormalised, as in the paper.

    Args:
        query_dim: features of a query (of one head).
        radius: half width D of the window.
    """

    @checked
    def __init__(self, query_dim: int, *, radius: int = 3, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        positive("LocalPredictive", query_dim=query_dim, radius=radius)
        self.radius = radius
        self.w = nn.Linear(query_dim, query_dim, bias=False, device=device, dtype=dtype)
        self.v = nn.Linear(query_dim, 1, bias=False, device=device, dtype=dtype)

    def forward(self, query: Tensor, num_keys: int) -> View:
        """Mask and Gaussian gain around the predicted centre."""
        # Half precision cannot tell a key from its neighbour among thousands.
        centre = num_keys * torch.sigmoid(precise(self.v(torch.tanh(self.w(query)))))  # (..., Nq, 1)
        offset = torch.arange(num_keys, device=query.device, dtype=centre.dtype) - centre
        sigma = self.radius / 2
        return View(offset.abs() <= self.radius, torch.exp(-offset.square() / (2 * sigma**2)))


class _Grid(Scope):
    """Keys are the pixels of a grid in row order, and queries are the same pixels.

    Args:
        grid: (height, width); a square unless given.
    """

    def __init__(self, grid: tuple[int, int] | None = None) -> None:
        super().__init__()
        if grid is not None:
            sides = [whole(side) for side in grid] if isinstance(grid, tuple | list) else []
            if len(sides) != 2 or any(side is None or side < 1 for side in sides):
                raise ValueError(f"grid is (height, width), whole numbers from 1 up, got {grid!r}")
        self.grid = grid

    def _size(self, num_queries: int, num_keys: int) -> tuple[int, int]:
        side = math.isqrt(num_keys)
        height, width = self.grid or (side, side)
        if not num_queries == num_keys == height * width:
            raise ValueError(
                f"{type(self).__name__} needs one query and one key per pixel of a {height}x{width} grid, got "
                f"{num_queries} queries and {num_keys} keys: give grid=(height, width)"
            )
        return height, width

    @abstractmethod
    def mask(self, height: int, width: int, device: Device = None) -> Tensor:
        """Which pixel of a grid sees which, (H·W, H·W)."""

    def forward(self, query: Tensor, num_keys: int) -> View:
        """The mask of the grid."""
        return View(self.mask(*self._size(query.shape[-2], num_keys), device=query.device))


class Local2d(_Grid):
    """Sliding 2-D window: a pixel sees its neighbours."""

    @checked
    def __init__(self, radius: int = 3, grid: tuple[int, int] | None = None) -> None:
        super().__init__(grid)
        self.radius = _not_negative(radius)

    def mask(self, height: int, width: int, device: Device = None) -> Tensor:
        """Neighbourhood mask of a grid."""
        return local_2d(height, width, self.radius, device=device)


class Window2d(_Grid):
    """Partition into tiles: a pixel sees its own tile."""

    @checked
    def __init__(self, size: int = 7, grid: tuple[int, int] | None = None) -> None:
        super().__init__(grid)
        positive("Window2d", size=size)
        self.size = size

    def mask(self, height: int, width: int, device: Device = None) -> Tensor:
        """Tile mask of a grid."""
        return window_2d(height, width, self.size, device=device)


SCOPES: Registry[type[Scope]] = Registry(
    "scope",
    {
        "global": Global,
        "causal": Causal,
        "local": Local,
        "local_predictive": LocalPredictive,
        "local_2d": Local2d,
        "window_2d": Window2d,
    },
)
