r"""Efficient multi-scale attention.

Ouyang et al., *Efficient Multi-Scale Attention Module with Cross-Spatial Learning*, ICASSP 2023,
https://arxiv.org/abs/2305.13563

.. math:: [h; w] = W_1 [\mathrm{mean}_W\, x;\ \mathrm{mean}_H\, x], \qquad
          a = \mathrm{GN}(x \cdot \sigma(h) \cdot \sigma(w)), \qquad e = \mathrm{conv}_{3\times3}(x)

.. math:: \tilde x = x \cdot \sigma\big(\mathrm{softmax}_c(\mathrm{GAP}\,a)^\top e
          + \mathrm{softmax}_c(\mathrm{GAP}\,e)^\top a\big)

for each of G groups of c = C/G consecutive channels, which share all weights: W_1 is ``lines``, GN is ``norm`` and
normalises every channel by itself, and the 3x3 convolution is ``local``. A group has one map for all its channels.

Differences from the authors' code: none for 32 groups; other numbers of channels use the largest common divisor with
32. In a group of one channel the two softmaxes are one. The published 23.85 M parameters of a ResNet-50 for CIFAR-100
are not reproduced: behind the last norm of every unit, as in ``resnet50_ema``, it adds 0.20 M, which makes 23.90 M.
Common copies compute the same, but mostly with 8 groups.

>>> import torch
>>> ema = EfficientMultiScale(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> ema(x).shape, ema.attention(x).unique(dim=1).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 32, 8, 6]))
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.group_norm import GroupNorm
from visattn.blocks.primitives import gate, mean, mean_places
from visattn.core.arguments import Device, DType


def read(selector: Tensor, x: Tensor) -> Tensor:
    """Sum of the channels of x, weighted by the softmax of the other map's channel means: (B, 1, H, W)."""
    weights = F.softmax(mean_places(selector).flatten(1), dim=1).unsqueeze(1)  # (B, 1, c)
    return (weights @ x.flatten(2)).unflatten(2, x.shape[2:])


@register_block("ema", family="mixed", paper="Ouyang et al., ICASSP 2023, arXiv:2305.13563")
class EfficientMultiScale(nn.Module):
    """Two views of a group of channels, each of which decides how the other is summed up: one map per group.

    Args:
        channels: C.
        groups: must divide C; the largest common divisor of C and 32 unless given.
    """

    def __init__(self, channels: int, *, groups: int | None = None, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        groups = math.gcd(channels, 32) if groups is None else groups
        if groups < 1 or channels % groups:
            raise ValueError(f"ema: {groups} groups do not divide {channels} channels")
        width = channels // groups
        self.groups = groups
        self.lines = nn.Conv2d(width, width, 1, **factory)
        self.norm = GroupNorm(width, width, **factory)
        self.local = nn.Conv2d(width, width, 3, padding=1, **factory)

    def _grouped(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B·G, c, H, W)."""
        return x.unflatten(1, (self.groups, -1)).flatten(0, 1)

    def _maps(self, x: Tensor) -> Tensor:
        """Gate (B·G, 1, H, W) of groups (B·G, c, H, W)."""
        rows = mean(x, 3)  # (B·G, c, H, 1)
        columns = mean(x, 2).transpose(2, 3)  # (B·G, c, W, 1)
        lines = torch.sigmoid(self.lines(torch.cat([rows, columns], dim=2)))
        along_h, along_w = lines.split([x.shape[2], x.shape[3]], dim=2)
        a = self.norm(gate(gate(x, along_h), along_w.transpose(2, 3)))
        e = self.local(x)
        return torch.sigmoid(read(a, e) + read(e, a))

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), the same for all channels of a group."""
        maps = self._maps(self._grouped(x)).unflatten(0, (x.shape[0], self.groups))  # (B, G, 1, H, W)
        return maps.expand(-1, -1, x.shape[1] // self.groups, -1, -1).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        groups = self._grouped(x)
        gated = gate(groups, self._maps(groups)).unflatten(0, (x.shape[0], self.groups))
        return laid_out_like(gated.flatten(1, 2), x)
