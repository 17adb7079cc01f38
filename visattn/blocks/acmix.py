r"""ACmix: self-attention and convolution made of the same projections.

Pan et al., *On the Integration of Self-Attention and Convolution*, CVPR 2022, https://arxiv.org/abs/2111.14556

.. math:: y = \alpha\, F_\mathrm{att} + \beta\, F_\mathrm{conv}, \qquad
          F_{\mathrm{att}, i} = \sum_{j \in \mathcal{N}_7(i)}
          \mathrm{softmax}_j\Big(\frac{q_i \cdot (k_j + e_i - e_j)}{\sqrt{d}}\Big)\, v_j

where q, k, v are 1x1 convolutions (``qkv``) of d channels for each head, N_7(i) the 7 x 7 window around pixel i, and
e = ``position`` a linear map of a pixel's coordinates (x, y) in [-1, 1], shared by the heads. F_conv: ``mix`` turns the
3·heads numbers that q, k and v have for each of the d channels into nine, and ``shift``, a 3x3 convolution of d groups
that starts as the nine shifts, adds them up. α and β are ``rates``, 0.5 at first.

Differences from the paper: none from the authors' code, on which the details above rest. There the map is continued by
reflection, so that pixels near the border appear twice in a window; here it goes to and fro on maps of fewer than four
pixels, which that code does not take, and a map may have any size for a stride (queries and windows at rows and columns
0, s, 2s, ...). As there, the channels of the two parts are added in different orders: the attention's head by head, the
convolution's channel by channel. The term q_i·e_i is the same for all j, and the bias of e likewise: softmax does not
notice them. The bias is kept as the authors have it, the term is not computed. Four heads where they divide the
channels, else the largest smaller number that does. ``groups``, as a convolution has them, are ours: those of the three
1x1 convolutions; ``mix`` joins all heads as ever. Common copies compute the same.

>>> import torch
>>> acmix = ACmix(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> acmix(x).shape, acmix.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
>>> ACmix(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Pointwise, Projections
from visattn.blocks.widths import fitting_heads, odd, output_width
from visattn.blocks.windows import Tiling, pixel_numbers, reflected
from visattn.core.arguments import Device, DType
from visattn.core.attention import attention_weights, fused_attention

TAPS = 9  # of the 3x3 convolution


def coordinates(x: Tensor) -> Tensor:
    """Column and row of every pixel of a map, each from -1 to 1: (1, 2, H, W)."""
    exact = torch.promote_types(x.dtype, torch.float32)
    numbers = ((torch.arange(size, device=x.device, dtype=exact), size) for size in (x.shape[3], x.shape[2]))
    across, down = (2 * number / max(1, size - 1) - 1 for number, size in numbers)
    return torch.stack(torch.meshgrid(across, down, indexing="xy")).unsqueeze(0).to(x.dtype)


def tokens(qkv: Tensor, position: Tensor, heads: int, tiling: Tiling) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B·tiles, heads, ..., d)."""
    query, key, value = qkv.chunk(3, dim=1)
    key = (key.unflatten(1, (heads, -1)) - position.unsqueeze(1)).flatten(1, 2)
    query = tiling.queries(query, heads).flatten(2, 3)
    key, value = (tiling.keys(reflected(each, tiling.halo), heads) for each in (key, value))
    return query, key, value


def attend(qkv: Tensor, position: Tensor, heads: int, tiling: Tiling) -> Tensor:
    """What every query collects, (B, C', H', W')."""
    query, key, value = tokens(qkv, position, heads, tiling)
    context = fused_attention(query, key, value, scale=key.shape[3] ** -0.5, mask=tiling.nearby(qkv.device))
    return tiling.joined(context, qkv.shape[2], qkv.shape[3])


# Each is one step for torch.fx: they decide by the shapes of real tensors.
torch.fx.wrap("coordinates")
torch.fx.wrap("attend")


@register_block("acmix", family="self", paper="Pan et al., CVPR 2022, arXiv:2111.14556")
class ACmix(nn.Module):
    """Attention within a sliding window plus a convolution, in the place of a convolution.

    Args:
        channels: C of the input.
        out_channels: of the output; as many as of the input unless given.
        stride: there are queries and taps only at every so many-th row and column.
        kernel_size: side of the attention's window; an odd number.
        heads: must divide the channels of the output; at most 4 unless given.
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
        width = output_width("acmix", channels, out_channels, stride, groups)
        odd("acmix", most=63, kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("acmix", width, heads, most=4, groups=groups)
        self.head_dim = width // self.heads
        self.tiling = Tiling(stride * -(-kernel_size // stride), kernel_size // 2, stride)
        self.qkv = Projections(channels, 3 * width, groups=groups, **factory)
        self.position = Pointwise(2, self.head_dim, **factory)
        self.mix = Pointwise(3 * self.heads, TAPS, bias=False, **factory)
        self.shift = nn.Conv2d(
            TAPS * self.head_dim, width, 3, stride=stride, padding=1, groups=self.head_dim, bias=False, **factory
        )
        self.rates = nn.Parameter(torch.empty(2, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Shifts for the nine taps, and half of either part."""
        with torch.no_grad():
            self.shift.weight.copy_(torch.eye(TAPS).view(TAPS, 3, 3).expand_as(self.shift.weight))
        nn.init.constant_(self.rates, 0.5)

    def _convolved(self, qkv: Tensor) -> Tensor:
        maps = qkv.unflatten(1, (3 * self.heads, self.head_dim)).flatten(3)  # (B, 3·heads, d, N)
        taps = self.mix(maps).transpose(1, 2).flatten(1, 2)  # (B, d·9, N)
        return self.shift(taps.unflatten(2, qkv.shape[2:]))

    def attention(self, x: Tensor) -> Tensor:
        """What every query (row) takes from every position, (B, heads, N', N); a pixel and its reflections as one."""
        qkv = self.qkv(x)
        query, key, _ = tokens(qkv, self.position(coordinates(qkv)), self.heads, self.tiling)
        visible = self.tiling.nearby(x.device)
        weights = attention_weights(query, key, scale=self.head_dim**-0.5, mask=visible).to(x.dtype)
        return self.tiling.spread(weights, reflected(pixel_numbers(x), self.tiling.halo))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        qkv = self.qkv(x)
        attended = attend(qkv, self.position(coordinates(qkv)), self.heads, self.tiling)
        return laid_out_like(self.rates[0] * attended + self.rates[1] * self._convolved(qkv), x)
