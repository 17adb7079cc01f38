r"""Large Kernel Attention.

Guo et al., *Visual Attention Network*, Computational Visual Media 2023, https://arxiv.org/abs/2202.09741

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}(\mathrm{dw}^{d=3}_{7\times7}(\mathrm{dw}_{5\times5}(x)))

a 21x21 receptive field from a depthwise, a dilated depthwise and a pointwise convolution, without a sigmoid.

Differences from the paper: none. VAN wraps this core in two more 1x1 convolutions, a GELU and a shortcut.

>>> import torch
>>> LargeKernel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.core.arguments import Device, DType


@register_block("lka", family="spatial", paper="Guo et al., CVM 2023, arXiv:2202.09741")
class LargeKernel(Gate):
    """A decomposed 21x21 convolution as the gate.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"groups": channels, "device": device, "dtype": dtype}
        self.local = nn.Conv2d(channels, channels, 5, padding=2, **factory)
        self.distant = nn.Conv2d(channels, channels, 7, padding=9, dilation=3, **factory)
        self.mix = nn.Conv2d(channels, channels, 1, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.distant(self.local(x)))
