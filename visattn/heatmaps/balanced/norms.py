"""Normalisation: what is divided by is a constant, and centring stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.core.precision import precise
from visattn.heatmaps.balanced.linearised import linearised
from visattn.heatmaps.balanced.operation import Operation


def layer_norm(op: Operation) -> Tensor:
    """The deviation of the last axes is a constant."""
    x, shape = op.args[0], op.argument(1, "normalized_shape")
    weight, bias, eps = op.argument(2, "weight"), op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
    return _normalised(op, x, tuple(range(-len(shape), 0)), weight, bias, eps)


def rms_norm(op: Operation) -> Tensor:
    """The root of the mean square of the last axes is a constant."""
    x, shape, weight, eps = (
        op.args[0],
        op.argument(1, "normalized_shape"),
        op.argument(2, "weight"),
        op.argument(3, "eps"),
    )
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _normalised(op, x, tuple(range(-len(shape), 0)), weight, None, eps, centred=False)


def group_norm(op: Operation) -> Tensor:
    """The deviation of a group of channels is a constant."""
    x, groups = op.args[0], op.argument(1, "num_groups")
    weight, bias = _per_channel(x, op.argument(2, "weight")), _per_channel(x, op.argument(3, "bias"))
    return _normalised(op, x, tuple(range(2, x.ndim + 1)), weight, bias, op.argument(4, "eps", 1e-5), groups=groups)


def batch_norm(op: Operation) -> Tensor:
    """Affine in evaluation mode; with statistics of the images themselves, their deviation is a constant."""
    x: Tensor = op.args[0]
    instance = op.name == "instance_norm"
    if op.argument(5, "use_input_stats", True) if instance else op.argument(5, "training", False):
        weight, bias = _per_channel(x, op.argument(3, "weight")), _per_channel(x, op.argument(4, "bias"))
        axes = tuple(range(2, x.ndim)) if instance else (0, *range(2, x.ndim))
        return _normalised(op, x, axes, weight, bias, op.argument(7, "eps", 1e-5))
    mean, variance, weight, bias = (_per_channel(x, p) for p in _parameters(op))
    assert mean is not None
    assert variance is not None
    inverse = (variance + op.argument(7, "eps", 1e-5)).rsqrt()
    slope = inverse if weight is None else inverse * weight
    # torch's own derivative is wrong for one image whose gradient comes from tokens (2.15, on the CPU).
    output = linearised(op.detached, x, lambda gradient: gradient * slope)
    op.mode.add(output, -mean * slope if bias is None else bias - mean * slope)
    return output


def _parameters(op: Operation) -> list[Tensor | None]:
    return [op.argument(i, name) for i, name in enumerate(("running_mean", "running_var", "weight", "bias"), start=1)]


def unit_length(op: Operation) -> Tensor:
    """``F.normalize``: the length is a constant."""
    x, order, axis = op.args[0], op.argument(1, "p", 2.0), op.argument(2, "dim", 1)
    length = precise(x.detach()).norm(order, axis, keepdim=True).clamp_min(op.argument(3, "eps", 1e-12))
    return linearised(op.detached, x, lambda gradient: gradient / length)


def spread_and_mean(op: Operation) -> tuple[Tensor, Tensor]:
    """``var_mean`` and ``std_mean``: the spread is a constant."""
    spread, mean = op.run()
    return spread.detach(), mean


def _per_channel(x: Tensor, parameter: Tensor | None) -> Tensor | None:
    """(C, 1, ...)."""
    return None if parameter is None else parameter.detach().reshape(-1, *[1] * (x.ndim - 2))


def _normalised(
    op: Operation,
    x: Tensor,
    axes: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centred: bool = True,
    groups: int | None = None,
) -> Tensor:
    """y = weight * (x - mean) / deviation + bias; statistics are taken along the axes, of grouped channels if so."""

    def split(each: Tensor) -> Tensor:
        return each if groups is None else each.unflatten(1, (groups, -1))

    with torch.no_grad():
        numbers = precise(split(x.detach()))
        square = numbers.var(axes, correction=0, keepdim=True) if centred else numbers.square().mean(axes, keepdim=True)
        inverse = (square + eps).rsqrt()

    def pullback(gradient: Tensor) -> Tensor:
        back = precise(gradient) if weight is None else precise(gradient) * weight.detach()
        back = split(back)
        back = (back - back.mean(axes, keepdim=True) if centred else back) * inverse
        return back if groups is None else back.flatten(1, 2)

    output = linearised(op.detached, x, pullback)
    op.mode.add(output, None if bias is None else bias.detach())
    return output
