"""Products of weights and values, however they are written: which axes are queries, keys and channels.

Every way to write one (``@``, ``bmm``, ``einsum``, a broadcast product that is then summed) is a sum over axes that
have names here, as in ``einsum``. Of the axes of the weights

- those that are summed with the values are the keys,
- the last that the values do not have is the query (or the one that is as long as the keys, if there is just one),
- all others lead: batch, heads, windows.

Axes that only the values have are channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Axes: TypeAlias = tuple[Hashable, ...]  # a name for each axis of a tensor; None for one of length one that is not used


@dataclass(frozen=True)
class Product:
    """Weights times values.

    Args:
        weights, values, context: the two operands and their product,
        axes: and the names of their axes.
        finish: what the function returns, given the product.
    """

    weights: Tensor
    values: Tensor
    context: Tensor
    axes: tuple[Axes, Axes, Axes]
    finish: Callable[[Tensor], Tensor]

    def arrangement(self, axis: int | None) -> Arrangement | None:
        """What the axes are, if weights are a distribution along an axis; None if this is no attention.

        The axis that is summed must be the one of the distribution: a product along another one mixes heads.
        """
        weights, values, context = self.axes
        summed = [a for a in weights if a is not None and a in values and a not in context]
        keys = summed if axis is None else [a for a in summed if a == weights[axis]]
        if not keys:
            return None
        length = torch.Size(self.weights.shape[weights.index(a)] for a in keys).numel()
        alone = [a for a in weights if a is not None and a not in values and a in context]
        as_long = [a for a in alone if self.weights.shape[weights.index(a)] == length]
        query = (as_long if len(as_long) == 1 else alone)[-1:]
        channels = [a for a in values if a is not None and a not in weights and a in context]
        if not query and len(channels) != 1:
            return None  # branches of a network, selected
        leading = [a for a in weights if a is not None and a not in keys and a not in query]
        return Arrangement(self, leading, query, keys, channels)


@dataclass(frozen=True)
class Arrangement:
    """The names of the axes of a product, by what they stand for."""

    product: Product
    leading: list[Hashable]
    query: list[Hashable]
    keys: list[Hashable]
    channels: list[Hashable]

    def weights(self, x: Tensor) -> Tensor:
        """(..., Nq, Nk) of a tensor like the weights."""
        return _arranged(x, self.product.axes[0], [*self._leading(), self.query, self.keys])

    def values(self) -> Tensor:
        """(..., Nk, d)."""
        return _arranged(self.product.values, self.product.axes[1], [*self._leading(), self.keys, self.channels])

    def context(self, x: Tensor) -> Tensor:
        """(..., Nq, d) of a tensor like the product."""
        return _arranged(x, self.product.axes[2], [*self._leading(), self.query, self.channels])

    def restore(self, changed: Tensor) -> Tensor:
        """A tensor like the product, given one (..., Nq, d)."""
        axes, like = self.product.axes[2], self.product.context
        order = [a for a in (*self.leading, *self.query, *self.channels) if a in axes]
        plain = changed.reshape([like.shape[axes.index(a)] for a in order])
        return plain.permute([order.index(a) for a in axes if a is not None]).reshape(like.shape)

    def _leading(self) -> list[list[Hashable]]:
        return [[a] for a in self.leading]


def _arranged(x: Tensor, axes: Axes, groups: list[list[Hashable]]) -> Tensor:
    """A view with one axis for every group of names; of length one if the tensor has none of them."""
    x = x.squeeze([i for i, a in enumerate(axes) if a is None])
    named = [a for a in axes if a is not None]
    order = [named.index(a) for group in groups for a in group if a in named]
    if order != sorted(order):
        x = x.permute(order)
    for position, group in enumerate(groups):
        number = sum(a in named for a in group)
        if number == 0:
            x = x.unsqueeze(position)
        elif number > 1:
            x = x.flatten(position, position + number - 1)
    return x


def _itself(context: Tensor) -> Tensor:
    return context


def matrix_product(left: Tensor, right: Tensor, position: int, context: Tensor) -> Product | None:
    """``left @ right``, of which the operand at that position are the weights."""
    if left.ndim < 2 or (position == 1 and right.ndim < 2):
        return None
    batch = tuple(range(max(left.ndim, right.ndim) - 2))
    rows: Axes = (*batch[len(batch) - left.ndim + 2 :], "row", "inner")
    columns: Axes = (*batch[len(batch) - right.ndim + 2 :], "inner", "column") if right.ndim > 1 else ("inner",)
    result: Axes = (*batch, "row", "column") if right.ndim > 1 else (*batch, "row")
    if position == 0:
        return Product(left, right, context, (rows, columns, result), _itself)
    return Product(right, left, context, (columns, rows, result), _itself)


def sum_of_products(equation: str, operands: Sequence[Tensor], position: int, output: Tensor) -> Product | None:
    """``einsum``, of which the operand at that position are the weights.

    With more than two operands the values are the first other one that is summed with the weights, and the rest is done
    to the product.
    """
    named = named_axes(equation, [x.ndim for x in operands])
    if named is None or len(operands) < 2:
        return None
    *inputs, result = named
    rest = [i for i in range(len(operands)) if i != position]
    partner = next((i for i in rest if set(inputs[i]) & set(inputs[position]) - set(result)), None)
    if partner is None:
        return None
    weights, values = operands[position], operands[partner]
    if len(operands) == 2:
        return Product(weights, values, output, (inputs[position], inputs[partner], result), _itself)
    rest.remove(partner)
    needed = {*result, *(a for i in rest for a in inputs[i])}
    between = tuple(a for a in dict.fromkeys((*inputs[position], *inputs[partner])) if a in needed)
    numbers = {a: n for n, a in enumerate(dict.fromkeys(a for axes in named for a in axes))}

    def listed(axes: Axes) -> list[int]:
        return [numbers[a] for a in axes]

    def finish(context: Tensor) -> Tensor:
        others = [each for i in rest for each in (operands[i], listed(inputs[i]))]
        return torch.einsum(context, listed(between), *others, listed(result))

    context = torch.einsum(weights, listed(inputs[position]), values, listed(inputs[partner]), listed(between))
    return Product(weights, values, context, (inputs[position], inputs[partner], between), finish)


def named_axes(equation: str, dimensions: Sequence[int]) -> list[Axes] | None:
    """The names of the axes of every operand of ``einsum`` and of its result; None if a name is there twice.

    >>> named_axes("...ij, jk", [3, 2])
    [((0, '...'), 'i', 'j'), ('j', 'k'), ((0, '...'), 'i', 'k')]
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [n - len(term.replace("...", "")) for n, term in zip(dimensions, terms, strict=True)]
    most = max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)

    def expanded(term: str, number: int) -> Axes:
        before, dots, after = term.partition("...")
        return (*before, *((k, "...") for k in range(most - number, most) if dots), *after)

    inputs = [expanded(term, number) for term, number in zip(terms, hidden, strict=True)]
    if arrow:
        result = expanded(right, most)
    else:
        count = Counter(a for axes in inputs for a in axes if isinstance(a, str))
        result = expanded("..." + "".join(sorted(a for a, number in count.items() if number == 1)), most)
    named = [*inputs, result]
    return named if all(len(set(axes)) == len(axes) for axes in named) else None


def broadcast_product(weights: Tensor, values: Tensor, dims: Any, keepdim: bool, context: Tensor) -> Product | None:
    """``(weights * values).sum(dims)``; None unless the one lacks channels and the other queries.

    (A selection of branches of a network lacks neither: it has one weight for every number of a feature map.)
    """
    number = max(weights.ndim, values.ndim)

    def names(x: Tensor, other: Tensor) -> list[Hashable]:
        own, others = ((1,) * (number - each.ndim) + tuple(each.shape) for each in (x, other))
        every: list[Hashable] = [
            None if n == 1 and m > 1 else i for i, (n, m) in enumerate(zip(own, others, strict=True))
        ]
        return every[number - x.ndim :]

    first, second = tuple(names(weights, values)), tuple(names(values, weights))
    summed = {d % number for d in ([dims] if isinstance(dims, int) else dims)}
    result: list[Hashable] = [None if i in summed else i for i in range(number)]
    result = result if keepdim else [a for a in result if a is not None]
    known = {a for a in (*first, *second) if a is not None}
    result = [a if a in known else None for a in result]
    alone = [a for a in first if a is not None and a not in second and a not in summed]
    channels = [a for a in second if a is not None and a not in first]
    if not alone or not channels:
        return None
    return Product(weights, values, context, (first, second, tuple(result)), _itself)
