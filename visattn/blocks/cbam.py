r"""Convolutional Block Attention Module.

Woo et al., *CBAM: Convolutional Block Attention Module*, ECCV 2018, https://arxiv.org/abs/1807.06521

.. math:: x' = x \cdot \sigma(\mathrm{MLP}(\mathrm{avg}\,x) + \mathrm{MLP}(\max x)), \qquad
          \tilde x = x' \cdot \sigma(\mathrm{BN}(f^{7\times7}([\max_c x';\ \mathrm{mean}_c\, x'])))

where MLP is ``fc1``, a ReLU and ``fc2``, shared by both poolings, with a bottleneck of C/16.

Differences from the paper: those of :mod:`visattn.blocks.spatial`, and the MLP has biases (the paper's equation has
none). All follow the authors' code, which produced the published 28.09 M parameters of CBAM-ResNet-50.

>>> import torch
>>> cbam = CBAM(64)
>>> x = torch.randn(2, 64, 8, 8)
>>> cbam(x).shape, cbam.attention(x).shape
(torch.Size([2, 64, 8, 8]), torch.Size([2, 64, 8, 8]))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.primitives import (
    Pointwise,
    gate,
    gate_by_max_mean,
    gate_channels_places,
    is_bare,
    max_mean_places,
    trains_plainly,
)
from visattn.blocks.spatial import SpatialAttention
from visattn.core.arguments import Device, DType


class MaxMeanChannel(Gate):
    """The channel half of CBAM: one bottleneck for the mean and the maximum of every channel.

    Args:
        channels: C.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 16, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        hidden = reduced(channels, rd_ratio)
        self.fc1 = Pointwise(channels, hidden, device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, device=device, dtype=dtype)

    def weigh(self, peak: Tensor, mean: Tensor) -> Tensor:
        """Channel gate from the maximum and the mean of every channel, all (B, C, 1, 1)."""
        mean = self.fc2(F.relu(self.fc1(mean)))
        peak = self.fc2(F.relu(self.fc1(peak)))
        return torch.sigmoid(mean + peak)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        return self.weigh(*max_mean_places(x))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return gate_by_max_mean(x, (2, 3), self.weigh)
        return x * self.attention(x)


@register_block("cbam", family="mixed", paper="Woo et al., ECCV 2018, arXiv:1807.06521")
class CBAM(nn.Module):
    """A channel gate, then a spatial gate on the result.

    Args:
        channels: C.
        rd_ratio: width of the channel gate's bottleneck as a fraction of C.
        kernel_size: of the spatial gate; an odd number.
    """

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 16,
        kernel_size: int = 7,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        self.channel = MaxMeanChannel(channels, rd_ratio=rd_ratio, device=device, dtype=dtype)
        self.spatial = SpatialAttention(channels, kernel_size=kernel_size, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """The product of both gates, (B, C, H, W)."""
        channel = self.channel.attention(x)
        return channel * self.spatial.attention(gate(x, channel))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            bare = (
                trains_plainly(x) and is_bare(self.channel, MaxMeanChannel) and is_bare(self.spatial, SpatialAttention)
            )
            if bare:
                return gate_channels_places(x, self.channel.weigh, self.spatial.gate)
        return self.spatial(self.channel(x))
