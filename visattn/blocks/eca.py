r"""Efficient Channel Attention.

Wang et al., *ECA-Net: Efficient Channel Attention for Deep Convolutional Neural Networks*, CVPR 2020,
https://arxiv.org/abs/1910.03151

.. math:: \tilde x = x \cdot \sigma(\mathrm{conv1d}_k(\mathrm{GAP}(x))), \qquad
          k = \left| \frac{\log_2 C}{\gamma} + \frac{b}{\gamma} \right|_\mathrm{odd}, \quad \gamma = 2,\ b = 1

where conv1d runs over the channel axis, without bias and padded with zeros, and |t|_odd takes the integer part of t
and adds one if that is even.

Differences from the authors' code: none in the block. The released ImageNet models do not all use the formula:
ResNet-50 was trained with kernels 3, 5, 5, 7 (80 parameters), the formula gives 5, 5, 5, 7 (86). Pass
``kernel_size`` to follow a released model.

>>> import torch
>>> [eca_kernel_size(c) for c in (64, 256, 1024, 2048)]
[3, 5, 5, 7]
>>> EfficientChannel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import AcrossChannels, mean_places
from visattn.blocks.widths import odd
from visattn.core.arguments import Device, DType


def eca_kernel_size(channels: int) -> int:
    """The odd kernel size that the paper's formula assigns to a number of channels."""
    size = int((math.log2(channels) + 1) / 2)
    return size if size % 2 else size + 1


def fitting_kernel(owner: str, channels: int, kernel_size: int | None, *, least: int = 1) -> int:
    """The size of a kernel: as given, an odd number, or that of the formula, but no less than ``least``."""
    if kernel_size is None:
        return max(least, eca_kernel_size(channels))
    odd(owner, kernel_size=kernel_size)
    return kernel_size


@register_block("eca", family="channel", paper="Wang et al., CVPR 2020, arXiv:1910.03151")
class EfficientChannel(Gate):
    """Global average -> 1-D convolution across neighbouring channels -> sigmoid.

    Args:
        channels: C.
        kernel_size: an odd number; from the paper's formula unless given.
    """

    def __init__(
        self, channels: int, *, kernel_size: int | None = None, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        kernel_size = fitting_kernel("eca", channels, kernel_size)
        self.conv = AcrossChannels(1, 1, kernel_size, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(x).flatten(1).unsqueeze(1)  # (B, 1, C)
        return torch.sigmoid(self.conv(z)).transpose(1, 2).unsqueeze(-1)  # (B, C, 1, 1)
