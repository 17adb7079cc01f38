r"""Pyramid Split Attention (EPSANet).

Zhang et al., *EPSANet: An Efficient Pyramid Squeeze Attention Block on Convolutional Neural Network*, ACCV 2022,
https://arxiv.org/abs/2105.14447

.. math:: u_i = f_i(x), \qquad z_i = \sigma(W_2\,\mathrm{ReLU}(W_1\,\mathrm{GAP}(u_i))), \qquad
          a = \mathrm{softmax}_i(z_i), \qquad \tilde x = [a_3 u_3;\ a_2 u_2;\ a_1 u_1;\ a_0 u_0]

where f_i (``branches``) are convolutions of all channels of x to C/4, with kernels of 3, 5, 7 and 9 and 1, 4, 8 and 16
groups, without bias, and W_1 (C/64, C/4) and W_2 (``fc1``, ``fc2``), with biases, are shared by the four. It takes
the place of a 3x3 convolution; a stride is that of the four.

Differences from the paper: it joins the branches from the narrowest to the widest; the authors' code, and so this
block, does so backwards, which matters to saved weights only. The figure suggests that each branch reads a quarter of
x, which common copies do; in the code each reads all of it. Numbers of channels that are no multiple of 64 use the
largest common divisors of both widths with these groups. ``groups`` are ours: each branch keeps within those and within
its own. The convolutions start as PyTorch's do; the authors' network draws those of all its layers anew.

>>> import torch
>>> PyramidSplit(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
>>> PyramidSplit(64, out_channels=32, stride=2)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 32, 4, 4])
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import Pointwise, gate, mean_places
from visattn.blocks.widths import output_width
from visattn.core.arguments import Device, DType

PYRAMID = ((9, 16), (7, 8), (5, 4), (3, 1))  # kernel size and groups, in the order of the output


@register_block("psa", family="channel", paper="Zhang et al., ACCV 2022, arXiv:2105.14447", attends="branches")
class PyramidSplit(nn.Module):
    """Four receptive fields with a quarter of the channels each, weighed against each other.

    Args:
        channels: of the input.
        out_channels: C of the output, a multiple of four; as many as of the input unless given.
        stride: of the four convolutions.
        rd_ratio: width of the bottleneck as a fraction of C/4.
        groups: of the four convolutions, besides their own; must divide C/4.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        rd_ratio: float = 1 / 16,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("psa", channels, out_channels, stride)
        if width % 4:
            raise ValueError(f"psa divides its output into four, so it needs a multiple of 4 channels, got {width}")
        quarter = output_width("psa", channels, width // 4, stride, groups)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        settings: dict[str, Any] = {"stride": stride, "bias": False, **factory}
        self.branches = nn.ModuleList(
            nn.Conv2d(channels, quarter, k, padding=k // 2, groups=math.lcm(groups, own), **settings)
            for k, own in ((k, math.gcd(own, channels, quarter)) for k, own in PYRAMID)
        )
        hidden = reduced(quarter, rd_ratio)
        self.fc1 = Pointwise(quarter, hidden, **factory)
        self.fc2 = Pointwise(hidden, quarter, **factory)

    def _branches(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)

    def _weights(self, branches: Tensor) -> Tensor:
        z = mean_places(branches).unflatten(1, (4, -1)).flatten(0, 1)  # (4B, C/4, 1, 1)
        z = torch.sigmoid(self.fc2(F.relu(self.fc1(z)))).unflatten(0, (-1, 4))
        return F.softmax(z, dim=1).flatten(1, 2)  # (B, C, 1, 1)

    def attention(self, x: Tensor) -> Tensor:
        """Weight of every channel of the output against its rivals in the other quarters, (B, C, 1, 1)."""
        return self._weights(self._branches(x))

    def forward(self, x: Tensor) -> Tensor:
        """The weighted branches side by side, (B, C, H / stride, W / stride)."""
        branches = self._branches(x)
        return gate(branches, self._weights(branches))
