"""The attention layers of a model: what the rows and columns of their maps stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from visattn.heatmaps.watch.cache import on_device
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import row_slices


@dataclass(frozen=True)
class Grid:
    """The patches that a layer works on, in row order.

    Args:
        rows, columns: places of their centres in the image, in pixels.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return len(self.rows), len(self.columns)

    def __str__(self) -> str:
        return f"{len(self.rows)}x{len(self.columns)}"


@dataclass(frozen=True)
class Tokens:
    """What the queries or the keys of a layer are: patches of a grid, learnt tokens, or nothing in the image.

    Args:
        index: (windows, N): patches are numbered in row order; learnt tokens -2, -3, ... (see ``learnt``); -1 is
            padding, or has no place.
        grid: of the patches, if there are any.
        learnt: the learnt tokens (class, distillation, registers) by the parameter and row they come from.
    """

    index: Tensor
    grid: Grid | None
    learnt: tuple[tuple[int, int], ...]

    @property
    def spatial(self) -> bool:
        """Whether any of them is a patch."""
        return self.grid is not None

    @cached_property
    def padding(self) -> Tensor | None:
        """(windows, N), which of them are padding; None if none is."""
        padding = self.index == -1
        return padding if padding.any() else None

    @cached_property
    def in_order(self) -> bool:
        """Whether they are all patches of the grid, each once and in row order."""
        if self.grid is None or len(self.index) > 1:
            return False
        return torch.equal(self.index[0], torch.arange(len(self.grid.rows) * len(self.grid.columns)))

    @cached_property
    def patches(self) -> tuple[Tensor, Tensor]:
        """Where the patches are when windows are joined, and their numbers."""
        where = (self.index.flatten() >= 0).nonzero()[:, 0]
        return where, self.index.flatten()[where]

    @cached_property
    def once(self) -> Tensor | None:
        """Where each patch of the grid is when windows are joined, if each is there once."""
        where, numbers = self.patches
        order = numbers.argsort()
        size = 0 if self.grid is None else len(self.grid.rows) * len(self.grid.columns)
        return where[order] if torch.equal(numbers[order], torch.arange(size)) else None

    @cached_property
    def learnt_places(self) -> tuple[Tensor, ...]:
        """Where each learnt token is when windows are joined."""
        return tuple((self.index.flatten() == -2 - number).nonzero()[:, 0] for number in range(len(self.learnt)))


@dataclass(frozen=True)
class Layer:
    """One attention map.

    Args:
        name: of the module.
        before, after: how many maps of one image lie before and behind the batch when leading dimensions are flattened.
        order: (windows, heads), where each map of one image is among these.
        queries, keys: what rows and columns are.
        read: (windows, Nq), which of the rows the output of the model depends on without further attention.
        beside: whether its module attends several times in parallel: this is only a part, some heads or queries.
    """

    name: str
    before: int
    after: int
    order: Tensor
    queries: Tokens
    keys: Tokens
    read: Tensor
    beside: bool = False

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.order.shape[1]

    @property
    def windows(self) -> int:
        """Number of windows that attend separately."""
        return self.order.shape[0]

    @property
    def leads_on(self) -> bool:
        """Whether it collects from patches into tokens, so that what it collects can be followed."""
        return self.keys.spatial and (self.queries.spatial or bool(self.queries.learnt))

    @property
    def kind(self) -> str:
        """A short description for people."""
        if not self.keys.spatial:
            return "not spatial"
        if not self.queries.spatial:
            return "class attention" if self.queries.learnt else "pooling"
        kind = "global" if self.windows == 1 else f"{self.windows} windows"
        keys, queries = (len(tokens.index[tokens.index >= 0].unique()) for tokens in (self.keys, self.queries))
        if self.windows > 1 and keys == queries and self.keys.index.shape[1] > self.queries.index.shape[1]:
            kind += " with surroundings"
        return kind + (", fewer keys" if keys < queries else ", fewer queries" if keys > queries else "")

    @cached_property
    def in_order(self) -> bool:
        """Whether the maps of an image lie window by window already."""
        return torch.equal(self.order.flatten(), torch.arange(self.order.numel()))

    @cached_property
    def read_patches(self) -> Tensor:
        """Numbers of the patches among the rows that the output depends on."""
        return self.queries.index[self.read & (self.queries.index >= 0)].unique()

    def arrange(self, maps: Tensor) -> Tensor:
        """(B, windows, heads, Nq, Nk) of maps as the model has them, with any leading dimensions."""
        flat = maps.reshape(self.before, -1, self.after, *maps.shape[-2:])
        flat = flat.transpose(0, 1).flatten(1, 2) if self.before > 1 else flat[0]  # (B, maps of an image, Nq, Nk)
        if not self.in_order:
            flat = flat[:, on_device(self.order, maps.device).flatten()]
        return flat.unflatten(1, tuple(self.order.shape))

    def weights_in_pieces(self, call: Call) -> Iterator[Tensor]:
        """The weights (B, windows, heads, some rows, Nk) from the first row to the last."""
        for rows in row_slices(call.rows(), self.keys.index.shape[1]):
            yield self.arrange(call.weights(rows))


@dataclass
class Geometry:
    """All attention of a model, in the order in which it happens."""

    layers: list[Layer] = field(default_factory=list)

    def spatial(self) -> list[Layer]:
        """Those layers whose keys are patches."""
        return [layer for layer in self.layers if layer.keys.spatial]
