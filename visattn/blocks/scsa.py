r"""Spatial and channel synergistic attention.

Si et al., *SCSA: Exploring the synergistic effects between spatial and channel attention*, Neurocomputing 634, 2025,
https://arxiv.org/abs/2407.05128

.. math:: u = x \cdot \sigma(\mathrm{GN}^h_4(\mathrm{dw}(\mathrm{mean}_W\, x)))
          \cdot \sigma(\mathrm{GN}^w_4(\mathrm{dw}(\mathrm{mean}_H\, x)))

.. math:: t = \mathrm{GN}_1(\mathrm{pool}_{7\times7}\, u), \qquad \tilde x = u \cdot
          \sigma\Big(\mathrm{mean}_N\big[\mathrm{softmax}(q t \cdot (k t)^\top / \sqrt d)\; v t\big]\Big)

where dw (``lines``) is a 1-D depthwise convolution of kernel 3, 5, 7 and 9 for the four quarters of the channels, the
same for rows and columns; q, k, v are one number per channel (``query``, ``key``, ``value``); and the d = C / heads
channels of a head attend to each other, their features being the N pooled places.

Differences from the authors' code: none for maps of at least 7x7, which theirs needs; along a shorter side the pooling
window is the map's own. Since a mean of contexts is the context of the mean, only the mean of the values is collected.
Common copies compute the same, mostly with eight heads.

>>> import torch
>>> scsa = SpatialChannelSynergy(64)
>>> x = torch.randn(2, 64, 16, 14)
>>> scsa(x).shape, scsa.attention(x).shape
(torch.Size([2, 64, 16, 14]), torch.Size([2, 64, 16, 14]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.group_norm import GroupNorm
from visattn.blocks.primitives import gate, mean
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import fused_attention

KERNELS = (3, 5, 7, 9)


@register_block("scsa", family="mixed", paper="Si et al., Neurocomputing 2025, arXiv:2407.05128")
class SpatialChannelSynergy(nn.Module):
    """Gates of rows and columns, then a channel gate from channels that attend to each other.

    Args:
        channels: C, a multiple of four.
        heads: must divide C.
        window: side of the windows that are averaged before channels are compared.
    """

    def __init__(
        self, channels: int, *, heads: int = 1, window: int = 7, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        positive("scsa", window=window)
        if channels % len(KERNELS):
            raise ValueError(f"scsa needs a number of channels that four divides, got {channels}")
        if heads < 1 or channels % heads:
            raise ValueError(f"scsa: {heads} heads do not divide {channels} channels")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        quarter = channels // len(KERNELS)
        self.heads = heads
        self.window = window
        self.lines = nn.ModuleList(
            nn.Conv1d(quarter, quarter, k, padding=k // 2, groups=quarter, **factory) for k in KERNELS
        )
        self.norm_h = GroupNorm(len(KERNELS), channels, **factory)
        self.norm_w = GroupNorm(len(KERNELS), channels, **factory)
        self.norm = GroupNorm(1, channels, **factory)
        self.query = nn.Conv2d(channels, channels, 1, groups=channels, bias=False, **factory)
        self.key = nn.Conv2d(channels, channels, 1, groups=channels, bias=False, **factory)
        self.value = nn.Conv2d(channels, channels, 1, groups=channels, bias=False, **factory)

    def _convolved(self, line: Tensor) -> Tensor:
        """(B, C, L) -> (B, C, L)."""
        quarters = zip(self.lines, line.chunk(len(KERNELS), dim=1), strict=True)
        return torch.cat([conv(quarter) for conv, quarter in quarters], dim=1)

    def _lines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gate of every row (B, C, H, 1) and of every column (B, C, 1, W)."""
        rows, columns = mean(x, 3).squeeze(3), mean(x, 2).squeeze(2)
        along_h, along_w = self.norm_h(self._convolved(rows)), self.norm_w(self._convolved(columns))
        return torch.sigmoid(along_h).unsqueeze(3), torch.sigmoid(along_w).unsqueeze(2)

    def _channels(self, u: Tensor) -> Tensor:
        """The gate of every channel, (B, C, 1, 1)."""
        t = self.norm(F.avg_pool2d(u, (min(self.window, u.shape[2]), min(self.window, u.shape[3]))))
        query, key, value = (
            layer(t).flatten(2).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value)
        )  # (B, heads, d, N)
        context = fused_attention(query, key, value.mean(-1, keepdim=True), scale=query.shape[2] ** -0.5)
        return torch.sigmoid(context.flatten(1, 2)).unsqueeze(-1)

    def attention(self, x: Tensor) -> Tensor:
        """The product of all three gates, (B, C, H, W)."""
        row, column = self._lines(x)
        return gate(row * column, self._channels(gate(gate(x, row), column)))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        row, column = self._lines(x)
        u = gate(gate(x, row), column)
        return gate(u, self._channels(u))
