"""Outputs of a forward pass with a gradient of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Pullback: TypeAlias = Callable[[Tensor], Tensor | None]  # from the gradient of an output to that of an input


class _Linearised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], pullback: Pullback, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.pullback, ctx.like = pullback, x.dtype
        return compute()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, None, Tensor | None]:
        found = None if gradient is None else ctx.pullback(gradient)
        return None, None, None if found is None else found.to(ctx.like)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float | Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.factor = factor
        return x.detach()  # a view with the same strides

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        return None if gradient is None else gradient * ctx.factor, None


def linearised(compute: Callable[[], Tensor], x: Tensor, pullback: Pullback) -> Tensor:
    """What a function computes from x, with another derivative.

    Args:
        compute: gives a new tensor.
        x: that it depends on.
        pullback: from the gradient of the result to that of x.
    """
    result: Tensor = _Linearised.apply(compute, pullback, x)
    return result


def scaled(x: Tensor, factor: float | Tensor) -> Tensor:
    """The same numbers, whose gradient is multiplied by a factor."""
    result: Tensor = _Scaled.apply(x, factor)
    return result


def has_own_derivative(x: Any) -> bool:
    """Whether a tensor was made by an autograd function that somebody has written, other than the ones here."""
    node: Any = x.grad_fn if isinstance(x, Tensor) else None
    ours: Any = (_Linearised._backward_cls, _Scaled._backward_cls)
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not isinstance(node, ours)
