r"""Concurrent spatial and channel squeeze-and-excitation, and its two halves.

Roy et al., *Concurrent Spatial and Channel Squeeze & Excitation in Fully Convolutional Networks*, MICCAI 2018,
https://arxiv.org/abs/1803.02579

.. math::
    \mathrm{cSE}(x) = x \cdot \sigma(W_2\,\mathrm{ReLU}(W_1 z)), \qquad
    \mathrm{sSE}(x) = x \cdot \sigma(w^\top x_{ij} + b), \qquad
    \mathrm{scSE}(x) = \max(\mathrm{cSE}(x), \mathrm{sSE}(x))

where z = GAP(x), the bottleneck of cSE is C/2 wide, and w is ``conv``, a 1x1 convolution to one channel.

Differences from the paper: the conference paper adds the two halves; the authors' code and their journal version take
the elementwise maximum, as here. (segmentation_models.pytorch adds, with a bottleneck of C/16.) Since the larger of
x·a and x·b is x times the *smaller* gate where x is negative, the map that scSE multiplies by is max(a, b) where
x >= 0 and min(a, b) elsewhere.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> scse = ConcurrentSE(64)
>>> torch.equal(scse(x), torch.maximum(scse.channel(x), scse.spatial(x)))
True
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import Pointwise, by_image, gate, is_bare, trains_plainly
from visattn.blocks.se import SqueezeExcite
from visattn.core.arguments import Device, DType

PAPER = "Roy et al., MICCAI 2018, arXiv:1803.02579"


@register_block("cse", family="channel", paper=PAPER, used_in="networks for segmentation")
class ChannelSE(SqueezeExcite):
    """Squeeze-and-excitation with a bottleneck of half the channels.

    Args:
        channels: C.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 2, device: Device = None, dtype: DType = None) -> None:
        super().__init__(channels, rd_ratio=rd_ratio, device=device, dtype=dtype)


@register_block("sse", family="spatial", paper=PAPER, used_in="networks for segmentation")
class SpatialSE(Gate):
    """A 1x1 convolution to one channel and a sigmoid: one weight per position.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.conv = Pointwise(channels, 1, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Spatial gate (B, 1, H, W)."""
        return torch.sigmoid(self.conv(x))


@register_block("scse", family="mixed", paper=PAPER, used_in="networks for segmentation")
class ConcurrentSE(nn.Module):
    """The elementwise maximum of the channel-gated and the spatially gated input.

    Args:
        channels: C.
        rd_ratio: width of the channel half's bottleneck as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 2, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.channel = ChannelSE(channels, rd_ratio=rd_ratio, device=device, dtype=dtype)
        self.spatial = SpatialSE(channels, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """The map that the input is in effect multiplied by, (B, C, H, W)."""
        channel, spatial = self.channel.attention(x), self.spatial.attention(x)
        return torch.where(x >= 0, torch.maximum(channel, spatial), torch.minimum(channel, spatial))

    def forward(self, x: Tensor) -> Tensor:
        """The larger of the two gated inputs, (B, C, H, W)."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            bare = trains_plainly(x) and is_bare(self.channel, ChannelSE) and is_bare(self.spatial, SpatialSE)
            if bare:
                return by_image(larger, x, self.channel.attention(x), self.spatial.attention(x))
        return torch.maximum(self.channel(x), self.spatial(x))


def larger(x: Tensor, channel: Tensor, spatial: Tensor) -> Tensor:
    """The larger of two gated maps."""
    return torch.maximum(gate(x, channel), gate(x, spatial))
