r"""Effective Squeeze-and-Excitation.

Lee & Park, *CenterMask: Real-Time Anchor-Free Instance Segmentation*, CVPR 2020, https://arxiv.org/abs/1911.06667

.. math:: \tilde x_c = x_c \cdot h(W z + b)_c, \qquad z = \mathrm{GAP}(x), \qquad h(v) = \mathrm{ReLU6}(v + 3) / 6

where W (C, C) is ``fc``: one full layer instead of a bottleneck, so that no channel information is lost.

Differences from the paper: the paper writes a sigmoid; the authors' code, and so this block, uses the hard sigmoid h.

>>> import torch
>>> EffectiveSqueezeExcite(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import Pointwise, mean_places
from visattn.core.arguments import Device, DType


@register_block(
    "ese",
    family="channel",
    paper="Lee & Park, CVPR 2020, arXiv:1911.06667",
    used_in="the aggregation modules of VoVNet",
)
class EffectiveSqueezeExcite(Gate):
    """Global average -> one full layer -> hard sigmoid.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.fc = Pointwise(channels, channels, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        return F.hardsigmoid(self.fc(mean_places(x)))
