r"""Stand-alone self-attention: every pixel attends to the window around it.

Ramachandran et al., *Stand-Alone Self-Attention in Vision Models*, NeurIPS 2019, https://arxiv.org/abs/1906.05909

.. math:: y_i = \sum_{j \in \mathcal{N}_k(i)} \mathrm{softmax}_j\big(q_i \cdot k_j + q_i \cdot r_{j-i}\big)\, v_j,
          \qquad r_{j-i} = [r^h_{y_j - y_i};\ r^w_{x_j - x_i}]

head by head, where q, k, v are bias-free 1x1 convolutions (``qkv``), N_k(i) is the k x k window around pixel i
(``kernel_size`` = 7), and r^h, r^w (k, d/2) are ``rel_h`` and ``rel_w``: rows speak to the first half of the d
channels of a head, columns to the second. There is no 1/sqrt(d).

Differences from the paper: none in the equation. Its text also speaks of projections within groups of channels
(``groups``); the published 18.0 M parameters of its ResNet-50 need full ones. The authors released no code, so three
things are ours: pixels outside the map have keys and values of zero but stay in the softmax; the heads share the
embeddings, which start with a standard deviation of 1/sqrt(d); and there are the eight heads of the paper only where
twice as many divide the channels, else the largest smaller number that fits. With a stride, the output is averaged over
stride x stride pixels, as in the paper. A widely copied version multiplies queries and keys without summing over
channels.

>>> import torch
>>> sasa = StandAloneSelfAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> sasa(x).shape, sasa.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
>>> StandAloneSelfAttention(64, out_channels=32, stride=2)(x).shape
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
from visattn.blocks.widths import fitting_heads, odd, output_width
from visattn.blocks.windows import Tiling, averages, by_column, by_row, pixel_numbers, with_places
from visattn.core.arguments import Device, DType
from visattn.core.attention import attention_weights, fused_attention


def tokens(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int, tiling: Tiling) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys with their positional features, and values, (B·tiles, heads, ..., features)."""
    halo, half = tiling.halo, rel_h.shape[1]
    query, key, value = qkv.chunk(3, dim=1)
    query = tiling.queries(query, heads)  # (B·tiles, heads, b, b, d)
    key, value = (tiling.keys(F.pad(each, [halo] * 4), heads) for each in (key, value))
    index = (tiling.offsets(qkv.device) + halo).clamp(0, 2 * halo)  # those beyond are not seen
    along_h = by_row(query[..., :half], rel_h[index])
    along_w = by_column(query[..., half:], rel_w[index])
    return *with_places(query, key, along_h, along_w), value


def attend(qkv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int, tiling: Tiling) -> Tensor:
    """What every pixel collects, (B, C', H, W)."""
    query, key, value = tokens(qkv, rel_h, rel_w, heads, tiling)
    context = fused_attention(query, key, value, scale=1.0, mask=tiling.nearby(qkv.device))
    return tiling.joined(context, qkv.shape[2], qkv.shape[3])


torch.fx.wrap("attend")  # one step for torch.fx: it decides by the shapes of real tensors


@register_block("sasa", family="self", paper="Ramachandran et al., NeurIPS 2019, arXiv:1906.05909")
class StandAloneSelfAttention(nn.Module):
    """Attention within a sliding window, in the place of a convolution.

    Args:
        channels: C of the input.
        out_channels: of the output, an even number; as many as of the input unless given.
        stride: the output is averaged over stride x stride pixels.
        kernel_size: side of the window; an odd number.
        heads: twice as many must divide the channels of the output; at most 8 unless given.
        groups: of the convolutions that make queries, keys and values; a multiple of the heads, or the reverse.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        kernel_size: int = 7,
        heads: int | None = None,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("sasa", channels, out_channels, stride, groups)
        odd("sasa", most=63, kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("sasa", width, heads, parts=2, groups=groups)
        self.head_dim = width // self.heads
        self.stride = stride
        self.tiling = Tiling(kernel_size, kernel_size // 2)
        self.qkv = Projections(channels, 3 * width, bias=False, groups=groups, **factory)
        self.rel_h = nn.Parameter(torch.empty(kernel_size, self.head_dim // 2, **factory))
        self.rel_w = nn.Parameter(torch.empty(kernel_size, self.head_dim // 2, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections that keep the size of numbers, position tables of unit length on average."""
        nn.init.normal_(self.qkv.weight, std=self.qkv.weight.shape[1] ** -0.5)
        nn.init.normal_(self.rel_h, std=self.head_dim**-0.5)
        nn.init.normal_(self.rel_w, std=self.head_dim**-0.5)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N); the rest of a row is outside the map."""
        query, key, _ = tokens(self.qkv(x), self.rel_h, self.rel_w, self.heads, self.tiling)
        weights = attention_weights(query, key, scale=1.0, mask=self.tiling.nearby(x.device)).to(x.dtype)
        return self.tiling.spread(weights, pixel_numbers(x, self.tiling.halo))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        y = attend(self.qkv(x), self.rel_h, self.rel_w, self.heads, self.tiling)
        return laid_out_like(averages(y, self.stride), x)
