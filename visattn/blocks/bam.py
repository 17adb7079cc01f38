r"""Bottleneck Attention Module.

Park et al., *BAM: Bottleneck Attention Module*, BMVC 2018, https://arxiv.org/abs/1807.06514

.. math:: \tilde x = x \cdot (1 + \sigma(M_c(x) \cdot M_s(x)))

where M_c (B, C, 1, 1) is ``channel``: mean, bottleneck of C/16 with batch norm; and M_s (B, 1, H, W) is ``spatial``:
1x1 to C/16 channels, two 3x3 convolutions of dilation 4, 1x1 to one channel, with batch norm and ReLU in between.

Differences from the paper: the paper adds, σ(M_c + M_s); the authors' released code, which produced the published
figures, multiplies, and so does this block. All layers have biases, as there. In a ResNet it stands after stages 1, 2
and 3 only.

>>> import torch
>>> BAM(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.primitives import Pointwise, mean_places
from visattn.core.arguments import Device, DType, positive


@register_block("bam", family="mixed", paper="Park et al., BMVC 2018, arXiv:1807.06514")
class BAM(Gate):
    """Channel and spatial logits, combined before one sigmoid.

    Args:
        channels: C.
        rd_ratio: width of both bottlenecks as a fraction of C.
        dilation: of the two 3x3 convolutions.
    """

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 16,
        dilation: int = 4,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("bam", dilation=dilation)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)
        self.channel = nn.Sequential(
            Pointwise(channels, hidden, **factory),
            nn.BatchNorm2d(hidden, **factory),
            nn.ReLU(),
            Pointwise(hidden, channels, **factory),
        )
        wide: dict[str, Any] = {"kernel_size": 3, "padding": dilation, "dilation": dilation}
        self.spatial = nn.Sequential(
            *(nn.Conv2d(channels, hidden, 1, **factory), nn.BatchNorm2d(hidden, **factory), nn.ReLU()),
            *(nn.Conv2d(hidden, hidden, **wide, **factory), nn.BatchNorm2d(hidden, **factory), nn.ReLU()),
            *(nn.Conv2d(hidden, hidden, **wide, **factory), nn.BatchNorm2d(hidden, **factory), nn.ReLU()),
            nn.Conv2d(hidden, 1, 1, **factory),
        )

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), between 1 and 2."""
        channel = self.channel(mean_places(x))  # (B, C, 1, 1)
        return 1 + torch.sigmoid(channel * self.spatial(x))
