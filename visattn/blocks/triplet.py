r"""Triplet attention.

Misra et al., *Rotate to Attend: Convolutional Triplet Attention Module*, WACV 2021, https://arxiv.org/abs/2010.03045

.. math:: \tilde x = x \cdot \tfrac13 (g_{CW} + g_{HC} + g_{HW}), \qquad
          g = \sigma(\mathrm{BN}(f^{7\times7}([\max;\ \mathrm{mean}])))

where each gate pools one of the three axes (H, W or C) away and convolves over the plane of the other two.

Differences from the paper: none; order [max; mean], no bias, batch norm without ReLU, as in the authors' code.

>>> import torch
>>> sum(p.numel() for p in Triplet(64).parameters())
300
>>> Triplet(64)(torch.randn(2, 64, 8, 6)).shape
torch.Size([2, 64, 8, 6])
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import by_image, pool_max_mean
from visattn.blocks.spatial import MaxMeanGate
from visattn.core.arguments import Device, DType


@register_block("triplet", family="mixed", paper="Misra et al., WACV 2021, arXiv:2010.03045", attends="pairs of axes")
class Triplet(Gate):
    """The mean of three gates, one for each pair of axes.

    Args:
        channels: C.
        kernel_size: an odd number.
    """

    def __init__(self, channels: int, *, kernel_size: int = 7, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.channels = channels
        self.channel_width = MaxMeanGate(kernel_size, device=device, dtype=dtype)
        self.height_channel = MaxMeanGate(kernel_size, device=device, dtype=dtype)
        self.height_width = MaxMeanGate(kernel_size, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W)."""
        _, over_cw, over_hc, over_hw = self._gates(x)
        return mean_gate(over_cw, over_hc, over_hw)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        x, over_cw, over_hc, over_hw = self._gates(x)
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return by_image(gate_by_mean, x, over_cw, over_hc, over_hw)
        return gate_by_mean(x, over_cw, over_hc, over_hw)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, to go on with, and the gates (B, C, 1, W), (B, C, H, 1) and (B, 1, H, W)."""
        x, peak, mean = pool_max_mean(x, 2)
        over_cw = self.channel_width(peak.transpose(1, 2), mean.transpose(1, 2)).transpose(1, 2)
        x, peak, mean = pool_max_mean(x, 3)
        over_hc = self.height_channel(peak.permute(0, 3, 2, 1), mean.permute(0, 3, 2, 1)).permute(0, 3, 2, 1)
        x, peak, mean = pool_max_mean(x, 1)
        return x, over_cw, over_hc, self.height_width(peak, mean)


def mean_gate(over_cw: Tensor, over_hc: Tensor, over_hw: Tensor) -> Tensor:
    """The mean of three gates, (B, C, H, W)."""
    return (over_cw + over_hc + over_hw) / 3


def gate_by_mean(x: Tensor, over_cw: Tensor, over_hc: Tensor, over_hw: Tensor) -> Tensor:
    """The gated input, (B, C, H, W)."""
    return x * mean_gate(over_cw, over_hc, over_hw)
