r"""Efficient multi-head self-attention (ResT).

Zhang and Yang, *ResT: An Efficient Transformer for Visual Recognition*, NeurIPS 2021, https://arxiv.org/abs/2105.13677

.. math:: u = \mathrm{LN}(\mathrm{DW}_{(s+1)\times(s+1),\ \mathrm{stride}\ s}(x)), \quad q = W_q x,
          \quad (k, v) = W_{kv} u

.. math:: A = \mathrm{IN}\big(\mathrm{softmax}_j(\mathrm{Conv}_{1\times1}(q k^\top / \sqrt d))\big), \qquad
          y = W_p (A v) + b_p

where DW is ``reduce``, the 1x1 convolution (``mixing``) takes the heads for channels and the pairs of pixels for
places, and IN subtracts the mean of a head's matrix and divides by its standard deviation, so that weights may be
negative. A single head has neither, and s = ``subsample`` = 1 leaves out the reduction.

Differences from the paper: none in the equation. The published networks have 1, 2, 4 and 8 heads and s = 8, 4, 2, 1 by
stage; here there are 8 heads (the authors' default; fewer where 8 do not divide the channels), since one head would
switch off what is special about the block, and s = 2. The instance norm is written out: of a matrix of a single number,
or of weights that are all one (a single key), it gives zero, so that a 1x1 map becomes the bias b_p, in training too,
where PyTorch's own raises. Every row of a softmax has the mean 1/M, and the standard deviation can be divided by
last, so that a few queries at a time are enough and the matrix is never held. ``attention`` returns the softmax, before
the instance norm. The common copy (External-Attention-pytorch) has the same equation for a map of given size, with
heads of any width, s = 3 and dropout of the weights.

>>> import torch
>>> emsa = EfficientMultiHead(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> emsa(x).shape, emsa.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 12]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.chunks import in_chunks
from visattn.blocks.tokens import norm_channels, start_small, to_heads, to_map
from visattn.blocks.widths import fitting_heads
from visattn.core.arguments import Device, DType
from visattn.core.attention import fused_attention
from visattn.core.energies import scaled_dot
from visattn.core.precision import precise, without_autocast


@register_block(
    "emsa", family="self", paper="Zhang and Yang, NeurIPS 2021, arXiv:2105.13677", used_in="the blocks of ResT"
)
class EfficientMultiHead(nn.Module):
    """Keys and values from a smaller map, heads that talk to each other, and weights of mean zero.

    Args:
        channels: C.
        heads: must divide C; 8, or fewer, unless given.
        subsample: s, how much smaller the map of the keys is; 1 or an even number.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        subsample: int = 2,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        if subsample != 1 and (subsample < 1 or subsample % 2):
            raise ValueError(
                f"block 'emsa' needs subsample to be 1 or even, since its kernel is one larger, got {subsample}"
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("emsa", channels, heads, most=8)
        self.query = nn.Conv2d(channels, channels, 1, **factory)
        self.reduce: nn.Conv2d | None = None
        self.norm: nn.LayerNorm | None = None
        if subsample > 1:
            size: dict[str, Any] = {"stride": subsample, "padding": subsample // 2, "groups": channels}
            self.reduce = nn.Conv2d(channels, channels, subsample + 1, **size, **factory)
            self.norm = nn.LayerNorm(channels, **factory)
        self.key_value = nn.Conv2d(channels, 2 * channels, 1, **factory)
        self.mixing = nn.Conv2d(self.heads, self.heads, 1, **factory) if self.heads > 1 else None
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights."""
        start_small(self)
        if self.reduce is not None:
            nn.init.trunc_normal_(self.reduce.weight, std=0.02)

    def _tokens(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, N, d), keys and values (B, heads, M, d)."""
        u = x if self.reduce is None or self.norm is None else norm_channels(self.norm, self.reduce(x))
        key, value = (to_heads(each, self.heads) for each in self.key_value(u).chunk(2, dim=1))
        return to_heads(self.query(x), self.heads), key, value

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The softmax (B, heads, n, M) of some queries, in single precision at least."""
        energies = scaled_dot(query, key)
        if self.mixing is not None and self.mixing.bias is not None:
            with without_autocast(query.device):
                energies = F.conv2d(energies, precise(self.mixing.weight), precise(self.mixing.bias))
        return F.softmax(energies, dim=-1)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every key, before the instance norm, (B, heads, N, M)."""
        query, key, _ = self._tokens(x)
        return self._weights(query, key).to(x.dtype)

    def _normed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The context (B, heads, N, d) with weights behind the instance norm, a few queries at a time."""

        def collected(query: Tensor) -> Tensor:
            centred = self._weights(query, key) - 1 / key.shape[2]  # the mean of a row that sums to one
            with without_autocast(query.device):
                return torch.cat([centred @ precise(value), centred.square().mean(-1, keepdim=True)], dim=-1)

        context, variance = in_chunks(collected, query, keys=key.shape[2]).split([value.shape[3], 1], dim=3)
        return (context * torch.rsqrt(variance.mean(2, keepdim=True) + 1e-5)).to(value.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query, key, value = self._tokens(x)
        if self.mixing is None:
            context = fused_attention(query, key, value, scale=key.shape[3] ** -0.5)
        else:
            context = self._normed(query, key, value)
        return laid_out_like(self.out(to_map(context, x.shape[2:])), x)
