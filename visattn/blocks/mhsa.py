r"""Multi-head self-attention over a feature map with 2-D relative positions.

Srinivas et al., *Bottleneck Transformers for Visual Recognition*, CVPR 2021, https://arxiv.org/abs/2101.11605

.. math:: e_{ij} = \frac{q_i^\top (k_j + r^h_{y_j - y_i} + r^w_{x_j - x_i})}{\sqrt{d}}, \qquad
          z_i = \sum_j \mathrm{softmax}_j(e_{ij})\, v_j

where q, k, v are bias-free 1x1 convolutions (``qkv``), d = C / heads, and r^h, r^w (2S - 1, d) are ``rel_h`` and
``rel_w``, shared by the heads.

Differences from the paper: the paper's tables are bound to one map size S; here a map of another size reads them by
linear interpolation (the corners of the table stay the corners of the map), so that any size works. Four heads, as
there. Since the positional term of a query depends on a key's row and column alone, it is written as H + W additional
features of query (r·q) and key (one-hot), and the whole runs on the fused kernel without an N x N bias.

>>> import torch
>>> mhsa = MultiHeadSelfAttention2d(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> mhsa(x).shape, mhsa.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import fused_attention
from visattn.core.energies import dot


def resample_offsets(table: Tensor, size: int) -> Tensor:
    """Relative embeddings (2S - 1, d) of offsets -(S-1)..S-1, read at 2·size - 1 offsets between the same ends."""
    span = (table.shape[0] - 1) // 2
    if size == span + 1:
        return table
    if size == 1:
        return table[span : span + 1]  # the only offset is zero
    # The i-th of 2·size - 1 offsets lies at i·span / (size - 1) of the table; integers keep this exact.
    position = torch.arange(2 * size - 1, device=table.device) * span
    below = position // (size - 1)
    fraction = (position % (size - 1)).to(table.dtype).unsqueeze(1) / (size - 1)
    return torch.lerp(table[below], table[(below + 1).clamp_max(2 * span)], fraction)


def _relative(query: Tensor, table: Tensor) -> Tensor:
    """q·r for queries (..., L, M, d) at position 0..L-1 of an axis and every position of it: (..., L, M, L)."""
    length = query.shape[-3]
    position = torch.arange(length, device=query.device)
    embeddings = resample_offsets(table, length)[position - position[:, None] + length - 1]  # (L, L, d)
    return query @ embeddings.mT


@register_block("mhsa", family="self", paper="Srinivas et al., CVPR 2021, arXiv:2101.11605")
class MultiHeadSelfAttention2d(nn.Module):
    """All-to-all attention over the map, aware of how far apart two pixels are.

    Args:
        channels: C.
        heads: must divide C.
        size: side S of the map that the position tables are stored for.
    """

    def __init__(
        self, channels: int, *, heads: int = 4, size: int = 14, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        positive("mhsa", size=size)
        if heads < 1 or channels % heads:
            raise ValueError(f"{heads} heads do not divide {channels} channels")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = heads
        self.head_dim = channels // heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False, **factory)
        self.rel_h = nn.Parameter(torch.empty(2 * size - 1, self.head_dim, **factory))
        self.rel_w = nn.Parameter(torch.empty(2 * size - 1, self.head_dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Position tables of unit length on average."""
        nn.init.normal_(self.rel_h, std=self.head_dim**-0.5)
        nn.init.normal_(self.rel_w, std=self.head_dim**-0.5)

    def _tokens(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys with their positional features (B, heads, N, d + H + W), values (B, heads, N, d)."""
        height, width = x.shape[2:]
        qkv = self.qkv(x).unflatten(1, (3, self.heads, self.head_dim)).flatten(4).mT  # (B, 3, heads, N, d)
        query, key, value = qkv.unbind(1)
        grid = query.unflatten(2, (height, width))  # (B, heads, H, W, d)
        along_h = _relative(grid, self.rel_h)  # (B, heads, H, W, H)
        along_w = _relative(grid.transpose(2, 3), self.rel_w).transpose(2, 3)  # (B, heads, H, W, W)
        row = torch.eye(height, device=x.device, dtype=key.dtype).repeat_interleave(width, 0)  # (N, H)
        column = torch.eye(width, device=x.device, dtype=key.dtype).repeat(height, 1)  # (N, W)
        place = torch.cat([row, column], dim=1).expand(*key.shape[:2], -1, -1)
        query = torch.cat([query, torch.cat([along_h, along_w], dim=-1).flatten(2, 3)], dim=-1)
        return query, torch.cat([key, place], dim=-1), value

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N)."""
        query, key, _ = self._tokens(x)
        return F.softmax(dot(query, key) * self.head_dim**-0.5, dim=-1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query, key, value = self._tokens(x)
        context = fused_attention(query, key, value, scale=self.head_dim**-0.5)
        tokens = context.transpose(1, 2).flatten(2)  # (B, N, C)
        return laid_out_like(tokens.mT.unflatten(2, x.shape[2:]), x)
