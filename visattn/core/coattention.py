r"""Co-attention: two sources that attend to each other.

*Parallel*: both sides at the same time. *Alternating*: one after the other, each step guided by the last.
*Coarse*: one summary vector of a source guides the attention over the other, and one context comes out per side.
*Fine*: every element of one source is compared with every element of the other.

============  ==================================================  ==============================================
              coarse                                              fine
============  ==================================================  ==============================================
parallel      the means guide (after Ma et al. 2017)              affinity matrix (Lu et al. 2016, section 3.3)
alternating   three guided steps (Lu et al. 2016, section 3.3)    every element of a guides, not their summary
============  ==================================================  ==============================================

Guided steps use the additive score. Differences: Lu's released code adds biases to every layer of the affinity form
and dropout, the paper (followed here) has neither; Ma et al. score with tanh(h W t + b).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked
from visattn.core.attention import Attention, check_tokens
from visattn.core.distributions import softmax
from visattn.core.scores import Additive

Grain = Literal["coarse", "fine"]


class CoContext(NamedTuple):
    """Both contexts and both weights; weights are over the elements that the context was collected from."""

    a: Tensor
    b: Tensor
    weights_a: Tensor
    weights_b: Tensor


class _CoAttention(nn.Module):
    """Two sources, their features and the width of the hidden layer; both are ``a_dim`` unless given."""

    def __init__(self, a_dim: int, b_dim: int | None, grain: Grain, hidden: int | None) -> None:
        super().__init__()
        if grain not in ("coarse", "fine"):
            raise ValueError(f"grain is 'coarse' or 'fine', got {grain!r}")
        self.grain = grain
        self.a_dim = a_dim
        self.b_dim = a_dim if b_dim is None else b_dim
        self.hidden = a_dim if hidden is None else hidden


def guided(guide_dim: int, key_dim: int, hidden: int, *, device: Device = None, dtype: DType = None) -> Attention:
    """Attention over keys under a guide: v' tanh(W guide + U key + b)."""
    score = Additive(guide_dim, key_dim, hidden=hidden, device=device, dtype=dtype)
    return Attention(guide_dim, key_dim=key_dim, score=score)


def _attend(attention: Attention, guide: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Guides (..., G, dq) over keys (..., N, dk): contexts (..., G, dk), weights (..., G, N)."""
    context, weights = attention(guide, key, return_weights=True)
    return context, weights.squeeze(-3)


def _mean(tokens: Tensor) -> Tensor:
    """The mean of all tokens, (..., 1, d); zero if there are none."""
    if tokens.shape[-2] == 0:
        return tokens.new_zeros(*tokens.shape[:-2], 1, tokens.shape[-1])
    return tokens.mean(-2, keepdim=True)


class Affinity(nn.Module):
    r"""The affinity matrix of Lu et al. 2016 and the two attentions that follow from it.

    .. math::
        C = \tanh(A W_c B^\top),\quad
        H_a = \tanh(A W_a^\top + C\, B W_b^\top),\quad
        H_b = \tanh(B W_b^\top + C^\top A W_a^\top),\quad
        \alpha_a = \mathrm{softmax}(H_a v_a),\quad \alpha_b = \mathrm{softmax}(H_b v_b)
    """

    def __init__(self, a_dim: int, b_dim: int, hidden: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.w_c = nn.Parameter(torch.empty(a_dim, b_dim, **factory).uniform_(-(a_dim**-0.5), a_dim**-0.5))
        self.w_a = nn.Linear(a_dim, hidden, bias=False, **factory)
        self.w_b = nn.Linear(b_dim, hidden, bias=False, **factory)
        self.v_a = nn.Linear(hidden, 1, bias=False, **factory)
        self.v_b = nn.Linear(hidden, 1, bias=False, **factory)

    def forward(self, a: Tensor, b: Tensor) -> CoContext:
        """One context per source."""
        affinity = torch.tanh(a @ self.w_c @ b.mT)  # (..., Na, Nb)
        from_a, from_b = self.w_a(a), self.w_b(b)
        weights_a = softmax(self.v_a(torch.tanh(from_a + affinity @ from_b)).squeeze(-1))
        weights_b = softmax(self.v_b(torch.tanh(from_b + affinity.mT @ from_a)).squeeze(-1))
        context_a = (weights_a.unsqueeze(-1) * a).sum(-2)
        context_b = (weights_b.unsqueeze(-1) * b).sum(-2)
        return CoContext(context_a, context_b, weights_a, weights_b)


class ParallelCoAttention(_CoAttention):
    """Both sources attend to each other at the same time.

    Args:
        a_dim: features of the first source.
        b_dim: features of the second; the same unless given.
        grain: ``"fine"`` compares element with element, ``"coarse"`` lets the mean of one guide the other.
        hidden: width of the hidden layer; ``a_dim`` unless given.

    >>> a, b = torch.randn(2, 5, 8), torch.randn(2, 7, 6)
    >>> out = ParallelCoAttention(8, 6)(a, b)
    >>> out.a.shape, out.weights_b.shape
    (torch.Size([2, 8]), torch.Size([2, 7]))
    """

    @checked
    def __init__(
        self,
        a_dim: int,
        b_dim: int | None = None,
        *,
        grain: Grain = "fine",
        hidden: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(a_dim, b_dim, grain, hidden)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if grain == "fine":
            self.affinity = Affinity(a_dim, self.b_dim, self.hidden, **factory)
        else:
            self.over_a = guided(self.b_dim, a_dim, self.hidden, **factory)
            self.over_b = guided(a_dim, self.b_dim, self.hidden, **factory)

    def forward(self, a: Tensor, b: Tensor) -> CoContext:
        """Contexts (..., a_dim) and (..., b_dim) with their weights."""
        check_tokens(self.a_dim, self.b_dim, query=a, key=b)
        if self.grain == "fine":
            return self.affinity(a, b)
        context_a, weights_a = _attend(self.over_a, _mean(b), a)
        context_b, weights_b = _attend(self.over_b, _mean(a), b)
        return CoContext(*(x.squeeze(-2) for x in (context_a, context_b, weights_a, weights_b)))


class AlternatingCoAttention(_CoAttention):
    """The sources attend in turn.

    Coarse: a is summed up without a guide; that summary guides the look at b; b's context guides a second look at a.
    Fine: the same two looks, guided by every element of a separately.

    Args:
        a_dim: features of the first source.
        b_dim: features of the second; the same unless given.
        grain: ``"coarse"`` or ``"fine"``.
        hidden: width of the hidden layer; ``a_dim`` unless given.

    >>> a, b = torch.randn(2, 5, 8), torch.randn(2, 7, 6)
    >>> AlternatingCoAttention(8, 6)(a, b).b.shape
    torch.Size([2, 6])
    >>> AlternatingCoAttention(8, 6, grain="fine")(a, b).b.shape  # what each of the 5 found in b
    torch.Size([2, 5, 6])
    """

    @checked
    def __init__(
        self,
        a_dim: int,
        b_dim: int | None = None,
        *,
        grain: Grain = "coarse",
        hidden: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(a_dim, b_dim, grain, hidden)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if grain == "coarse":
            self.summary = guided(a_dim, a_dim, self.hidden, **factory)
        self.over_b = guided(a_dim, self.b_dim, self.hidden, **factory)
        self.over_a = guided(self.b_dim, a_dim, self.hidden, **factory)

    def forward(self, a: Tensor, b: Tensor) -> CoContext:
        """Contexts and weights; one of each for every element of a when fine."""
        check_tokens(self.a_dim, self.b_dim, query=a, key=b)
        guide = a
        if self.grain == "coarse":
            nothing = a.new_zeros(*a.shape[:-2], 1, self.a_dim)
            guide, _ = _attend(self.summary, nothing, a)
        context_b, weights_b = _attend(self.over_b, guide, b)
        context_a, weights_a = _attend(self.over_a, context_b, a)
        out = (context_a, context_b, weights_a, weights_b)
        return CoContext(*(x.squeeze(-2) for x in out)) if self.grain == "coarse" else CoContext(*out)
