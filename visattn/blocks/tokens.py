"""Heads, tokens and windows: how blocks turn a map into what attends, and back.

Padding is with zeros, below and to the right. The numbers of the pixels (``pixel_numbers`` of
:mod:`visattn.blocks.windows`) go through the same cuts as a map, and then say which pixel every token was:
:func:`spread_tiles` writes the weights of windows into a matrix of all pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.attention import split_heads


def largest_divisor(number: int, most: int) -> int:
    """The largest number up to ``most`` that divides; one at least.

    >>> largest_divisor(100, 3), largest_divisor(7, 3), largest_divisor(16, 0)
    (2, 1, 1)
    """
    return next((each for each in range(min(number, most), 0, -1) if number % each == 0), 1)


def start_small(module: nn.Module) -> None:
    """What vision transformers start with: pointwise layers of standard deviation 0.02, without biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def to_heads(x: Tensor, heads: int) -> Tensor:
    """(B, heads·d, H, W) -> (B, heads, N, d): the pixels in row order."""
    # x.flatten(2).mT would be as good, but for PyTorch's batch norm: if it comes right before, with a single image,
    # its backward pass (on the CPU) takes the transposed gradient for another one.
    return split_heads(x.movedim(1, -1).flatten(1, 2), heads)


def to_map(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """(B, heads, N, d) -> (B, heads·d, H, W)."""
    return x.mT.flatten(1, 2).unflatten(2, tuple(size))


def norm_channels(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Layer norm of every pixel of a map (B, C, H, W)."""
    return norm(x.movedim(1, -1)).movedim(-1, 1)


def padded(x: Tensor, height: int, width: int, *, value: float = 0) -> Tensor:
    """The map, made larger until its sides are multiples of these."""
    return F.pad(x, (0, -x.shape[3] % width, 0, -x.shape[2] % height), value=value)


def tiles(x: Tensor, height: int, width: int) -> Tensor:
    """Cut a map into tiles of this size, in row order: (B, C, H, W) -> (B·tiles, C, height, width)."""
    cut = x.unflatten(3, (-1, width)).unflatten(2, (-1, height))  # (B, C, rows, height, columns, width)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def from_tiles(x: Tensor, rows: int, columns: int) -> Tensor:
    """Put tiles together again: (B·rows·columns, C, height, width) -> (B, C, H, W)."""
    return x.unflatten(0, (-1, rows, columns)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def spread_tiles(weights: Tensor, rows: Tensor, columns: Tensor, pixels: int) -> Tensor:
    """Weights of windows, as weights of all pixels; where windows overlap, they add up.

    Args:
        weights: (B, heads, windows, n, m).
        rows: which pixel each of n queries is, (windows, n); the number of pixels stands for the outside.
        columns: which pixel each of m keys is, (windows, m).
        pixels: N.

    Returns:
        (B, heads, N, N).
    """
    side = pixels + 1  # one more, for the outside
    index = (rows.unsqueeze(2) * side + columns.unsqueeze(1)).flatten()
    total = weights.new_zeros(*weights.shape[:2], side * side).index_add(2, index, weights.flatten(2))
    return total.unflatten(2, (side, side))[..., :pixels, :pixels]
