r"""Blocked local self-attention with halos (HaloNet).

Vaswani et al., *Scaling Local Self-Attention for Parameter Efficient Visual Backbones*, CVPR 2021,
https://arxiv.org/abs/2103.12731

.. math:: e_{ij} = \frac{q_i^\top (k_j + r^h_{y_j - y_i} + r^w_{x_j - x_i})}{\sqrt{d}}, \qquad
          y_i = \sum_j \mathrm{softmax}_j(e_{ij})\, v_j

head by head, where q, k, v are bias-free 1x1 convolutions (``qkv``), j runs over the block of b x b pixels that pixel
i is in and h pixels around it (``block`` = 8, ``halo`` = 3), and r^h, r^w (2(b + h) - 1, d) are ``rel_h`` and
``rel_w``, shared by the heads. All queries of a block see the same window.

Differences from the paper: its equation has no 1/sqrt(d); here it is on both terms, as in ``mhsa``, which has the same
authors. They released no code, so the form of the embeddings (that of ``mhsa``; the paper gives none) and the border
are ours: pixels outside the map have keys and values of zero but stay in the softmax, and a map that is not made of
whole blocks is continued with zeros and cut again. There is no output projection, as the published parameter counts of
HaloNet-H0 to H4 show. Eight heads where they divide the channels, else the largest smaller number that does.
``groups``, as a convolution has them, are ours: those of the three 1x1 convolutions. With a stride, only every so
many-th row and column has queries, as in the paper. timm's ``HaloAttn`` stores 2h rows of its tables that it never
reads, and with a stride takes wrong offsets; widely copied versions mask the map instead of the border.

>>> import torch
>>> halo = HaloAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> halo(x).shape, halo.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
>>> HaloAttention(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Projections
from visattn.blocks.widths import fitting_heads, output_width
from visattn.blocks.windows import Tiling, by_column, by_row, pixel_numbers, start_tables, with_places
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import attention_weights, fused_attention

WIDEST = 64  # pixels of a block, and around it: each of its pixels looks at all of them


def tokens(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int, tiling: Tiling) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys with their positional features, and values, (B·blocks, heads, ..., features)."""
    query, key, value = qkv.chunk(3, dim=1)
    query = tiling.queries(query, heads)  # (B·blocks, heads, b, b, d)
    key, value = (tiling.keys(F.pad(each, [tiling.halo] * 4), heads) for each in (key, value))
    index = tiling.offsets(qkv.device) + tiling.tile + tiling.halo - 1
    along_h, along_w = by_row(query, rel_h[index]), by_column(query, rel_w[index])
    return *with_places(query, key, along_h, along_w), value


def attend(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int, tiling: Tiling) -> Tensor:
    """What every query collects, (B, C', H', W')."""
    query, key, value = tokens(qkv, rel_h, rel_w, heads, tiling)
    context = fused_attention(query, key, value, scale=rel_h.shape[1] ** -0.5)
    return tiling.joined(context, qkv.shape[2], qkv.shape[3])


torch.fx.wrap("attend")  # one step for torch.fx: it decides by the shapes of real tensors


@register_block("halo", family="self", paper="Vaswani et al., CVPR 2021, arXiv:2103.12731")
class HaloAttention(nn.Module):
    """Attention from the pixels of a block to the block and its surroundings, in the place of a convolution.

    Args:
        channels: C of the input.
        out_channels: of the output; as many as of the input unless given.
        stride: there are queries only at every so many-th row and column; must divide the block.
        block: side b of a block.
        halo: pixels h around it that are seen, too.
        heads: must divide the channels of the output; at most 8 unless given.
        groups: of the convolutions that make queries, keys and values; a multiple of the heads, or the reverse.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        block: int = 8,
        halo: int = 3,
        heads: int | None = None,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("halo", channels, out_channels, stride, groups)
        positive("halo", block=block)
        if halo < 0:
            raise ValueError(f"halo needs a halo of 0 pixels or more, got {halo}")
        if max(block, halo) > WIDEST:
            raise ValueError(f"halo needs a block and a halo of at most {WIDEST} pixels, got {block} and {halo}")
        if block % stride:
            raise ValueError(f"halo needs a stride that divides its blocks of {block} pixels, got {stride}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("halo", width, heads, groups=groups)
        self.head_dim = width // self.heads
        self.tiling = Tiling(block, halo, stride)
        self.qkv = Projections(channels, 3 * width, bias=False, groups=groups, **factory)
        self.rel_h = nn.Parameter(torch.empty(2 * (block + halo) - 1, self.head_dim, **factory))
        self.rel_w = nn.Parameter(torch.empty(2 * (block + halo) - 1, self.head_dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections that keep the size of numbers, position tables of unit length on average."""
        nn.init.normal_(self.qkv.weight, std=self.qkv.weight.shape[1] ** -0.5)
        start_tables(self.rel_h, self.rel_w)

    def attention(self, x: Tensor) -> Tensor:
        """What every query (row) takes from every position, (B, heads, N', N); the rest of a row is outside the map."""
        query, key, _ = tokens(self.qkv(x), self.rel_h, self.rel_w, self.heads, self.tiling)
        weights = attention_weights(query, key, scale=self.head_dim**-0.5).to(x.dtype)
        return self.tiling.spread(weights, pixel_numbers(x, self.tiling.halo))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        return laid_out_like(attend(self.qkv(x), self.rel_h, self.rel_w, self.heads, self.tiling), x)
