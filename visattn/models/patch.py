r"""Patch attention: the self-attention of a vision transformer with other scores, distributions and scopes.

Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021, https://arxiv.org/abs/2010.11929

.. math:: z = W_o\, [\, g(f(q_h, k_h))\, v_h\, ]_{h}, \qquad [q, k, v] = W_{qkv}\, x

With the scaled dot product f and the softmax g this is timm's ``Attention``, to rounding and at the same cost. Rotary
position embeddings (EVA) and relative position biases (BEiT) are applied as there.

>>> import torch
>>> attention = PatchAttention(64, num_heads=4, score="cosine", distribution="sparsemax")
>>> tokens = torch.randn(2, 197, 64)
>>> attention(tokens).shape, attention.attention(tokens).shape
(torch.Size([2, 197, 64]), torch.Size([2, 4, 197, 197]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention as TimmAttention
from timm.layers.attention import AttentionRope
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from visattn.core import Attention, Score
from visattn.core.distributions import Distribution
from visattn.core.scopes import Local2d, Scope, View, Window2d, causal
from visattn.models.image_shape import ImageShape
from visattn.models.layout import Place


class PatchScope(Scope):
    """A 2-D scope over the patches; prefix tokens see, and are seen by, all tokens.

    Args:
        kind: ``local_2d`` or ``window_2d``.
        prefix: number of class, distillation and register tokens in front.
        image: the shape of the network's images.
        patches: how many there are of an image.
        **options: radius or size of the window.
    """

    def __init__(self, kind: str, prefix: int, image: ImageShape, patches: Place, **options: Any) -> None:
        super().__init__()
        self.inner = Local2d(**options) if kind == "local_2d" else Window2d(**options)
        self.prefix = prefix
        self.image = image
        self.patches = patches

    def forward(self, query: Tensor, num_keys: int) -> View:
        """The inner mask with a margin for the prefix."""
        mask = self.inner.mask(*self.image.grid(num_keys - self.prefix, self.patches), device=query.device)
        return View(F.pad(mask, (self.prefix, 0, self.prefix, 0), value=True))


class Patch(nn.Module):
    """The forward pass that replaces that of timm's attention modules; weights and their names stay timm's.

    ``visattn`` is the attention itself. The other attributes are those of the timm class that this is mixed into.
    """

    visattn: Attention
    options: dict[str, Any]  # those of swap_attention

    # timm's; not every class has all of them
    num_heads: int
    num_kv_groups: int
    num_prefix_tokens: int
    qkv: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    q_bias: Any
    k_bias: Any
    v_bias: Any
    q_norm: Any
    k_norm: Any
    norm: Any
    gate: Any
    proj: Any
    attn_drop: Any
    proj_drop: Any

    def _project(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, heads, N, d)."""
        if self.qkv is not None:
            qkv = self.qkv(x)
            if getattr(self, "q_bias", None) is not None:
                qkv = qkv + torch.cat([self.q_bias, self.k_bias, self.v_bias]).to(qkv.dtype)
            query, key, value = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            projections = self.q_proj, self.k_proj, self.v_proj
            heads = self.num_heads, *[getattr(self, "num_kv_heads", self.num_heads)] * 2
            query, key, value = (
                projection(x).unflatten(-1, (number, -1)).transpose(1, 2)
                for projection, number in zip(projections, heads, strict=True)
            )
        if not isinstance(self, BeitAttention):
            query, key = self.q_norm(query), self.k_norm(key)
        if rope is not None:
            query, key = (self._rotate(tokens, rope).type_as(value) for tokens in (query, key))
        if key.shape[1] < query.shape[1]:  # grouped queries share keys and values
            key, value = (tokens.repeat_interleave(self.num_kv_groups, dim=1) for tokens in (key, value))
        return query, key, value

    def _rotate(self, tokens: Tensor, rope: Tensor) -> Tensor:
        prefix, patches = tokens[:, :, : self.num_prefix_tokens], tokens[:, :, self.num_prefix_tokens :]
        half = getattr(self, "rotate_half", False)
        return torch.cat([prefix, apply_rot_embed_cat(patches, rope, half=half)], dim=2)

    def _attend(self, x: Tensor, rope: Tensor | None, bias: Tensor | None) -> Tensor:
        query, key, value = self._project(x, rope)
        if self.training and self.attn_drop.p > 0:
            context = self.attn_drop(self.visattn.head_weights(query, key, bias)) @ value
        else:
            context = self.visattn.head_context(query, key, value, bias)
        out = context.transpose(1, 2).flatten(2)  # (B, N, heads·d)
        if not isinstance(self, BeitAttention):
            out = self.norm(out)
            if self.gate is not None:
                out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))

    def _weights(self, x: Tensor, rope: Tensor | None, bias: Tensor | None) -> Tensor:
        query, key, _ = self._project(x, rope)
        return self.visattn.head_weights(query, key, bias)


def _as_bias(mask: Tensor | None, is_causal: bool, x: Tensor) -> Tensor | None:
    """timm's masks (true = visible, or additive) as a bias on the energies."""
    if is_causal:
        visible = causal(x.shape[1], x.shape[1], device=x.device)
        mask = (
            visible if mask is None else mask & visible if mask.dtype == torch.bool else mask.where(visible, -torch.inf)
        )
    if mask is not None and mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
    return mask


class PatchAttention(Patch, TimmAttention):
    """A drop-in for timm's ``Attention``.

    Args:
        dim: features of a token.
        num_heads: must divide the features.
        score, distribution, scope: as in :class:`visattn.core.Attention`.
        **timm_kwargs: ``qkv_bias``, ``qk_norm``, ``proj_drop``, ... of timm's ``Attention``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        score: str | Score = "scaled_dot",
        distribution: str | Distribution = "softmax",
        scope: str | Scope = "global",
        **timm_kwargs: Any,
    ) -> None:
        super().__init__(dim, num_heads, **timm_kwargs)
        self.visattn = attention_for(self, score, distribution, scope)
        self.options = {"score": score, "distribution": distribution, "scope": scope}

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, N, dim) -> (B, N, dim)."""
        return self._attend(x, None, _as_bias(attn_mask, is_causal, x))

    def attention(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """The weights (B, heads, N, N) of a forward pass, prefix tokens included."""
        return self._weights(x, None, _as_bias(attn_mask, is_causal, x))


class PatchAttentionRope(Patch, AttentionRope):
    """A drop-in for timm's ``AttentionRope``."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """(B, N, dim) -> (B, N, dim)."""
        return self._attend(x, rope, _as_bias(attn_mask, is_causal, x))

    def attention(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The weights (B, heads, N, N) of a forward pass, prefix tokens included."""
        return self._weights(x, rope, _as_bias(attn_mask, is_causal, x))


class PatchEvaAttention(Patch, EvaAttention):
    """A drop-in for timm's ``EvaAttention``."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """(B, N, dim) -> (B, N, dim)."""
        return self._attend(x, rope, _as_bias(attn_mask, is_causal, x))

    def attention(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The weights (B, heads, N, N) of a forward pass, prefix tokens included."""
        return self._weights(x, rope, _as_bias(attn_mask, is_causal, x))


class PatchBeitAttention(Patch, BeitAttention):
    """A drop-in for the attention of timm's BEiT, with its relative position bias."""

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """(B, N, dim) -> (B, N, dim)."""
        return self._attend(x, None, self._bias(shared_rel_pos_bias))

    def attention(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """The weights (B, heads, N, N) of a forward pass, prefix tokens included."""
        return self._weights(x, None, self._bias(shared_rel_pos_bias))

    def _bias(self, shared: Tensor | None) -> Tensor | None:
        if self.relative_position_bias_table is None:
            return shared
        return self._get_rel_pos_bias() if shared is None else self._get_rel_pos_bias() + shared


def attention_for(module: Any, score: str | Score, distribution: str | Distribution, scope: str | Scope) -> Attention:
    """The attention that takes the place of a timm module's own."""
    weight = module.proj.weight
    weight = weight if isinstance(weight, Tensor) else torch.empty(())  # of a quantised layer it is a method
    return Attention(
        module.proj.in_features,
        score=score,
        distribution=distribution,
        scope=scope,
        heads=module.num_heads,
        device=weight.device,
        dtype=weight.dtype,
    )
