"""Forms of attention: the same five steps, wired differently.

============================  ==============================================================================
self                          ``MultiHeadAttention(dim)(x)``: queries, keys and values from one source
cross, distinctive            ``MultiHeadAttention(dim, context_dim)(x, context)``: queries from one source,
                              keys and values from another
single-output                 ``AttentionPool``: one learned query, one context vector
multi-head                    ``heads=`` of every form
multi-dimensional             ``MultiDimensionalAttention``: one weight per feature
hierarchical                  ``HierarchicalAttention``: pools inside groups, then over groups
co-attention                  :mod:`visattn.core.coattention`
============================  ==============================================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.attention import Attention, check_tokens
from visattn.core.distributions import Distribution, as_distribution
from visattn.core.scopes import Scope
from visattn.core.scores import Additive, Score
from visattn.listing import times


class MultiHeadAttention(nn.Module):
    """Attention with learned projections of queries, keys, values and output (Vaswani et al. 2017).

    Args:
        dim: features of the input that queries come from, and of the output.
        context_dim: features of the input that keys and values come from; ``dim`` by default.
        heads: number of heads that share the ``dim`` features.
        score, distribution, scope: as in :class:`Attention`.
        bias: whether the projections have a bias.

    >>> attention = MultiHeadAttention(8, context_dim=6, heads=2)
    >>> attention(torch.randn(1, 3, 8), torch.randn(1, 5, 6)).shape
    torch.Size([1, 3, 8])
    """

    @checked
    def __init__(
        self,
        dim: int,
        context_dim: int | None = None,
        *,
        heads: int = 1,
        score: str | Score = "scaled_dot",
        distribution: str | Distribution = "softmax",
        scope: str | Scope = "global",
        bias: bool = True,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        context_dim = dim if context_dim is None else context_dim
        positive("MultiHeadAttention", dim=dim, context_dim=context_dim)
        self.query = nn.Linear(dim, dim, bias=bias, **factory)
        self.key = nn.Linear(context_dim, dim, bias=bias, **factory)
        self.value = nn.Linear(context_dim, dim, bias=bias, **factory)
        self.out = nn.Linear(dim, dim, bias=bias, **factory)
        self.attend = Attention(dim, score=score, distribution=distribution, scope=scope, heads=heads, **factory)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """What x (..., Nq, dim) collects from the context (..., Nk, context_dim), or from itself."""
        context = self._context(x, context)
        return self.out(self.attend(self.query(x), self.key(context), self.value(context)))

    def attention(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The weights (..., heads, Nq, Nk)."""
        return self.attend.weights(self.query(x), self.key(self._context(x, context)))

    def _context(self, x: Tensor, context: Tensor | None) -> Tensor:
        """What is attended to."""
        context = x if context is None else context
        check_tokens(self.query.in_features, self.key.in_features, query=x, key=context)
        return context


class AttentionPool(nn.Module):
    """Many vectors in, one vector out: a single learned query.

    Args:
        dim: features of the vectors.
        heads, score, distribution, scope: as in :class:`Attention`.

    >>> AttentionPool(8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 8])
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        score: str | Score = "additive",
        distribution: str | Distribution = "softmax",
        scope: str | Scope = "global",
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        positive("AttentionPool", dim=dim)
        self.query = nn.Parameter(torch.empty(1, dim, **factory).normal_(std=dim**-0.5))
        self.attend = Attention(dim, score=score, distribution=distribution, scope=scope, heads=heads, **factory)

    def _queries(self, x: Tensor) -> Tensor:
        check_tokens(self.query.shape[1], self.query.shape[1], query=x, key=x)
        return self.query.expand(*x.shape[:-2], 1, -1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., N, dim) -> (..., dim)."""
        return self.attend(self._queries(x), x).squeeze(-2)

    def attention(self, x: Tensor) -> Tensor:
        """The weights (..., heads, 1, N)."""
        return self.attend.weights(self._queries(x), x)


class HierarchicalAttention(nn.Module):
    """Two levels: vectors are pooled inside each group, the groups' vectors are pooled once more (Yang et al. 2016).

    Args:
        dim: features of the vectors.
        score, distribution: as in :class:`Attention`, for both levels.

    >>> HierarchicalAttention(8)(torch.randn(2, 4, 5, 8)).shape  # 4 groups of 5
    torch.Size([2, 8])
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        score: str = "additive",
        distribution: str | Distribution = "softmax",
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.inner = AttentionPool(dim, score=score, distribution=distribution, **factory)
        self.outer = AttentionPool(dim, score=score, distribution=distribution, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(..., groups, N, dim) -> (..., dim)."""
        return self.outer(self.inner(x))

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights inside the groups (..., groups, N) and of the groups (..., groups)."""
        return self.inner.attention(x).flatten(-3), self.outer.attention(self.inner(x)).flatten(-3)


class MultiDimensionalAttention(nn.Module):
    """One weight per key and feature instead of one per key (Shen et al. 2018, DiSAN).

    Args:
        query_dim: features of a query.
        value_dim: features of a key and of a value; ``query_dim`` by default.
        distribution: over the keys, separately for every feature.

    >>> attention = MultiDimensionalAttention(8)
    >>> x = torch.randn(2, 5, 8)
    >>> attention(x).shape, attention.attention(x).shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 5, 8]))
    """

    @checked
    def __init__(
        self,
        query_dim: int,
        value_dim: int | None = None,
        *,
        distribution: str | Distribution = "softmax",
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        value_dim = query_dim if value_dim is None else value_dim
        self.score = Additive(query_dim, value_dim, features=value_dim, device=device, dtype=dtype)
        self.distribution = as_distribution(distribution)

    def attention(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        """The weights (..., Nq, Nk, features)."""
        key = query if key is None else key
        check_tokens(self.score.query_dim, self.score.key_dim, query=query, key=key)
        return self.distribution(self.score(query, key), dim=-2)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        """Context (..., Nq, features)."""
        key = query if key is None else key
        value = key if value is None else value
        check_tokens(self.score.query_dim, self.score.key_dim, query=query, key=key, value=value)
        if value.shape[-2:] != key.shape[-2:]:
            sizes = times(value.shape[-2:]), times(key.shape[-2:])
            raise ValueError(f"every feature of a key needs a value, got values {sizes[0]} for keys {sizes[1]}")
        return (self.attention(query, key) * value.unsqueeze(-3)).sum(-2)
