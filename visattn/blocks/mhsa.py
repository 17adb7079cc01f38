r"""Multi-head self-attention over a feature map with 2-D relative positions.

Srinivas et al., *Bottleneck Transformers for Visual Recognition*, CVPR 2021, https://arxiv.org/abs/2101.11605

.. math:: e_{ij} = \frac{q_i^\top (k_j + r^h_{y_j - y_i} + r^w_{x_j - x_i})}{\sqrt{d}}, \qquad
          z_i = \sum_j \mathrm{softmax}_j(e_{ij})\, v_j

where q, k, v are bias-free 1x1 convolutions (``qkv``), d = C / heads, and r^h, r^w (2S - 1, d) are ``rel_h`` and
``rel_w``, shared by the heads.

Differences from the paper: the paper's tables are bound to one map size S; here a map of another size reads them by
linear interpolation (the corners of the table stay the corners of the map), so that any size works. Four heads, as
there, where they divide the channels; with a stride, the output is averaged over stride x stride pixels, as there.
``groups``, as a convolution has them, are ours: those of the three 1x1 convolutions. Since the positional term of a
query depends on a key's row and column alone, it is written as H + W additional features of query (r·q) and key
(one-hot), and the whole runs on the fused kernel without an N x N bias.

>>> import torch
>>> mhsa = MultiHeadSelfAttention2d(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> mhsa(x).shape, mhsa.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
>>> MultiHeadSelfAttention2d(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Projections
from visattn.blocks.tokens import to_heads
from visattn.blocks.widths import fitting_heads, output_width
from visattn.blocks.windows import averages, start_tables, with_offsets
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import attention_weights, fused_attention, merge_heads


def tokens(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys with their positional features (B, heads, N, d + H + W), values (B, heads, N, d)."""
    query, key, value = (to_heads(part, heads) for part in qkv.chunk(3, dim=1))  # (B, heads, N, d) each
    return *with_offsets(query, key, rel_h, rel_w, qkv.shape[2:]), value


def attend(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int) -> Tensor:
    """What every pixel collects, (B, C, H, W)."""
    query, key, value = tokens(qkv, rel_h, rel_w, heads)
    context = fused_attention(query, key, value, scale=value.shape[3] ** -0.5)
    return merge_heads(context).mT.unflatten(2, qkv.shape[2:])


torch.fx.wrap("attend")  # one step for torch.fx: it decides by the shapes of real tensors


@register_block("mhsa", family="self", paper="Srinivas et al., CVPR 2021, arXiv:2101.11605")
class MultiHeadSelfAttention2d(nn.Module):
    """All-to-all attention over the map, aware of how far apart two pixels are.

    Args:
        channels: of the input.
        out_channels: C of the output; as many as of the input unless given.
        stride: the output is averaged over stride x stride pixels.
        heads: must divide C; 4, or fewer, unless given.
        size: side S of the map that the position tables are stored for.
        groups: of the convolutions that make queries, keys and values; a multiple of the heads, or the reverse.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        heads: int | None = None,
        size: int = 14,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("mhsa", channels, out_channels, stride, groups)
        positive("mhsa", size=size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("mhsa", width, heads, most=4, groups=groups)
        self.head_dim = width // self.heads
        self.stride = stride
        self.qkv = Projections(channels, 3 * width, bias=False, groups=groups, **factory)
        self.rel_h = nn.Parameter(torch.empty(2 * size - 1, self.head_dim, **factory))
        self.rel_w = nn.Parameter(torch.empty(2 * size - 1, self.head_dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Position tables of unit length on average."""
        start_tables(self.rel_h, self.rel_w)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N)."""
        query, key, _ = tokens(self.qkv(x), self.rel_h, self.rel_w, self.heads)
        return attention_weights(query, key, scale=self.head_dim**-0.5).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, H, W) -> (B, C, H / stride, W / stride)."""
        y = attend(self.qkv(x), self.rel_h, self.rel_w, self.heads)
        return laid_out_like(averages(y, self.stride), x)
