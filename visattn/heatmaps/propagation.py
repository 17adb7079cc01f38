r"""How much of each patch is in each token, carried from layer to layer.

.. math:: R_q \leftarrow R_q + E R_k

:math:`R` has a row for every token that is alive and a column for every source: patches of the first layer with
attention, and learnt tokens. Only one such matrix is kept, however many layers there are. Windows are multiplied one by
one. Where a network pools its tokens, their rows are averaged; keys that were pooled for one layer only are averages of
the rows they were pooled from. If there are very many sources, neighbouring ones are merged, which changes nothing but
the resolution. Convolutions between layers are assumed to be local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from visattn.heatmaps.watch.cache import on_device
from visattn.heatmaps.watch.layers import Geometry, Grid, Layer, Tokens

MOST_SOURCES = 1600
AT_ONCE = 2**20  # numbers of which a second copy weighs little
Learnt: TypeAlias = tuple[int, int]


class Propagation:
    """The state of one forward pass.

    Args:
        geometry: of the model's attention.
        normalised: rows stay distributions (rollout), or grow (relevance).
    """

    def __init__(self, geometry: Geometry, *, normalised: bool) -> None:
        self.geometry = geometry
        self.normalised = normalised
        self.learnt = list(
            dict.fromkeys(t for layer in geometry.layers for t in (*layer.queries.learnt, *layer.keys.learnt))
        )
        layer = geometry.spatial()[0]
        self.source = _coarser(max((t.grid for t in (layer.keys, layer.queries) if t.grid is not None), key=_area))
        self.rows: dict[Learnt, Tensor] = {}  # learnt token -> (B, sources)
        self.maps: dict[Grid, Tensor] = {}  # grid -> (B, patches, sources)
        self.untouched: set[Grid] = set()  # grids whose patches are sources still
        self.latest: Grid | None = None
        self.open: tuple[Tokens, Tensor] | None = None  # (B, windows, N, sources) of the last queries, not yet filed

    def add(self, layer: Layer, fused: Callable[[], Iterable[Tensor]]) -> None:
        """Propagate through a layer, in place; if there is a lot to propagate, one half of the sources at a time.

        Args:
            layer: whose keys are patches or learnt tokens.
            fused: gives (B, windows, rows, Nk), one map for all heads, not negative, in pieces of some rows each.
        """
        own: Tensor | None = None
        done, sources = 0, self._sources()
        while done < sources:
            start = 0
            for piece in fused():
                piece = without_padding(piece, layer.keys, self.normalised)
                if own is None:
                    own = self._gather(layer.queries, piece)
                    keys = own if layer.keys is layer.queries else self._gather(layer.keys, piece, layer.queries.grid)
                    step = sources if own.numel() <= AT_ONCE else -(-sources // 2)
                if start == 0:
                    some = slice(done, done + step)
                    before = keys[..., some].flatten(0, 1).clone(memory_format=torch.contiguous_format)
                    now = own.view(-1, *own.shape[2:])[..., some]  # (B windows, Nq, some)
                rows = now[:, start : start + piece.shape[2]]
                start += piece.shape[2]
                rows.baddbmm_(piece.flatten(0, 1), before)
                if self.normalised:
                    rows /= piece.flatten(0, 1).sum(-1, keepdim=True) + 1
            done += step
            del before  # the next half needs the room
        assert own is not None
        self.open = layer.queries, own
        self.latest = layer.queries.grid or self.latest

    def scale(self, factors: Tensor) -> None:
        """Multiply the rows of the last queries, each by its own factor (B, windows, N), in place."""
        assert self.open is not None
        self.open[1].mul_(factors[..., None])

    def readout(self) -> Tensor:
        """What the output is made of: (B, height, width) over the patches that are the sources."""
        self._file()
        parts = []
        tokens = [t for t in self.learnt if t in self.rows and self._is_read(t)]
        if tokens:
            parts.append(torch.stack([self.rows[t] for t in tokens]).mean(0))
        grid, read = self._read_patches()
        if grid is not None:
            rows = self.maps[grid]
            parts.append((rows if read is None else rows[:, on_device(read, rows.device)]).mean(1))
        total = torch.stack(parts).mean(0)  # (B, sources)
        height, width = self.source.size
        return total[:, len(self.learnt) :].unflatten(1, (height, width))

    def _is_read(self, token: Learnt) -> bool:
        """Whether the output reads a learnt token, as its last layer left it."""
        for layer in reversed(self.geometry.layers):
            if token in layer.queries.learnt:
                return bool(layer.read[layer.queries.index == -2 - layer.queries.learnt.index(token)].any())
        return False

    def _read_patches(self) -> tuple[Grid | None, Tensor | None]:
        """The last patches that the output reads; all of the last ones (None) if nothing else is known."""
        for layer in reversed(self.geometry.layers):
            if layer.queries.grid in self.maps and layer.queries.grid is not None:
                if len(layer.read_patches):
                    return layer.queries.grid, layer.read_patches
                break
        if any(self._is_read(t) for t in self.rows):
            return None, None
        return self.latest, None

    def _gather(self, tokens: Tokens, like: Tensor, near: Grid | None = None) -> Tensor:
        """Rows (B, windows, N, sources) of these tokens."""
        if self.open is not None and self.open[0] is tokens:
            return self.open[1]
        self._file()
        known = None if tokens.grid is None else self._map(tokens.grid, like, near)
        if known is not None and tokens.in_order:
            return known[:, None]
        rows = like.new_zeros(len(like), tokens.index.numel(), self._sources())
        for token, places in zip(tokens.learnt, tokens.learnt_places, strict=True):
            rows[:, on_device(places, like.device)] = self._row(token, like)[:, None]
        if tokens.grid is not None:
            where, numbers = (on_device(each, like.device) for each in tokens.patches)
            if known is None:
                rows[:, where, len(self.learnt) + on_device(_cells(tokens.grid, self.source), like.device)[numbers]] = 1
            else:
                rows.index_copy_(1, where, known.index_select(1, numbers))
        return rows.unflatten(1, tuple(tokens.index.shape))

    def _sources(self) -> int:
        return len(self.learnt) + _area(self.source)

    def _row(self, token: Learnt, like: Tensor) -> Tensor:
        if token not in self.rows:
            row = like.new_zeros(len(like), self._sources())
            row[:, self.learnt.index(token)] = 1
            self.rows[token] = row
        return self.rows[token]

    def _map(self, grid: Grid, like: Tensor, near: Grid | None) -> Tensor | None:
        """Rows (B, patches, sources) of all patches of a grid; None if these are the sources themselves."""
        if grid in self.maps:
            return self.maps[grid]
        lives_on = near is None or near == grid  # keys that were pooled for one layer do not
        origin = near if near in self.maps or near in self.untouched else self.latest
        if grid in self.untouched or origin is None:
            if lives_on:
                self.untouched.add(grid)
            return None
        old = self.maps[origin] if origin in self.maps else self._start(origin, like)
        pooling = _pooling(origin.rows, grid.rows), _pooling(origin.columns, grid.columns)
        down, across = (on_device(each, old.device).to(old.dtype) for each in pooling)
        rows = torch.einsum("hy,wx,byxs->bhws", down, across, old.unflatten(1, origin.size)).flatten(1, 2)
        if lives_on:
            self.maps[grid] = rows
        return rows

    def _start(self, grid: Grid, like: Tensor) -> Tensor:
        """Rows (B, patches, sources) of patches that are their own sources."""
        start = like.new_zeros(_area(grid), self._sources())
        cells = len(self.learnt) + on_device(_cells(grid, self.source), like.device)
        return start.scatter_(1, cells[:, None], 1).expand(len(like), -1, -1)

    def _file(self) -> None:
        """File the rows of the last queries under their tokens."""
        if self.open is None:
            return
        (tokens, rows), self.open = self.open, None
        flat = rows.flatten(1, 2)
        for token, places in zip(tokens.learnt, tokens.learnt_places, strict=True):
            self.rows[token] = flat[:, on_device(places, rows.device)].mean(1)
        if tokens.grid is not None:
            before = self.maps.pop(tokens.grid, None)
            untouched = tokens.grid in self.untouched
            self.untouched.discard(tokens.grid)
            if tokens.in_order:
                self.maps[tokens.grid] = flat
                return
            if tokens.once is not None:
                self.maps[tokens.grid] = flat.index_select(1, on_device(tokens.once, rows.device))
                return
            where, numbers = (on_device(each, rows.device) for each in tokens.patches)
            total = rows.new_zeros(len(rows), _area(tokens.grid), rows.shape[-1])
            total.index_add_(1, numbers, flat[:, where])
            count = rows.new_zeros(_area(tokens.grid)).index_add_(0, numbers, rows.new_ones(len(numbers)))
            if before is None and untouched:
                before = self._start(tokens.grid, rows)
            new = total / count.clamp(min=1)[:, None]
            seen = (count > 0)[:, None]
            self.maps[tokens.grid] = new if before is None else torch.where(seen, new, before)


def without_padding(fused: Tensor, keys: Tokens, normalised: bool) -> Tensor:
    """Redistribute the weight on padding over the other keys, or drop it."""
    if keys.padding is None:
        return fused
    kept = fused.masked_fill(on_device(keys.padding, fused.device)[:, None], 0)
    return kept * fused.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True).clamp(min=1e-9) if normalised else kept


def _area(grid: Grid) -> int:
    return len(grid.rows) * len(grid.columns)


def _coarser(grid: Grid) -> Grid:
    """The grid, with neighbouring patches merged until there are few enough."""
    joined = 1
    while -(-len(grid.rows) // joined) * -(-len(grid.columns) // joined) > MOST_SOURCES:
        joined += 1
    return Grid(_joined(grid.rows, joined), _joined(grid.columns, joined))


def _joined(places: tuple[float, ...], number: int) -> tuple[float, ...]:
    groups = [places[i : i + number] for i in range(0, len(places), number)]
    return tuple(sum(group) / len(group) for group in groups)


def _nearest(places: tuple[float, ...], among: tuple[float, ...]) -> Tensor:
    return (torch.tensor(places)[:, None] - torch.tensor(among)).abs().argmin(1)


@lru_cache(maxsize=64)
def _cells(grid: Grid, source: Grid) -> Tensor:
    """For every patch of a grid the source that it lies in."""
    rows, columns = _nearest(grid.rows, source.rows), _nearest(grid.columns, source.columns)
    return (rows[:, None] * len(source.columns) + columns).flatten()


@lru_cache(maxsize=64)
def _pooling(old: tuple[float, ...], new: tuple[float, ...]) -> Tensor:
    """(new, old) averages: of those old places that lie closest to a new one, or else of the closest."""
    matrix = torch.zeros(len(new), len(old))
    matrix[_nearest(old, new), torch.arange(len(old))] = 1
    empty = matrix.sum(1) == 0
    matrix[empty, _nearest(new, old)[empty]] = 1
    return matrix / matrix.sum(1, keepdim=True)


def fuse_heads(maps: Tensor, fusion: str = "mean") -> Tensor:
    """(B, windows, heads, Nq, Nk) -> (B, windows, Nq, Nk)."""
    return FUSIONS[fusion](maps)


FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(2),
    "max": lambda maps: maps.amax(2),
    "min": lambda maps: maps.amin(2),
}


def discard_smallest(fused: Tensor, share: float, keys: Tokens) -> Tensor:
    """Set this share of each image's smallest weights to zero, but none of those on learnt tokens."""
    number = int(share * fused[0].numel())
    if number == 0:
        return fused
    smallest = fused.flatten(1).topk(number, dim=1, largest=False).indices
    dropped = torch.zeros_like(fused).flatten(1).scatter_(1, smallest, 1).view_as(fused).bool()
    learnt = on_device(keys.index, fused.device)[:, None] < -1  # (windows, 1, Nk)
    return fused.masked_fill(dropped & ~learnt, 0)
