"""Distributions in a forward pass, from where they are computed to where they are multiplied by values.

A distribution is computed

- by ``softmax`` and its kin, or one of :mod:`visattn.core.distributions`;
- by dividing exponentials (or another distribution) by their own sum;
- as the exponential of ``log_softmax``, or of energies less their ``logsumexp``.

It is followed through whatever happens to it (dropout, casts, masks, talking heads, another order of the axes), as long
as it does not grow: something larger is no longer a map, but what a gate was applied to. In the end it is multiplied by
values (:mod:`visattn.heatmaps.watch.products`), or it was not attention. Exponentials may be multiplied by values
first, and the product divided by their sum.

It may be multiplied more than once, as a whole or part by part. What has been reported is marked, and with it all that
descends from it; its siblings are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.core.distributions import entmax15, sigmoid, sparsemax
from visattn.heatmaps.watch.arguments import (
    argument,
    axis_after,
    axis_from_end,
    dim_of,
    flattened,
    operands_of,
    single_axis,
)
from visattn.heatmaps.watch.descent import Known, LogTotal, Pair, Raw, Root, Step, Total, Use, Weights
from visattn.heatmaps.watch.products import Product, broadcast_product, matrix_product, sum_of_products

OWN = {sparsemax, entmax15, sigmoid}
SOFTMAX = frozenset({"softmax", "_softmax", "special_softmax", "softmin", "gumbel_softmax"})
LOG_SOFTMAX = frozenset({"log_softmax", "_log_softmax", "special_log_softmax"})
EXPONENTIAL = frozenset({"exp", "exp2", "special_exp2"})
LOG_SUM = frozenset({"logsumexp", "special_logsumexp"})
DIVISION = frozenset({"div", "divide", "true_divide", "__truediv__", "__itruediv__"})
MULTIPLICATION = frozenset({"mul", "multiply", "__mul__", "__rmul__", "__imul__"})
SUBTRACTION = frozenset({"sub", "subtract", "__sub__", "__isub__"})
RECIPROCAL = frozenset({"reciprocal", "__rdiv__", "__rtruediv__"})
MATRIX_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "mm", "linalg_matmul"})
JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
ADDED_PRODUCTS = frozenset({"baddbmm", "addmm"})


class Lineages:
    """What is known of the tensors of a forward pass."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def clear(self) -> None:
        """Forget all tensors."""
        self._known.clear()

    def __getitem__(self, x: Any) -> Known | None:
        found: Known | None = self._known.get(x) if isinstance(x, Tensor) and self._known else None
        return None if isinstance(found, Weights) and found.step.shown() else found

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Use | None:
        """Follow one torch function; what it uses, if it multiplies a distribution by values."""
        name = getattr(func, "__name__", "").partition(".")[0]
        plain = name.rstrip("_") if not name.startswith("__") else name  # in place or not
        if func in OWN or plain in SOFTMAX:
            self._born(output, dim_of(args, kwargs, -1))
        elif plain in LOG_SOFTMAX:
            self._begun(output, axis_from_end(output, args, kwargs), logarithm=True)
        elif plain in LOG_SUM:
            self._sum_logarithmically(args, kwargs, output)
        elif plain in EXPONENTIAL:
            self._exponentiate(self[operands_of(args, kwargs)[0]], output)
        elif self._known:
            return self._follow(plain, args, kwargs, output)
        return None

    def _set(self, x: Any, known: Known) -> None:
        if isinstance(x, Tensor) and x.ndim >= 2:
            self._known[x] = known

    def _begun(self, x: Tensor, axis: int | None, *, logarithm: bool = False) -> None:
        root = Root(size=x.numel(), logarithm=logarithm)
        self._set(x, Weights(root, axis, root))

    def _born(self, x: Tensor, axis: int) -> None:
        axis = axis if axis < 0 else axis - x.ndim
        root = Root(size=x.numel(), distribution=x, axis=axis)
        self._set(x, Weights(root, axis, root))

    def _exponentiate(self, known: Known | None, output: Tensor) -> None:
        if isinstance(known, Weights) and known.root.logarithm and known.axis is not None:
            self._born(output, known.axis)
        else:
            self._begun(output, None)

    def _sum_logarithmically(self, args: Any, kwargs: Any, output: Tensor) -> None:
        (energies, *_) = operands_of(args, kwargs)
        axis = single_axis(dim_of(args, kwargs, None))
        if axis is not None:
            self._set(output, LogTotal(energies, axis if axis < 0 else axis - energies.ndim))

    def _follow(self, name: str, args: Any, kwargs: Any, output: Any) -> Use | None:
        if name == "__setitem__":
            self._written(*args)
            return None
        if not isinstance(output, Tensor):
            if isinstance(output, tuple | list):
                for part in output:
                    self._inherit(operands_of(args, kwargs), part)
            return None
        if name in JOINS:
            self._joined(args, kwargs, output)
            return None
        if name == "einsum":
            return self._summed_products(args[0], flattened(args[1:]), output)
        operands = operands_of(args, kwargs)
        if name in MATRIX_PRODUCTS and len(operands) == 2:
            return self._multiplied(operands, output)
        if name in ADDED_PRODUCTS and len(operands) == 3:
            return self._added(operands, kwargs, output)
        if name in DIVISION and len(operands) == 2:
            return self._divided(operands[0], operands[1], output, inverse=False)
        if name in MULTIPLICATION and len(operands) == 2:
            for x, y in (operands, operands[::-1]):
                if isinstance(total := self[y], Total) and total.inverse:
                    return self._divided(x, y, output, inverse=True)
            self._paired(operands, output)
            return None
        if name == "sum":
            return self._summed(
                operands[0], dim_of(args, kwargs, None), bool(argument(args, kwargs, 2, "keepdim")), output
            )
        if name in SUBTRACTION and len(operands) == 2 and isinstance(total := self[operands[1]], LogTotal):
            if total.energies is operands[0]:
                self._begun(output, total.axis, logarithm=True)
            return None
        if (name in RECIPROCAL or (name == "pow" and args[1] == -1)) and isinstance(total := self[operands[0]], Total):
            self._set(output, replace(total, inverse=not total.inverse))
            return None
        self._inherit(operands, output)
        return None

    def _written(self, target: Tensor, _index: Any, value: Any) -> None:
        """``target[index] = value``; one part of weights after another may be written."""
        known = self[value]
        if known is not None and value.numel() == target.numel():
            self._set(target, known)
        elif isinstance(known, Weights) and known.root.axis is not None and target.ndim >= value.ndim:
            axis = known.axis
            if axis is not None and target.shape[axis] == value.shape[axis]:
                self._born(target, axis)

    def _joined(self, args: Any, kwargs: Any, output: Tensor) -> None:
        """Parts of weights, each a distribution, one after another."""
        parts = [self[x] for x in flattened([argument(args, kwargs, 0, "tensors")])]
        found = {(each.axis, each.root.axis is None) for each in parts if isinstance(each, Weights)}
        if all(isinstance(each, Weights) for each in parts) and len(found) == 1:
            ((axis, exponentials),) = found
            if axis is not None and not exponentials:
                self._born(output, axis)

    def _inherit(self, operands: Sequence[Any], output: Any) -> None:
        """Let a tensor descend from the first operand of which anything is known."""
        for x in operands[:2]:
            known = self[x]
            if isinstance(known, LogTotal | Total):
                self._set(output, known)
            elif isinstance(known, Weights) and _may_be_weights(output, known.root.size):
                self._set(output, Weights(known.root, axis_after(x, known.axis, output), Step(known.step)))
            if known is not None:
                return

    def _use(self, weights: Weights, product: Product | None, output: Tensor) -> Use | None:
        if product is None or weights.root.logarithm:
            return None
        use = Use(weights, product)
        if weights.root.axis is not None:
            return use
        if product.context is output:
            self._set(output, Raw(use))
        return None

    def _multiplied(self, operands: Sequence[Tensor], output: Tensor) -> Use | None:
        for position, x in enumerate(operands):
            if isinstance(known := self[x], Weights):
                product = matrix_product(operands[0], operands[1], position, output)
                return self._use(known, product, output) if _summed_over(known, product) else None
        return None

    def _added(self, operands: Sequence[Tensor], kwargs: Any, output: Tensor) -> Use | None:
        """beta * addend + alpha * left @ right."""
        addend, left, right = operands
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        for position, x in enumerate((left, right)):
            if isinstance(known := self[x], Weights):
                product = matrix_product(left, right, position, left @ right)
                if product is not None and _summed_over(known, product):
                    return self._use(known, replace(product, finish=lambda c: beta * addend + alpha * c), output)
        return None

    def _summed_products(self, equation: str, operands: Sequence[Tensor], output: Tensor) -> Use | None:
        for position, x in enumerate(operands):
            if isinstance(known := self[x], Weights):
                product = sum_of_products(equation, operands, position, output)
                if _summed_over(known, product):
                    return self._use(known, product, output)
                self._inherit([x], output)  # heads are mixed, or axes change their order
                return None
        return None

    def _paired(self, operands: Sequence[Any], output: Tensor) -> None:
        for x, y in (operands, operands[::-1]):
            if isinstance(known := self[x], Weights) and isinstance(y, Tensor) and output.numel() > known.root.size:
                self._set(output, Pair(known, (x, y)))
                return
        self._inherit(operands, output)

    def _summed(self, x: Any, dims: Any, keepdim: bool, output: Tensor) -> Use | None:
        known = self[x]
        if isinstance(known, Pair) and dims is not None and not known.weights.step.shown():
            return self._use(known.weights, broadcast_product(*known.operands, dims, keepdim, output), output)
        if isinstance(known, Weights) and (axis := single_axis(dims)) is not None:
            self._set(output, Total(known.root, axis if axis < 0 else axis - x.ndim))
        return None

    def _divided(self, x: Any, total: Any, output: Tensor, *, inverse: bool) -> Use | None:
        known, divisor = self[x], self[total]
        if isinstance(divisor, Total) and divisor.inverse == inverse:
            if isinstance(known, Weights) and known.root is divisor.root:
                self._born(output, divisor.axis)
                return None
            if isinstance(known, Raw) and known.use.weights.root is divisor.root:
                return replace(known.use, divided=output)
        self._inherit([x, total], output)
        return None


def _may_be_weights(x: Any, size: int) -> bool:
    """Whether something that was made of weights may be weights itself; the places of the largest are none."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.numel() <= size


def _summed_over(known: Weights, product: Product | None) -> bool:
    """Whether a product is a sum over the axis along which its weights are a distribution, as far as that is known."""
    return product is not None and product.arrangement(known.axis) is not None
