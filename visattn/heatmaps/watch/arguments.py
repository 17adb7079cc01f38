"""What a torch function was given, however it was called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIRST = ("input", "self", "tensors", "batch1", "mat1")  # names of arguments that come before others


def operands_of(args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors and numbers that a function was given, in order."""
    named = [(key, value) for key, value in kwargs.items() if isinstance(value, Tensor) and key != "out"]
    named.sort(key=lambda each: each[0] not in FIRST)
    return [*(x for x in args if isinstance(x, Tensor | float | int)), *(value for _, value in named)]


def flattened(values: Any) -> list[Tensor]:
    """The items of nested lists and tuples, in order."""
    return [x for each in values for x in (flattened(each) if isinstance(each, tuple | list) else [each])]


def argument(args: Any, kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    """An argument given by name or by position; None if it was not given."""
    return kwargs.get(name, args[position] if len(args) > position else None)


def dim_of(args: Any, kwargs: Mapping[str, Any], default: Any) -> Any:
    """The ``dim`` that a function was given, or a default."""
    dim = argument(args, kwargs, 1, "dim")
    return default if dim is None or isinstance(dim, torch.dtype) else dim


def axis_from_end(x: Tensor, args: Any, kwargs: Mapping[str, Any]) -> int:
    """The ``dim`` that a function was given, counted from the last axis; the last one unless given."""
    axis: int = dim_of(args, kwargs, -1)
    return axis if axis < 0 else axis - x.ndim


def single_axis(dims: Any) -> int | None:
    """The only axis, whether given as a number or a list; None if there are several."""
    if isinstance(dims, tuple | list) and len(dims) == 1:
        (dims,) = dims
    return dims if isinstance(dims, int) else None


def axis_after(x: Tensor, axis: int | None, y: Tensor) -> int | None:
    """Where an axis of one tensor is in a tensor made from it, counted from the last; None if that is not clear."""
    if axis is None:
        return None
    length, step = x.shape[axis], x.stride(axis)
    if y.untyped_storage()._cdata == x.untyped_storage()._cdata:  # a view; those of inference mode do not say so
        found = [d - y.ndim for d in range(y.ndim) if (y.shape[d], y.stride(d)) == (length, step)]
        if len(found) == 1:
            return found[0]
    if y.shape == x.shape:
        return axis
    found = [d - y.ndim for d in range(y.ndim) if y.shape[d] == length]
    return found[0] if len(found) == 1 else None
