r"""Attention-augmented convolution: some channels of a convolution are replaced by self-attention.

Bello et al., *Attention Augmented Convolutional Networks*, ICCV 2019, https://arxiv.org/abs/1904.09925

.. math:: y = [\mathrm{conv}(x);\ W_o\, \mathrm{MHA}(x)], \qquad
          e_{ij} = \frac{q_i^\top (k_j + r^h_{y_j - y_i} + r^w_{x_j - x_i})}{\sqrt{d_k / N_h}}

where conv is ``conv``, k, q and v are ``kqv``, W_o is ``out``, and r^h, r^w (2S - 1, d_k / N_h) are ``rel_h`` and
``rel_w``, shared by the N_h = ``heads`` heads. There are d_k = 0.2 C channels of keys, at least 20 for each head, and
d_v = 0.1 C channels of values.

Differences from the paper: the paper's tables are bound to one map size S; here a map of another size reads them by
linear interpolation, as in ``mhsa``. d_k and d_v are rounded down to a multiple of the heads, which with the least of
20 gives the published 25.8 M and 45.4 M parameters of ResNet-50 and -101; the 20.7 M of ResNet-34 are not reproduced
(22.0 M here, whichever of the two convolutions is replaced). Eight heads, but no more than half of the channels. The
paper does not say what it does for groups: here they are those of conv, and d_v is a multiple of them, too. Nor for a
stride: here the convolution has it, and attention works on a 3x3 average pooling of that stride. A widely copied
version draws new tables in every forward pass.

>>> import torch
>>> aug = AugmentedConvolution(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> aug(x).shape, aug.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
>>> AugmentedConvolution(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Pointwise
from visattn.blocks.widths import odd, output_width
from visattn.blocks.windows import start_tables, with_offsets
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import attention_weights, fused_attention, merge_heads

FEWEST = 20  # channels of a head's keys


def tokens(kqv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys with their positional features (B, heads, N, d + H + W), values (B, heads, N, d_v)."""
    keys = heads * rel_h.shape[1]
    parts = kqv.split([keys, keys, kqv.shape[1] - 2 * keys], dim=1)
    key, query, value = (each.unflatten(1, (heads, -1)).flatten(3).mT for each in parts)
    return *with_offsets(query, key, rel_h, rel_w, kqv.shape[2:]), value


def attend(kqv: Tensor, rel_h: Tensor, rel_w: Tensor, heads: int) -> Tensor:
    """What every pixel collects, (B, heads·d_v, H, W)."""
    query, key, value = tokens(kqv, rel_h, rel_w, heads)
    context = merge_heads(fused_attention(query, key, value, scale=rel_h.shape[1] ** -0.5))  # (B, N, heads·d_v)
    return context.mT.unflatten(2, kqv.shape[2:])


torch.fx.wrap("attend")  # one step for torch.fx: it decides by the shapes of real tensors


@register_block("aug", family="self", paper="Bello et al., ICCV 2019, arXiv:1904.09925")
class AugmentedConvolution(nn.Module):
    """A convolution and self-attention over the whole map, side by side.

    Args:
        channels: C of the input.
        out_channels: of the output, at least two; as many as of the input unless given.
        stride: of the convolution, and of an average pooling before the attention.
        kernel_size: of the convolution; an odd number.
        heads: of the attention; at most 8 and half of the channels unless given.
        key_ratio: channels of all keys as a fraction of those of the output.
        value_ratio: channels of all values, which the convolution has less, as a fraction of those of the output.
        size: side S of the map that the position tables are stored for.
        groups: of the convolution; they also divide the channels of the values.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        kernel_size: int = 3,
        heads: int | None = None,
        key_ratio: float = 0.2,
        value_ratio: float = 0.1,
        size: int = 14,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("aug", channels, out_channels, stride, groups)
        odd("aug", kernel_size=kernel_size)
        heads = min(8, max(1, width // 2)) if heads is None else heads
        positive("aug", heads=heads, key_ratio=key_ratio, value_ratio=value_ratio, size=size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = heads
        self.stride = stride
        self.key_dim = max(FEWEST, int(width * key_ratio) // heads)
        step = math.lcm(heads, groups)
        keys, values = heads * self.key_dim, step * max(1, int(width * value_ratio) // step)
        if values >= width:
            raise ValueError(f"aug: {values} channels of attention leave none of {width} to the convolution")
        settings: dict[str, Any] = {"stride": stride, "padding": kernel_size // 2, "groups": groups, **factory}
        self.conv = nn.Conv2d(channels, width - values, kernel_size, **settings)
        self.kqv = Pointwise(channels, 2 * keys + values, **factory)
        self.out = Pointwise(values, values, **factory)
        self.rel_h = nn.Parameter(torch.empty(2 * size - 1, self.key_dim, **factory))
        self.rel_w = nn.Parameter(torch.empty(2 * size - 1, self.key_dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Position tables of unit length on average."""
        start_tables(self.rel_h, self.rel_w)

    def _pooled(self, x: Tensor) -> Tensor:
        return x if self.stride == 1 else F.avg_pool2d(x, 3, self.stride, 1)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N)."""
        query, key, _ = tokens(self.kqv(self._pooled(x)), self.rel_h, self.rel_w, self.heads)
        return attention_weights(query, key, scale=self.key_dim**-0.5).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        attended = self.out(attend(self.kqv(self._pooled(x)), self.rel_h, self.rel_w, self.heads))
        return laid_out_like(torch.cat([self.conv(x), attended], dim=1), x)
