"""Shadows: which place of which image every number of a tensor belongs to.

A shadow is a pair of tensors (row, column) of the tensor's shape. Rows are the image's rows, plus :data:`IMAGE` times
the index of the image in the batch. Learnt tokens (class, distillation, register) have no place: their row is negative
and identifies the parameter they come from, and their column is the index in it. NaN is neither, but a mixture or
padding. Most shadows are one number repeated along several axes, and the functions here keep it that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows between two images of a batch: more than any image has. A third tensor for the number of the image would be
# cleaner, and would cost every rule below a third more: pooling and products treat it exactly as they treat rows.
IMAGE = 100_000.0
Shadow: TypeAlias = tuple[Tensor, Tensor]


def nowhere(shape: torch.Size) -> Shadow:
    """The shadow of a tensor that belongs to no place."""
    nothing = torch.full((), math.nan).double().expand(shape)
    return nothing, nothing


def compact(s: Tensor) -> Tensor:
    """One number of every repetition."""
    for axis, stride in enumerate(s.stride()):
        if stride == 0 and s.shape[axis] > 1:
            s = s.narrow(axis, 0, 1)
    return s


def compact_copy(s: Tensor) -> Tensor:
    """A copy that stores repeated numbers only once."""
    return compact(s).clone().expand(s.shape)


def compact_together(*shadows: Tensor) -> list[Tensor]:
    """One number of every repetition that all of them have, so that they still fit each other."""
    for axis in range(shadows[0].ndim):
        if all(s.stride(axis) == 0 for s in shadows):
            shadows = tuple(s.narrow(axis, 0, 1) for s in shadows)
    return list(shadows)


def prefer_places(new: Shadow, old: Shadow) -> Shadow:
    """The new places where the old ones are not in the image."""
    shape = old[0].shape
    rows, columns, old_rows, old_columns = compact_together(*new, *old)
    better = (rows >= 0) & ~(old_rows >= 0)
    if not better.any():
        return old
    return rows.where(better, old_rows).expand(shape), columns.where(better, old_columns).expand(shape)


def reshaped(s: Tensor, shape: torch.Size) -> Tensor:
    """In another shape; a number that is repeated along axes is stored only once."""
    small, new = list(s.shape), list(shape)
    apart: list[int] = []  # axes that one axis falls into
    before = after = 0  # the next axis of each
    while s.numel() and before < s.ndim and after < len(shape):
        ends, number, size = [before + 1, after + 1], s.shape[before], shape[after]
        while number != size:  # until both have gone through as many numbers
            if number < size:
                number, ends[0] = number * s.shape[ends[0]], ends[0] + 1
            else:
                size, ends[1] = size * shape[ends[1]], ends[1] + 1
        if all(s.stride(axis) == 0 or s.shape[axis] == 1 for axis in range(before, ends[0])):
            small[before : ends[0]] = [1] * (ends[0] - before)
            new[after : ends[1]] = [1] * (ends[1] - after)
        elif ends[1] > after + 1:
            apart += range(after, ends[1])
        before, after = ends
    for axis, size in enumerate(small):
        s = s.narrow(axis, 0, size)
    s = s.reshape(new)
    for axis in apart:  # such as heads that were joined with the batch
        first = s.narrow(axis, 0, 1)
        if s.shape[axis] > 1 and ((s == first) | (s.isnan() & first.isnan())).all():
            s = first
    return s.expand(shape)


def joined(name: str, parts: Sequence[Tensor], dim: int, output: Tensor) -> Tensor:
    """Parts one after the other; what is repeated along an axis in all of them is stored only once."""
    if name == "stack":
        return torch.stack(list(parts), dim)
    for axis in range(output.ndim):
        if axis != dim % output.ndim and all(part.stride(axis) == 0 for part in parts):
            parts = [part.narrow(axis, 0, 1) for part in parts]
    return torch.cat(list(parts), dim).expand(output.shape)


def is_one_place(places: Tensor) -> bool:
    """Whether they are all one place of the image."""
    small = compact(places)
    return bool((small >= 0).all() and small.max() - small.min() < 1e-6)


def all_placed(rows: Tensor) -> bool:
    """Whether every number has a place in the image."""
    return bool((compact(rows) >= 0).all())


def middle(s: Tensor, axis: Any, shadow: Shadow, keepdim: bool = True) -> Tensor:
    """What is constant along axes, or else the middle of places in the image; any other mixture is nowhere."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    rows = shadow[0]
    if all(each.stride(a) == 0 or each.shape[a] == 1 for each in shadow for a in axes):
        for a in axes:
            s = s.narrow(a, 0, 1)
    else:
        same = torch.ones((), dtype=torch.bool)
        for each in shadow:
            same = same & ((each.amax(axes, keepdim=True) - each.amin(axes, keepdim=True)).abs() < 1e-6)
        mixed = (rows < 0).any(axes[0], keepdim=True)
        for a in axes[1:]:
            mixed = mixed.any(a, keepdim=True)
        s = s.nanmean(axes, keepdim=True).where(same | ~mixed, math.nan)
    return s if keepdim else s.squeeze(axes)


def unfolded(s: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Unfolded windows, in which padding is nowhere instead of at the corner."""
    rows, columns = padding
    padded = F.pad(s, (columns, columns, rows, rows), value=math.nan)
    return F.unfold(padded, kernel, dilation, 0, stride)


def window_centres(s: Tensor, shape: torch.Size, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The middle of every window of a convolution or pooling with an output of this shape."""
    s = s[:, :1] if s.shape[1] != shape[1] or s.stride(1) == 0 else s
    for k, width in enumerate(kernel):
        axis = s.ndim - len(kernel) + k
        size = s.shape[axis]
        middles = (
            torch.arange(shape[axis - s.ndim]) * _at(stride, k) - _at(padding, k) + _at(dilation, k) * (width - 1) / 2
        )
        low, high = middles.floor().clamp(0, size - 1).long(), middles.ceil().clamp(0, size - 1).long()
        low, high = s.index_select(axis, low), s.index_select(axis, high)
        s = (low.where(low.isfinite(), high) + high.where(high.isfinite(), low)) / 2  # padding has no say
    return s.expand(shape)


def _at(values: tuple[int, ...], k: int) -> int:
    return values[k] if len(values) > k else values[0]
