"""The unified attention model: keys, queries, values -> score -> distribution -> scope -> context."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.distributions import Distribution, as_distribution, softmax
from visattn.core.energies import dot
from visattn.core.scopes import SCOPES, LocalPredictive, Scope
from visattn.core.scores import SCORES, DotScore, Score


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., N, heads·d) -> (..., heads, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """(..., heads, N, d) -> (..., N, heads·d)."""
    return x.transpose(-3, -2).flatten(-2)


def fused_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """softmax(scale q·k) v on PyTorch's fused kernel, also for inputs that it would otherwise compute unfused.

    The kernel needs the features of a token to be contiguous in memory, and values as wide as keys; other widths are
    padded with zeros, which does not change the result.
    """
    width = value.shape[-1]
    missing = key.shape[-1] - width
    if missing > 0:
        value = F.pad(value, (0, missing))
    elif missing < 0:
        query, key = F.pad(query, (0, -missing)), F.pad(key, (0, -missing))
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return context[..., :width] if missing > 0 else context


def attention_weights(query: Tensor, key: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
    """The weights that :func:`fused_attention` never holds, softmax(scale q·k), in single precision at least."""
    energies = dot(query, key) * scale
    return softmax(energies if mask is None else energies.masked_fill(~mask, -torch.inf))


def check_tokens(query_dim: int, key_dim: int, **tokens: Tensor) -> None:
    """Raise unless queries and keys are floating-point tensors of the right width, in one place.

    Args:
        query_dim, key_dim: how many features they must have.
        **tokens: ``query``, ``key`` and, if there is one, ``value``.
    """
    query = tokens["query"]
    for name, each in tokens.items():
        dense = isinstance(each, Tensor) and each.layout is torch.strided and not each.is_nested
        if not dense or each.ndim < 2:
            got = tuple(each.shape) if dense else type(each).__name__
            raise TypeError(f"{name} is a tensor (..., tokens, features), got {got}")
        if not each.is_floating_point():
            raise TypeError(f"{name} is a tensor of floating-point numbers, got {each.dtype}")
        if each.device != query.device:
            raise ValueError(f"the query is on {query.device}, but the {name} on {each.device}")
        if each.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"the query is of {query.dtype}, but the {name} of {each.dtype}")
        sizes = zip(query.shape[-3::-1], each.shape[-3::-1], strict=False)  # of the batch, from the right
        if any(ours != theirs and 1 not in (ours, theirs) for ours, theirs in sizes):
            raise ValueError(f"the batches do not fit: query {tuple(query.shape)}, {name} {tuple(each.shape)}")
    widths = query.shape[-1], tokens["key"].shape[-1]
    if widths != (query_dim, key_dim):
        raise ValueError(
            f"built for queries of {query_dim} and keys of {key_dim} features, got {widths[0]} and {widths[1]}"
        )


def _check_bias(bias: Tensor) -> None:
    """Raise for what is no bias: a mask of booleans would be added as zeros and ones."""
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise TypeError(f"a bias is added to the energies: a tensor of floating-point numbers, got {got}")


class Attention(nn.Module):
    """Attention without projections: what the queries collect from the values.

    Everything is chosen by name (or given as a ready-made module): ``score`` from :data:`SCORES`,
    ``distribution`` from :data:`DISTRIBUTIONS`, ``scope`` from :data:`SCOPES`. A module is given where options are
    needed: ``score=SCORES["location"](64, num_keys=196)``, ``scope=Local(radius=5)``. With a dot-product score, softmax
    and a scope without gain it runs on the fused kernel and never holds the weights; they are computed when asked for.

    Args:
        query_dim: features of a query, over all heads.
        key_dim: features of a key, over all heads; by default as many as the query has.
        score: how a key answers a query.
        distribution: how energies become weights.
        scope: which keys a query may see.
        heads: number of consecutive groups of features, each of which attends separately with the same score.

    >>> x = torch.randn(2, 5, 8)
    >>> attention = Attention(8, score="additive", distribution="sparsemax", heads=2)
    >>> context, weights = attention(x, return_weights=True)
    >>> context.shape, weights.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 5, 5]))
    """

    @checked
    def __init__(
        self,
        query_dim: int,
        *,
        key_dim: int | None = None,
        score: str | Score = "scaled_dot",
        distribution: str | Distribution = "softmax",
        scope: str | Scope = "global",
        heads: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        positive("Attention", query_dim=query_dim, key_dim=key_dim, heads=heads)
        if query_dim % heads or key_dim % heads:
            raise ValueError(f"{heads} heads do not divide queries of {query_dim} and keys of {key_dim} features")
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.heads = heads
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if isinstance(score, str):
            if score == "location":
                raise ValueError(
                    "score 'location' has a fixed number of keys: give SCORES['location'](dim, num_keys=...)"
                )
            score = SCORES[score](query_dim // heads, key_dim // heads, **factory)
        if isinstance(scope, str):
            kind = SCOPES[scope]
            scope = kind(query_dim // heads, **factory) if kind is LocalPredictive else kind()
        if not isinstance(score, Score):
            raise TypeError(f"score is a name, or a Score such as Additive({query_dim // heads}), got {score!r}")
        if not isinstance(scope, Scope):
            raise TypeError(f"scope is a name, or a Scope such as Local(2), got {scope!r}")
        if (score.query_dim, score.key_dim) != (query_dim // heads, key_dim // heads):
            raise ValueError(
                f"the score was built for queries of {score.query_dim} and keys of {score.key_dim} features, but "
                f"a head has {query_dim // heads} and {key_dim // heads}"
            )
        if isinstance(scope, LocalPredictive) and scope.w.in_features != query_dim // heads:
            raise ValueError(
                f"the scope was built for queries of {scope.w.in_features} features, but a head has "
                f"{query_dim // heads}"
            )
        self.score = score
        self.distribution = as_distribution(distribution)
        self.scope = scope

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The attention weights (..., heads, Nq, Nk)."""
        check_tokens(self.query_dim, self.key_dim, query=query, key=key)
        return self.head_weights(split_heads(query, self.heads), split_heads(key, self.heads))

    def head_weights(self, query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
        """The weights (..., heads, Nq, Nk) of queries and keys that are already split, (..., heads, N, d).

        ``bias`` is added to the energies: relative positions, or minus infinity for what must not be seen.
        """
        mask, gain = self.scope(query, key.shape[-2])
        energies = self.score(query, key)
        if bias is not None:
            _check_bias(bias)
            energies = energies + bias
        if mask is not None:
            energies = energies.masked_fill(~mask, -torch.inf)
        weights = self.distribution(energies)
        if not isinstance(weights, Tensor) or weights.shape != energies.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(
                f"the distribution must keep the shape of the energies, {tuple(energies.shape)}, got {got}"
            )
        return (weights if gain is None else weights * gain).to(query.dtype)

    def head_context(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """The context (..., heads, Nq, d) of what is already split into heads."""
        if isinstance(self.score, DotScore) and self.distribution is softmax:
            mask, gain = self.scope(query, key.shape[-2])
            if gain is None:
                if bias is not None:
                    _check_bias(bias)
                    mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
                query, key, scale = self.score.dot_form(query, key)
                return fused_attention(query, key, value, scale=scale, mask=mask)
        return self.head_weights(query, key, bias) @ value

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = ...,
        value: Tensor | None = ...,
        *,
        return_weights: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = ...,
        value: Tensor | None = ...,
        *,
        return_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Context (..., Nq, dv), and the weights (..., heads, Nq, Nk) when asked for.

        Without keys the queries attend to themselves; without values the keys are the values.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_tokens(self.query_dim, self.key_dim, query=query, key=key, value=value)
        if value.shape[-1] % self.heads:
            raise ValueError(f"{self.heads} heads do not divide values of {value.shape[-1]} features")
        if key.shape[-2] != value.shape[-2]:
            raise ValueError(f"every key needs a value, got {key.shape[-2]} keys and {value.shape[-2]} values")
        query, key, value = (split_heads(x, self.heads) for x in (query, key, value))
        if not return_weights:
            return merge_heads(self.head_context(query, key, value))
        weights = self.head_weights(query, key)
        return merge_heads(weights @ value), weights

    def extra_repr(self) -> str:
        """Heads and distribution, for print(model)."""
        name = getattr(self.distribution, "__name__", type(self.distribution).__name__)
        return f"heads={self.heads}, distribution={name}"
