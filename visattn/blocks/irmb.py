r"""Inverted residual mobile block with attention (EMO).

Zhang et al., *Rethinking Mobile Block for Efficient Attention-based Models*, ICCV 2023,
https://arxiv.org/abs/2301.01146

.. math:: u = \mathrm{LN}(x), \qquad (q, k) = W_{qk} u + b, \qquad A = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt d)
          \ \text{in every group}

.. math:: m = \mathrm{GELU}(W_v (A u) + b_v), \qquad
          y = x + W_p\big(m + \mathrm{SiLU}(\mathrm{BN}(\mathrm{DW}(m)))\big)

The normalised pixels themselves are the values, and W_v (``value``) widens what was collected to 4 C = ``expansion``
C channels; W_qk is ``query_key``, DW is ``local``, a depthwise 5x5 convolution, and W_p is ``out``. A group is not a
tile but every n-th row and column of the whole map, 7x7 pixels, with n = H/7 (or W/7) groups along each side.

Differences from the paper: none from the authors' networks with attention (EMO-5M: 32 channels per head, windows of
7x7), whose settings are not the defaults of their class. Maps are filled up with zeros after the norm to multiples of
7, and the filling takes part, as there. Other widths get the largest number of heads that divides them and leaves at
least 32 channels to each. Unlike most blocks here this one has its norm and its residual connection inside. Common
copies put a batch norm in the place of LN, project the values before they are collected rather than after, do not widen
them, and have a 3x3 convolution.

>>> import torch
>>> irmb = InvertedResidualAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> irmb(x).shape, irmb.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 2, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import WIDEST, laid_out_like, register_block
from visattn.blocks.tokens import norm_channels, padded, spread_tiles, to_heads, to_map
from visattn.blocks.widths import fitting_heads, odd
from visattn.blocks.windows import pixel_numbers, whole
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive


def strided_groups(x: Tensor, size: int) -> Tensor:
    """Every n-th row and column: (B, C, H, W) -> (B·groups, C, size, size), in row order of where a group begins."""
    cut = x.unflatten(3, (size, -1)).unflatten(2, (size, -1))  # (B, C, size, rows, size, columns)
    return cut.permute(0, 3, 5, 1, 2, 4).flatten(0, 2)


def from_strided_groups(x: Tensor, rows: int, columns: int) -> Tensor:
    """Put groups together again: (B·rows·columns, C, size, size) -> (B, C, H, W)."""
    return x.unflatten(0, (-1, rows, columns)).permute(0, 3, 4, 1, 5, 2).flatten(4).flatten(2, 3)


@register_block(
    "irmb", family="self", paper="Zhang et al., ICCV 2023, arXiv:2301.01146", used_in="EMO, of which it is a block"
)
class InvertedResidualAttention(nn.Module):
    """Attention in groups of far-apart pixels, then a depthwise convolution, on a widened map; added to the input.

    Args:
        channels: C.
        heads: must divide C; C/32, or fewer, unless given.
        expansion: how many times wider the inner map is.
        kernel_size: of the depthwise convolution; an odd number.
        window: side of a group.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        expansion: float = 4.0,
        kernel_size: int = 5,
        window: int = 7,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        odd("irmb", kernel_size=kernel_size)
        positive("irmb", window=window, expansion=expansion)
        hidden = max(1, int(channels * expansion))
        if hidden > WIDEST:
            raise ValueError(f"block 'irmb' would be {hidden} channels wide inside, with expansion {expansion:g}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("irmb", channels, heads, most=max(1, channels // 32))
        self.window = window
        self.norm = nn.LayerNorm(channels, eps=1e-6, **factory)
        self.query_key = nn.Conv2d(channels, 2 * channels, 1, **factory)
        self.attend = Attention(channels // self.heads, score="scaled_dot")
        self.value = nn.Conv2d(channels, hidden, 1, **factory)
        depthwise: dict[str, Any] = {"padding": kernel_size // 2, "groups": hidden, "bias": False}
        self.local = nn.Conv2d(hidden, hidden, kernel_size, **depthwise, **factory)
        self.bn = nn.BatchNorm2d(hidden, eps=1e-6, **factory)
        self.out = nn.Conv2d(hidden, channels, 1, bias=False, **factory)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every group, (B·groups, heads, window², d)."""
        u = padded(norm_channels(self.norm, x), self.window, self.window)
        query, key = self.query_key(u).chunk(2, dim=1)
        groups = (strided_groups(each, self.window) for each in (query, key, u.to(query.dtype)))
        query, key, value = (to_heads(each, self.heads) for each in groups)
        return query, key, value

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other of its group, (B, heads, N, N)."""
        pixels = x.shape[2] * x.shape[3]
        full = padded(pixel_numbers(x), self.window, self.window, value=pixels)
        inside = strided_groups(full, self.window).flatten(1)  # (groups, window²)
        query, key, _ = self._parts(x)
        weights = self.attend.head_weights(query, key).unflatten(0, (x.shape[0], -1))
        return spread_tiles(weights.transpose(1, 2), inside, inside, pixels)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what the block makes of it, (B, C, H, W)."""
        height, width = x.shape[2:]
        rows, columns = whole(height, self.window), whole(width, self.window)
        context = to_map(self.attend.head_context(*self._parts(x)), (self.window, self.window))
        collected = from_strided_groups(context, rows, columns)[:, :, :height, :width]
        m = F.gelu(self.value(collected))
        return laid_out_like(x + self.out(m + F.silu(self.bn(self.local(m)))), x)
