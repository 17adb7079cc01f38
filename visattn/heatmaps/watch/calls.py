"""One use of attention: its weights, values and result, and where they are in the model's graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from visattn.core.distributions import softmax
from visattn.core.precision import precise

EVERY = slice(None)


@dataclass
class Call(ABC):
    """One use of attention.

    Args:
        name: of the module in which it happened.
        value: (..., Nk, d), the values,
        output: (..., Nq, d), and the result; both are part of the model's own graph.
    """

    name: str
    value: Tensor
    output: Tensor

    @abstractmethod
    def rows(self) -> Tensor:
        """A tensor (..., Nq, *) of which every row belongs to one query."""

    @abstractmethod
    def weights(self, rows: slice = EVERY) -> Tensor:
        """(..., Nq, Nk), or only some of the rows, at least in single precision."""

    @abstractmethod
    def gradient(self, of: Tensor, rows: slice = EVERY) -> Tensor:
        """The derivative of a scalar with respect to these weights, given the one for :meth:`leaf`."""

    @abstractmethod
    def leaf(self) -> Tensor:
        """The tensor of the model's graph that the derivative must be taken for first."""


@dataclass
class Fused(Call):
    """A call of the fused kernel. The weights are computed on demand."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    def rows(self) -> Tensor:
        """The queries."""
        return self.query

    def weights(self, rows: slice = EVERY) -> Tensor:
        """softmax(scale q·k + mask)."""
        energies = self.energies(rows)
        if self.causal:
            future = torch.arange(energies.shape[-1], device=energies.device) > self.numbers(rows)[:, None]
            energies = energies.masked_fill(future, -torch.inf)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., rows, :]
            energies = energies.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else energies + mask
            return softmax(energies)  # a query that sees nothing gets nothing, as from the kernel
        energies -= energies.amax(-1, keepdim=True)  # in place: there may be many of them,
        energies.exp_()
        energies /= energies.sum(-1, keepdim=True)  # and every query sees a key
        return energies

    def energies(self, rows: slice) -> Tensor:
        """scale q·k of some of the queries."""
        query, key = precise(self.query[..., rows, :]), precise(self.key)
        return (query * self.scale) @ shared_heads(key, query).mT

    def numbers(self, rows: slice) -> Tensor:
        """The indices of these queries."""
        return torch.arange(self.query.shape[-2], device=self.query.device)[rows]

    def leaf(self) -> Tensor:
        """The context: context = weights @ values."""
        return self.output

    def gradient(self, of: Tensor, rows: slice = EVERY) -> Tensor:
        """From that of the context: dy/dA = dy/dO V'."""
        return precise(of[..., rows, :]) @ shared_heads(precise(self.value), self.query).mT


@dataclass
class Flexible(Fused):
    """A call of ``flex_attention``, in which a function changes the energies and another one hides keys."""

    changed: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    visible: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def weights(self, rows: slice = EVERY) -> Tensor:
        """softmax(changed(scale q·k))."""
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # slow, but there by now

        energies = self.energies(rows)
        images, heads, _, keys = (torch.arange(n, device=energies.device) for n in energies.shape)
        places = images, heads, self.numbers(rows), keys
        with TransformGetItemToIndex():  # lets the two functions index tensors of their own
            seen = _at_every_place(self.visible, ())(*places)
            energies = _at_every_place(self.changed, (0,))(energies, *places)
        return softmax(energies.masked_fill(~seen, -torch.inf))


def _at_every_place(function: Callable[..., Tensor], own: tuple[int, ...]) -> Callable[..., Tensor]:
    """A function of image, head, query and key, and of energies first if own is (0,), for all of them at once."""
    for axis in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=(*own, *(0 if each == axis else None for each in range(4))))
    return function


@dataclass
class Unfused(Call):
    """A product of weights and values, written out.

    Args:
        source: the weights, as they are in the model's graph.
        view: (..., Nq, Nk) of a tensor like them.
    """

    source: Tensor
    view: Callable[[Tensor], Tensor]

    def rows(self) -> Tensor:
        """The weights themselves."""
        return self.view(self.source)

    def weights(self, rows: slice = EVERY) -> Tensor:
        """As the model computed them."""
        return precise(self.rows()[..., rows, :])

    def leaf(self) -> Tensor:
        """The weights."""
        return self.source

    def gradient(self, of: Tensor, rows: slice = EVERY) -> Tensor:
        """The one of the weights."""
        return precise(self.view(of)[..., rows, :])


@dataclass
class Divided(Unfused):
    """A product of exponentials (the source) and values, which is divided by their sum afterwards.

    Args:
        result: the quotient, as it is in the model's graph.
        arranged: (..., Nq, d) of a tensor like it.
    """

    result: Tensor
    arranged: Callable[[Tensor], Tensor]

    def weights(self, rows: slice = EVERY) -> Tensor:
        """The exponentials, divided by their sum."""
        exponentials = super().weights(rows)
        return exponentials / exponentials.sum(-1, keepdim=True)

    def leaf(self) -> Tensor:
        """The context: context = weights @ values."""
        return self.result

    def gradient(self, of: Tensor, rows: slice = EVERY) -> Tensor:
        """From that of the context: dy/dA = dy/dO V'."""
        return precise(self.arranged(of)[..., rows, :]) @ precise(self.value).mT


def shared_heads(tokens: Tensor, query: Tensor) -> Tensor:
    """Keys or values repeated for grouped queries; a single head is left to broadcasting."""
    if tokens.ndim > 3 and tokens.shape[-3] not in (1, query.shape[-3]):
        return tokens.repeat_interleave(query.shape[-3] // tokens.shape[-3], dim=-3)
    return tokens


def fused_call(
    name: str,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Fused:
    """What the fused kernel was given; the arguments are those of torch's function."""
    del dropout_p, enable_gqa  # weights are those before dropout; grouped queries show in the shapes
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Fused(name, value, output, query, key, attn_mask, is_causal, scale)


def flexible_call(
    name: str,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    *_: Any,
) -> Flexible:
    """What ``flex_attention`` gives to its operator."""
    return Flexible(name, value, output, query, key, None, False, scale, score_mod, block_mask[-1])
