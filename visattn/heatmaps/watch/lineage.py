"""Distributions in a forward pass, from where they come into being to where they are multiplied by values.

A distribution is born

- of ``softmax`` and its kin, or one of :mod:`visattn.core.distributions`;
- of exponentials (or another distribution) that are divided by their own sum;
- of the exponential of ``log_softmax``, or of energies less their ``logsumexp``.

It is followed through whatever happens to it (dropout, casts, masks, talking heads, another order of the axes), as long
as it does not become larger: what is larger is no map any more, but what a gate was applied to. In the end it is
multiplied by values (:mod:`visattn.heatmaps.watch.products`), or it was no attention. Exponentials may be multiplied by
values first, and the product divided by their sum.

It may be multiplied more than once, as a whole or part by part. What has been reported is marked, and with it all that
descends from it, since it is there already; its brothers and sisters are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from visattn.core.distributions import entmax15, sigmoid, sparsemax
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
FIRST = ("input", "self", "tensors", "batch1", "mat1")  # names of arguments that come before others


@dataclass(eq=False)
class Step:
    """One tensor of a lineage, without the tensor.

    Args:
        parent: what it was made of.
        reported: whether it was reported as a map.
    """

    parent: Step | None = None
    reported: bool = False

    def shown(self) -> bool:
        """Whether it, or something that it descends from, was reported."""
        return self.reported or (self.parent is not None and self.parent.shown())


@dataclass(eq=False, kw_only=True)
class Root(Step):
    """Where a lineage begins.

    Args:
        size: the number of weights.
        distribution: as it was born; None if these are exponentials that nobody has divided yet,
        axis: and the axis along which it sums to one, from behind.
        logarithm: whether it is the logarithm of a distribution.
    """

    size: int
    distribution: Tensor | TensorWeakRef | None = None
    axis: int | None = None
    logarithm: bool = False

    def used(self) -> Tensor | None:
        """The distribution, if it is still there; from now on it is so only as long as the model itself keeps it."""
        held = self.distribution
        if isinstance(held, Tensor):
            self.distribution = TensorWeakRef(held)
            return held
        return None if held is None else held()


@dataclass(frozen=True)
class Weights:
    """A descendant, and the axis of the keys in it, from behind, if that is known."""

    root: Root
    axis: int | None
    step: Step


@dataclass(frozen=True)
class Total:
    """A descendant summed along an axis; one divided by it, if inverse."""

    root: Root
    axis: int
    inverse: bool = False


@dataclass(frozen=True)
class LogTotal:
    """The logarithm of the sum of the exponentials of energies."""

    energies: Tensor
    axis: int


@dataclass(frozen=True)
class Pair:
    """A descendant times something larger, not summed yet."""

    weights: Weights
    operands: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Raw:
    """Exponentials times values, not divided yet."""

    use: Use


@dataclass(frozen=True)
class Use:
    """A distribution that was multiplied by values.

    Args:
        weights: what is known of the weights in the product.
        product: of weights and values.
        divided: what came of the product, if that was normalised and not the weights.
    """

    weights: Weights
    product: Product
    divided: Tensor | None = None


Known: TypeAlias = Weights | Total | LogTotal | Pair | Raw


class Lineages:
    """What is known of the tensors of a forward pass."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def __getitem__(self, x: Any) -> Known | None:
        found: Known | None = self._known.get(x) if isinstance(x, Tensor) and self._known else None
        return None if isinstance(found, Weights) and found.step.shown() else found

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Use | None:
        """Follow one torch function; what it uses, if it multiplies a distribution by values."""
        name = getattr(func, "__name__", "").partition(".")[0]
        plain = name.rstrip("_") if not name.startswith("__") else name  # in place or not
        if func in OWN or plain in SOFTMAX:
            self._born(output, _dim(args, kwargs, -1))
        elif plain in LOG_SOFTMAX:
            self._begun(output, _behind(output, args, kwargs), logarithm=True)
        elif plain in LOG_SUM:
            self._sum_logarithmically(args, kwargs, output)
        elif plain in EXPONENTIAL:
            self._exponentiate(self[_operands(args, kwargs)[0]], output)
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
        (energies, *_) = _operands(args, kwargs)
        axis = _only(_dim(args, kwargs, None))
        if axis is not None:
            self._set(output, LogTotal(energies, axis if axis < 0 else axis - energies.ndim))

    def _follow(self, name: str, args: Any, kwargs: Any, output: Any) -> Use | None:
        if name == "__setitem__":
            self._written(*args)
            return None
        if not isinstance(output, Tensor):
            if isinstance(output, tuple | list):
                for part in output:
                    self._inherit(_operands(args, kwargs), part)
            return None
        if name in JOINS:
            self._joined(args, kwargs, output)
            return None
        if name == "einsum":
            return self._summed_products(args[0], _flat(args[1:]), output)
        operands = _operands(args, kwargs)
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
                operands[0], _dim(args, kwargs, None), bool(_argument(args, kwargs, 2, "keepdim")), output
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
        parts = [self[x] for x in _flat([_argument(args, kwargs, 0, "tensors")])]
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
                self._set(output, Weights(known.root, _axis_after(x, known.axis, output), Step(known.step)))
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
        if isinstance(known, Weights) and (axis := _only(dims)) is not None:
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


def _axis_after(x: Tensor, axis: int | None, y: Tensor) -> int | None:
    """Where an axis has come to when one tensor was made of another, from behind; None if that is not plain to see."""
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


def _operands(args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """Tensors and numbers that a function was given, in their order."""
    named = [(key, value) for key, value in kwargs.items() if isinstance(value, Tensor) and key != "out"]
    named.sort(key=lambda each: each[0] not in FIRST)
    return [*(x for x in args if isinstance(x, Tensor | float | int)), *(value for _, value in named)]


def _flat(values: Any) -> list[Tensor]:
    return [x for each in values for x in (_flat(each) if isinstance(each, tuple | list) else [each])]


def _argument(args: Any, kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return kwargs.get(name, args[position] if len(args) > position else None)


def _dim(args: Any, kwargs: Mapping[str, Any], default: Any) -> Any:
    dim = _argument(args, kwargs, 1, "dim")
    return default if dim is None or isinstance(dim, torch.dtype) else dim


def _behind(x: Tensor, args: Any, kwargs: Mapping[str, Any]) -> int:
    axis: int = _dim(args, kwargs, -1)
    return axis if axis < 0 else axis - x.ndim


def _only(dims: Any) -> int | None:
    """One axis, however it is given."""
    if isinstance(dims, tuple | list) and len(dims) == 1:
        (dims,) = dims
    return dims if isinstance(dims, int) else None
