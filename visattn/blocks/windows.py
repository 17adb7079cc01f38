"""What local self-attention is made of: windows around pixels, and relative positions.

A window of k x k keys for every pixel is k² times as much memory as the map. Therefore attention is computed a tile of
pixels at a time (:class:`Tiling`): its queries share the keys of the tile and of a halo around it, and a mask cuts the
window of each query out where the definition has one. Where the position of a key counts by its row and its column, the
positional term is written as additional features of queries and one-hot features of keys (:func:`with_places`), so that
the whole runs on the fused kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.scopes import near, on_grid


class Tiling(NamedTuple):
    """Tiles of b x b queries, each with the (b + 2h) x (b + 2h) keys that its queries may see.

    Args:
        tile: side b of a tile.
        halo: pixels h around it.
        stride: there are queries only at every so many-th row and column; divides the tile.
    """

    tile: int
    halo: int
    stride: int = 1

    def queries(self, x: Tensor, heads: int) -> Tensor:
        """The tiles of a map (B, heads·d, H, W): (B·tiles, heads, b/stride, b/stride, d)."""
        side = self.tile // self.stride
        x = x[..., :: self.stride, :: self.stride]
        x = F.pad(x, (0, -x.shape[3] % side, 0, -x.shape[2] % side))  # up to whole tiles
        return _cut(x, heads, side, side)

    def keys(self, x: Tensor, heads: int, *, fill: int = 0) -> Tensor:
        """The windows of a map (B, heads·d, H + 2h, W + 2h) that has its halo: (B·tiles, heads, (b + 2h)², d)."""
        height, width = x.shape[2] - 2 * self.halo, x.shape[3] - 2 * self.halo
        x = F.pad(x, (0, -width % self.tile, 0, -height % self.tile), value=fill)
        return _cut(x, heads, self.tile + 2 * self.halo, self.tile).flatten(2, 3)

    def joined(self, x: Tensor, height: int, width: int) -> Tensor:
        """Results (B·tiles, heads, (b/stride)², d) for the queries of an H x W map, as a map (B, heads·d, H', W')."""
        side = self.tile // self.stride
        down, across = whole(height, self.tile), whole(width, self.tile)
        x = x.unflatten(0, (-1, down, across)).unflatten(4, (side, side))
        x = x.permute(0, 3, 6, 1, 4, 2, 5).flatten(5).flatten(3, 4).flatten(1, 2)  # (B, heads·d, rows, columns)
        return x[..., : whole(height, self.stride), : whole(width, self.stride)]

    def rows(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The rows of the queries (b/stride,) and of the keys (b + 2h,) of a tile; the columns are the same."""
        queries = torch.arange(0, self.tile, self.stride, device=device)
        return queries, torch.arange(self.tile + 2 * self.halo, device=device) - self.halo

    def offsets(self, device: torch.device) -> Tensor:
        """How far a row of keys is below a row of queries, (b/stride, b + 2h); of columns the same."""
        queries, keys = self.rows(device)
        return keys - queries[:, None]

    def nearby(self, device: torch.device) -> Tensor:
        """The scope ``local_2d`` within a tile: keys within h rows and columns, ((b/stride)², (b + 2h)²)."""
        seen = near(*self.rows(device), self.halo)
        return on_grid(seen, seen)

    def spread(self, weights: Tensor, numbers: Tensor) -> Tensor:
        """Weights of the windows' keys (B·tiles, heads, queries, keys) as those of pixels, (B, heads, N', N).

        ``numbers`` is the map of :func:`pixel_numbers` with its halo.
        """
        height, width = numbers.shape[2] - 2 * self.halo, numbers.shape[3] - 2 * self.halo
        places = self.keys(numbers, 1, fill=height * width).mT.expand(-1, -1, weights.shape[2], -1)
        heads = weights.shape[1]
        weights = self.joined(weights, height, width).unflatten(1, (heads, -1)).flatten(3).mT  # (B, heads, N', keys)
        return spread(weights, self.joined(places, height, width).flatten(2).mT, height * width)


def whole(length: int, step: int) -> int:
    """So many steps cover a length; in this form ONNX divides as Python does, which -(-length // step) is not."""
    return (length + step - 1) // step


def _cut(x: Tensor, heads: int, side: int, step: int) -> Tensor:
    """Squares of a map (B, heads·d, H, W), one every so many pixels: (B·squares, heads, side, side, d)."""
    x = x.unfold(2, side, step).unfold(3, side, step)  # (B, heads·d, down, across, side, side)
    return x.unflatten(1, (heads, -1)).permute(0, 3, 4, 1, 5, 6, 2).flatten(0, 2)


def pixel_numbers(x: Tensor, margin: int = 0) -> Tensor:
    """The numbers of the pixels of a map in row order, and N around it: (1, 1, H + 2m, W + 2m)."""
    pixels = x.shape[2] * x.shape[3]
    numbers = torch.arange(pixels, device=x.device).view(1, 1, x.shape[2], x.shape[3])
    return F.pad(numbers, [margin] * 4, value=pixels)


def spread(weights: Tensor, places: Tensor, pixels: int) -> Tensor:
    """Weights of the slots of a window (B, heads, N, slots) as weights of pixels, (B, heads, N, pixels).

    ``places`` (..., N, slots) says which pixel a slot is; what lies outside the map has the number ``pixels``.
    """
    everywhere = weights.new_zeros(*weights.shape[:-1], pixels + 1)
    return everywhere.scatter_add(-1, places.expand(weights.shape), weights)[..., :pixels]


def neighbours(x: Tensor, kernel_size: int) -> Tensor:
    """Which pixels are in the window around each one, row by row: (N, kernel_size²); N if outside the map."""
    numbers = pixel_numbers(x, kernel_size // 2)
    return numbers.unfold(2, kernel_size, 1).unfold(3, kernel_size, 1).flatten(4).flatten(0, 3)


def reflected(x: Tensor, margin: int) -> Tensor:
    """A map continued by reflection at its outermost pixels, on small maps to and fro: (B, C, H + 2m, W + 2m)."""
    for dim in (2, 3):
        length = x.shape[dim]
        there_and_back = max(1, 2 * (length - 1))
        index = torch.arange(-margin, length + margin, device=x.device)
        index = index - index // there_and_back * there_and_back  # what % is; ONNX has that of constants only
        x = x.index_select(dim, torch.minimum(index, there_and_back - index))
    return x


def averages(x: Tensor, stride: int) -> Tensor:
    """Means of stride x stride pixels; fewer at the end of a map whose size is no multiple of the stride."""
    return x if stride == 1 else F.avg_pool2d(x, stride, ceil_mode=True)


def start_tables(*tables: Tensor) -> None:
    """Relative embeddings (offsets, d) of unit length on average."""
    for table in tables:
        nn.init.normal_(table, std=table.shape[1] ** -0.5)


def resample_offsets(table: Tensor, size: int) -> Tensor:
    """Relative embeddings (2S - 1, d) of offsets -(S-1)..S-1, read at 2·size - 1 offsets between the same ends."""
    span = (table.shape[0] - 1) // 2
    if size == 1:
        return table[span : span + 1]  # the only offset is zero
    # The i-th of 2·size - 1 offsets lies at i·span / (size - 1) of the table; integers keep this exact.
    position = torch.arange(2 * size - 1, device=table.device) * span
    below = position // (size - 1)
    fraction = (position - below * (size - 1)).to(table.dtype).unsqueeze(1) / (size - 1)
    return torch.lerp(table[below], table[(below + 1).clamp_max(2 * span)], fraction)


def all_pairs(table: Tensor) -> Tensor:
    """The embedding of the way from every position of an axis to every other: (2L - 1, d) -> (L, L, d)."""
    length = (table.shape[0] + 1) // 2
    position = torch.arange(length, device=table.device)
    return table[position - position[:, None] + length - 1]


def by_row(query: Tensor, embeddings: Tensor) -> Tensor:
    """q·r of queries (..., h, w, d), where r (h, H, d) belongs to a query's and a key's row: (..., h, w, H)."""
    return query @ embeddings.mT


def by_column(query: Tensor, embeddings: Tensor) -> Tensor:
    """q·r of queries (..., h, w, d), where r (w, W, d) belongs to a query's and a key's column: (..., h, w, W)."""
    return by_row(query.transpose(-3, -2), embeddings).transpose(-3, -2)


def with_places(query: Tensor, key: Tensor, along_h: Tensor, along_w: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (..., h·w, d + H + W) and keys (..., H·W, d + H + W) whose product is q·k + along_h + along_w.

    Args:
        query: (..., h, w, d).
        key: (..., H·W, d).
        along_h: what a query adds to the keys of every row, (..., h, w, H).
        along_w: to those of every column, (..., h, w, W).
    """
    height, width = along_h.shape[-1], along_w.shape[-1]
    row = torch.eye(height, device=key.device, dtype=key.dtype).unsqueeze(1).expand(-1, width, -1)
    column = torch.eye(width, device=key.device, dtype=key.dtype).expand(height, -1, -1)
    place = torch.cat([row, column], dim=2).flatten(0, 1).expand(*key.shape[:-2], -1, -1)
    query = torch.cat([query, along_h, along_w], dim=-1).flatten(-3, -2)
    return query, torch.cat([key, place], dim=-1)


def with_offsets(
    query: Tensor, key: Tensor, rel_h: Tensor, rel_w: Tensor, size: tuple[int, int] | torch.Size
) -> tuple[Tensor, Tensor]:
    """Queries and keys (..., N, d) of a map of this size, so that their product is q·(k + r), (..., N, d + H + W).

    ``rel_h`` and ``rel_w`` (2S - 1, d) have r for the way down and for the way across, stored for maps of S x S pixels.
    """
    height, width = size
    grid = query.unflatten(-2, (height, width))
    along_h = by_row(grid, all_pairs(resample_offsets(rel_h, height)))  # (..., H, W, H)
    along_w = by_column(grid, all_pairs(resample_offsets(rel_w, width)))  # (..., H, W, W)
    return with_places(grid, key, along_h, along_w)
