r"""Involution: every pixel makes its own kernel, which many channels share.

Li et al., *Involution: Inverting the Inherence of Convolution for Visual Recognition*, CVPR 2021,
https://arxiv.org/abs/2103.06255

.. math:: \mathcal{H}_i = W_1\, \mathrm{ReLU}(\mathrm{BN}(W_0\, x_i)), \qquad
          y_{i,c} = \sum_{t \in K \times K} \mathcal{H}_{i,\,t,\,\lceil cG/C \rceil}\; x_{i + t,\,c}

where W_0 (C/4, C) is ``reduce``, W_1 (G·K², C/4), which has a bias, is ``span``, K is ``kernel_size`` = 7, and the
C/G = 16 channels of a group (``group_channels``) share a kernel. Pixels outside the map are zero.

Differences from the paper: none from the authors' code, where the norm, the bias and the initialisation are. As there,
with a stride the kernels are made of the averages of stride x stride pixels; here that may be fewer at the end of a map
whose size is no multiple of it. Another number of channels going out than coming in is ours: ``value``, a 1x1
convolution, maps to it first. Groups have 16 channels where that divides them, else the largest common divisor. These
groups share a kernel; those of a convolution say which channels are added up, and here none are: y_c is made of x_c
alone, and only the kernels of all channels.

>>> import torch
>>> involution = Involution(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> involution(x).shape, involution.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
>>> Involution(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.blocks.primitives import Pointwise, mix
from visattn.blocks.widths import odd, output_width
from visattn.blocks.windows import averages, neighbours, spread
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block("involution", family="self", paper="Li et al., CVPR 2021, arXiv:2103.06255")
class Involution(nn.Module):
    """A convolution whose kernel changes from pixel to pixel, and hardly from channel to channel.

    Args:
        channels: C of the input.
        out_channels: of the output; as many as of the input unless given.
        stride: there is a kernel only at every so many-th row and column.
        kernel_size: side K of a kernel; an odd number.
        group_channels: channels that share a kernel; must divide those of the output.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        kernel_size: int = 7,
        group_channels: int | None = None,
        rd_ratio: float = 1 / 4,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("involution", channels, out_channels, stride)
        odd("involution", most=63, kernel_size=kernel_size)
        group_channels = math.gcd(width, 16) if group_channels is None else group_channels
        if group_channels < 1 or width % group_channels:
            raise ValueError(f"involution: groups of {group_channels} channels do not divide {width} channels")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)
        self.stride = stride
        self.kernel_size = kernel_size
        self.groups = width // group_channels
        self.reduce = Pointwise(channels, hidden, bias=False, **factory)
        self.bn = nn.BatchNorm2d(hidden, **factory)
        self.span = Pointwise(hidden, self.groups * kernel_size**2, **factory)
        self.value = nn.Identity() if width == channels else Pointwise(channels, width, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He's initialisation of the layers that make the kernels."""
        for layer in (self.reduce, self.span):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if self.span.bias is not None:
            nn.init.zeros_(self.span.bias)

    def _kernels(self, x: Tensor) -> Tensor:
        """The kernels of every pixel, (B, G, K², H', W')."""
        kernels = self.span(F.relu(self.bn(self.reduce(averages(x, self.stride)))))
        return kernels.unflatten(1, (self.groups, -1))

    def attention(self, x: Tensor) -> Tensor:
        """What every position of the output (row) takes from every one of the input, (B, G, N', N); of either sign."""
        places = neighbours(x, self.kernel_size).unflatten(0, (x.shape[2], x.shape[3]))
        places = places[:: self.stride, :: self.stride].flatten(0, 1)  # (N', K²)
        return spread(self._kernels(x).flatten(3).mT, places, x.shape[2] * x.shape[3])

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        height, width, margin = x.shape[2], x.shape[3], self.kernel_size // 2
        value = F.pad(precise(self.value(x)), [margin, margin, margin, margin]).unflatten(1, (self.groups, -1))
        shifted = [
            value[..., row : row + height : self.stride, column : column + width : self.stride]
            for row in range(self.kernel_size)
            for column in range(self.kernel_size)
        ]  # (B, G, C' / G, H', W') each
        y = mix(
            shifted, precise(self._kernels(x)).transpose(1, 2).unsqueeze(3)
        )  # the sum may pass through large numbers
        return laid_out_like(y.flatten(1, 2).to(x.dtype), x)
