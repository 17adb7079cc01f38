r"""Shuffle attention.

Zhang & Yang, *SA-Net: Shuffle Attention for Deep Convolutional Neural Networks*, ICASSP 2021,
https://arxiv.org/abs/2102.00240

.. math:: a' = a \cdot \sigma(w_1\,\mathrm{GAP}(a) + b_1), \qquad b' = b \cdot \sigma(w_2\,\mathrm{GN}(b) + b_2), \qquad
          \tilde x = \mathrm{shuffle}([a'; b'])

where a and b are the halves of each of G groups of channels, n = C/2G channels wide, w_1 and b_1 (n) are
``channel_weight`` and ``channel_bias``, w_2 and b_2 (n) are ``place_weight`` and ``place_bias``, all shared by the
groups, and GN (``norm``) normalises every channel by itself. The shuffle interleaves the first half of all channels
with the second: channel j·C/2 + i becomes channel 2i + j.

Differences from the authors' code: none for their 64 groups, which need 128 channels or a multiple; other even
numbers of channels use the largest common divisor of C/2 and 64. The output is in another order than the input, so
that behind a residual addition it meets other channels than its own, as in the published models. Common copies compute
the same with 8 groups.

>>> import torch
>>> ShuffleAttention(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.group_norm import GroupNorm
from visattn.blocks.primitives import gate, mean_places
from visattn.core.arguments import Device, DType


@register_block("shuffle", family="mixed", paper="Zhang & Yang, ICASSP 2021, arXiv:2102.00240")
class ShuffleAttention(nn.Module):
    """In each group of channels, a channel gate on one half and a spatial gate on the other; then the halves mingle.

    Args:
        channels: C, an even number.
        groups: G; the largest common divisor of C/2 and 64 unless given.
    """

    def __init__(self, channels: int, *, groups: int | None = None, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        if channels % 2:
            raise ValueError(f"shuffle attention needs an even number of channels, got {channels}")
        self.groups = math.gcd(channels // 2, 64) if groups is None else groups
        if self.groups < 1 or channels % (2 * self.groups):
            raise ValueError(f"shuffle: {channels} channels cannot be divided into {self.groups} groups of two halves")
        half = channels // (2 * self.groups)
        self.channel_weight = nn.Parameter(torch.empty(half, device=device, dtype=dtype))
        self.channel_bias = nn.Parameter(torch.empty(half, device=device, dtype=dtype))
        self.place_weight = nn.Parameter(torch.empty(half, device=device, dtype=dtype))
        self.place_bias = nn.Parameter(torch.empty(half, device=device, dtype=dtype))
        self.norm = GroupNorm(half, half, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Everything starts with the same gate, 0.73."""
        for weight, bias in ((self.channel_weight, self.channel_bias), (self.place_weight, self.place_bias)):
            nn.init.zeros_(weight)
            nn.init.ones_(bias)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), in the order of the input's channels."""
        groups = x.unflatten(1, (self.groups, 2, -1))  # (B, G, 2, n, H, W)
        a, b = groups[:, :, 0].flatten(0, 1), groups[:, :, 1].flatten(0, 1)  # (B·G, n, H, W)
        channel = torch.sigmoid(self.channel_weight[:, None, None] * mean_places(a) + self.channel_bias[:, None, None])
        place = torch.sigmoid(self.place_weight[:, None, None] * self.norm(b) + self.place_bias[:, None, None])
        both = torch.stack([channel.expand_as(place), place], dim=1)  # (B·G, 2, n, H, W)
        return both.unflatten(0, (-1, self.groups)).flatten(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input with its channels shuffled, (B, C, H, W)."""
        gated = gate(x, self.attention(x))
        return laid_out_like(gated.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2), x)
