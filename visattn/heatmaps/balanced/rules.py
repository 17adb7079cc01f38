"""A rule for every kind of torch function: how its output is linear in what depends on the image, plus a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from visattn.core.distributions import entmax15, sigmoid, sparsemax
from visattn.heatmaps.balanced.linearised import linearised, scaled
from visattn.heatmaps.balanced.norms import (
    batch_norm,
    group_norm,
    layer_norm,
    rms_norm,
    spread_and_mean,
    unit_length,
)
from visattn.heatmaps.balanced.operation import Operation
from visattn.heatmaps.balanced.operators import ADDED_PRODUCTS, AFFINE, BIASED, CONSTANT, ELEMENTWISE, PRODUCTS

Rule: TypeAlias = Callable[[Operation], Any]


def constant(op: Operation) -> Any:
    """Attention weights, and deviations on their way to be divided by."""
    if not op.mode.weights:
        return op.detached()
    output = linearised(op.detached, op.active[0], lambda _: None)
    op.mode.keep_constant(output)
    return output


def elementwise(op: Operation) -> Tensor:
    """y = f(0) + x g(x), where g(x) = (f(x) - f(0)) / x is a constant: the gate, if f(x) is x * g(x)."""
    position = next(i for i, x in enumerate(op.args) if op.is_active(x))
    x: Tensor = op.args[position].detach()

    def at(values: Tensor) -> Tensor:
        y: Tensor = op.func(*op.args[:position], values, *op.args[position + 1 :], **op.kwargs)
        return y

    with torch.no_grad():
        value = at(x)
        around: Any = (-1e-4, 0.0, 1e-4)
        if len(op.tensors) == 1:
            around = at(
                torch.tensor(around, dtype=torch.float64)
            ).tolist()  # numbers, for which no device must be asked
        else:  # bounds of its own for every number
            around = [at(torch.full_like(x, each)) for each in around]
        below, start, above = around
        few = torch.finfo(x.dtype).eps ** 0.5  # below which the difference has lost its digits
        close = x.abs() < few if isinstance(start, Tensor) or start != 0 else x == 0
        slope = torch.where(close, (above - below) / 2e-4, (value - start) / x)
    output = linearised(lambda: value, op.args[position], lambda gradient: gradient * slope)
    if isinstance(start, Tensor) or start != 0:
        op.mode.add(output, torch.as_tensor(start))
    op.mode.follow(op.args[position], output, multiple=False)
    return output


def product(op: Operation) -> Any:
    """Every factor that depends on the image receives its share of the gradient."""
    share = 1 / len(op.active)
    return op.run(lambda x: scaled(x, share) if share < 1 and op.is_active(x) else x)


def multiplication(op: Operation) -> Tensor:
    """A product of two branches; or an activation x * g(x) that is written out, whose gate is a constant."""
    if len(op.active) == 2:
        (one, one_is_multiple), (other, other_is_multiple) = (op.mode.origin(x) for x in op.active)
        if one is other and one_is_multiple != other_is_multiple:
            gate = op.active[one_is_multiple]
            gated: Tensor = op.run(lambda x: x.detach() if x is gate else x)
            op.mode.follow(one, gated, multiple=False)
            return gated
    output: Tensor = product(op)
    if len(op.active) == 1:
        op.mode.follow(op.active[0], output, multiple=True)
    return output


def division(op: Operation) -> Any:
    """The divisor is a constant."""
    left, right, *rest = op.args
    output = op.func(left, right.detach() if isinstance(right, Tensor) else right, *rest, **op.kwargs)
    if op.is_active(left):
        op.mode.follow(left, output, multiple=True)
    return output


def power(op: Operation) -> Any:
    """x^n is of degree n, by which its gradient is divided; it is a constant if n is not positive."""
    x, exponent = op.args[0], {"square": 2, "sqrt": 0.5}.get(op.name) or op.argument(1, "exponent")
    if op.is_active(exponent) or not (torch.as_tensor(exponent) > 0).all():
        return constant(op)
    output = op.run(lambda each: scaled(each, 1 / exponent) if each is x else each)
    op.mode.follow(x, output, multiple=False)
    return output


def affine(op: Operation) -> Any:
    """As usual; what is left for zeros is the constant."""
    output = op.run()
    numbers = any(isinstance(x, int | float) for x in (*op.args, *op.kwargs.values()))
    if numbers or len(op.active) < len(op.tensors):
        op.mode.add(output, op.constant_part())
    if op.name in ("add", "sub", "rsub"):
        (origin, _), *others = (op.mode.origin(x) for x in op.active)
        if origin.shape == output.shape and all(other is origin for other, _ in others):
            op.mode.follow(origin, output, multiple=False)
    return output


def biased(op: Operation) -> Tensor:
    """Linear layers and convolutions; both input and weight may depend on the image."""
    x, weight, bias = op.args[0], op.argument(1, "weight"), op.argument(2, "bias")
    both = op.is_active(x) and op.is_active(weight)
    output: Tensor = op.run(lambda each: scaled(each, 0.5) if both and (each is x or each is weight) else each)
    if bias is not None and not op.is_active(bias):
        op.mode.add(output, bias.detach().reshape(-1, *[1] * (-BIASED[op.name] - 1)))
    return output


def added_product(op: Operation) -> Tensor:
    """addend + left x right."""
    both = all(op.is_active(x) for x in op.args[1:3])
    factors = op.args[1:3] if both else ()
    output: Tensor = op.run(lambda each: scaled(each, 0.5) if any(each is x for x in factors) else each)
    op.mode.add(output, op.constant_part())
    return output


def choice(op: Operation) -> Any:
    """The larger or smaller of two tensors, or of the numbers in one."""
    output = op.run()
    if len(op.tensors) == 2 and len(op.active) == 1:
        (x,) = op.active
        op.mode.add(output, torch.where(output == x, 0, output).detach())
    return output


def fused_attention(op: Operation) -> Any:
    """The gradient flows through the values only: what the weights are made of counts as constant."""
    args = [x.detach() if isinstance(x, Tensor) and i != 2 else x for i, x in enumerate(op.args)]
    kwargs = {k: x.detach() if isinstance(x, Tensor) and k != "value" else x for k, x in op.kwargs.items()}
    return op.func(*args, **kwargs)


def gated_half(op: Operation) -> Tensor:
    """``F.glu``: one half of the channels times the sigmoid of the other, a product of two branches."""
    x, axis = op.args[0], op.argument(1, "dim", -1)
    with torch.no_grad():
        kept, gate = x.detach().chunk(2, axis)
        weights = gate.sigmoid()
        slope = torch.where(gate.abs() < torch.finfo(x.dtype).eps ** 0.5, 0.25, (weights - 0.5) / gate)
    output = linearised(op.detached, x, lambda g: torch.cat([g * weights / 2, g * kept * slope / 2], axis))
    op.mode.add(output, kept / 4)  # half of the product with sigmoid(0)
    return output


def sampled(op: Operation) -> Any:
    """``grid_sample``: where it looks is a constant."""
    grid = op.argument(1, "grid")
    return op.run(lambda x: x.detach() if x is grid else x)


# By plain name, and ours by function.
RULES: dict[Any, Rule] = {
    **dict.fromkeys(CONSTANT, constant),
    **dict.fromkeys((sparsemax, entmax15, sigmoid), constant),
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(PRODUCTS, product),
    **dict.fromkeys(BIASED, biased),
    **dict.fromkeys(AFFINE, affine),
    **dict.fromkeys(ADDED_PRODUCTS, added_product),
    **dict.fromkeys(("pow", "square", "sqrt"), power),
    **dict.fromkeys(("max", "min", "maximum", "minimum", "fmax", "fmin"), choice),
    **dict.fromkeys(("batch_norm", "instance_norm"), batch_norm),
    **dict.fromkeys(("var_mean", "std_mean"), spread_and_mean),
    **dict.fromkeys(("scaled_dot_product_attention", "flex_attention"), fused_attention),
    "mul": multiplication,
    "div": division,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "normalize": unit_length,
    "glu": gated_half,
    "grid_sample": sampled,
}
