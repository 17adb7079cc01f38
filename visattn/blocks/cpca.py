r"""Channel prior convolutional attention.

Huang et al., *Channel prior convolutional attention for medical image segmentation*, Computers in Biology and Medicine
178, 2024, https://arxiv.org/abs/2306.05196

.. math:: u = \mathrm{GELU}(Wx), \qquad f = u \cdot \big(\sigma(\mathrm{MLP}(\mathrm{avg}\,u))
          + \sigma(\mathrm{MLP}(\max u))\big), \qquad \tilde x = W\big((W s) \cdot f\big)

.. math:: s = e + \sum_{k \in \{7, 11, 21\}} \mathrm{dw}_{k\times1}(\mathrm{dw}_{1\times k}(e)), \qquad
          e = \mathrm{dw}_{5\times5}(f)

where W is ``mix``, one 1x1 convolution in three places, MLP is a ReLU between ``fc1`` and ``fc2`` in ``channel``, and s
is ``strips``, that of :mod:`visattn.blocks.msca`.

Differences from the paper: its equations have neither the first and the last W nor the GELU, and one sigmoid of the sum
where there are two here. All follow the authors' code, which produced the published figures. Their configurations have
bottlenecks of C/8 and C/16, of which this is the latter. In their network the block stands behind a batch norm and has
a shortcut around it. Common copies have a bottleneck of C/4.

>>> import torch
>>> cpca = ChannelPrior(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> cpca(x).shape, cpca.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 64, 8, 6]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.cbam import MaxMeanChannel
from visattn.blocks.primitives import gate
from visattn.blocks.strips import Strips
from visattn.core.arguments import Device, DType


class TwoSigmoids(MaxMeanChannel):
    """CBAM's channel gate with a sigmoid for the mean and another for the maximum: between 0 and 2."""

    def weigh(self, peak: Tensor, mean: Tensor) -> Tensor:
        """Channel gate from the maximum and the mean of every channel, all (B, C, 1, 1)."""
        mean = self.fc2(F.relu(self.fc1(mean)))
        peak = self.fc2(F.relu(self.fc1(peak)))
        return torch.sigmoid(mean) + torch.sigmoid(peak)


@register_block(
    "cpca", family="mixed", paper="Huang et al., CBM 2024, arXiv:2306.05196", used_in="a network for segmentation"
)
class ChannelPrior(nn.Module):
    """A channel gate, then a convolutional gate of the result, between two uses of one 1x1 convolution.

    Args:
        channels: C.
        rd_ratio: width of the channel gate's bottleneck as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 16, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.mix = nn.Conv2d(channels, channels, 1, **factory)
        self.channel = TwoSigmoids(channels, rd_ratio=rd_ratio, **factory)
        self.strips = Strips(channels, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """What u is multiplied by, (B, C, H, W), of either sign."""
        u = F.gelu(self.mix(x))
        channel = self.channel.attention(u)
        return gate(self.mix(self.strips(gate(u, channel))), channel)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        f = self.channel(F.gelu(self.mix(x)))
        return self.mix(self.mix(self.strips(f)) * f)
