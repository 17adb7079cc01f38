r"""Spatial attention: the second half of CBAM.

Woo et al., *CBAM: Convolutional Block Attention Module*, ECCV 2018, https://arxiv.org/abs/1807.06521

.. math:: \tilde x = x \cdot \sigma(\mathrm{BN}(f^{7\times7}([\max_c x;\ \mathrm{mean}_c\, x])))

where f is ``gate.conv``, a convolution from two channels to one.

Differences from the paper: the paper writes [mean; max] and no batch norm. The authors' code, which produced the
published figures, stacks [max; mean], has no bias, and adds a batch norm whose scale starts at zero (so that the gate
starts at one half everywhere) and whose momentum is 0.01.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> SpatialAttention(64).attention(x).unique()
tensor([0.5000], grad_fn=<Unique2Backward0>)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import gate_by_max_mean, max_mean
from visattn.blocks.widths import odd
from visattn.core.arguments import Device, DType


class MaxMeanGate(nn.Module):
    """σ(BN(conv([max; mean]))): a map from the maximum and the mean along one axis.

    Args:
        kernel_size: an odd number.
    """

    def __init__(self, kernel_size: int = 7, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        odd("a spatial gate", kernel_size=kernel_size)
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False, device=device, dtype=dtype)
        self.bn = nn.BatchNorm2d(1, momentum=0.01, device=device, dtype=dtype)

    def forward(self, peak: Tensor, mean: Tensor) -> Tensor:
        """(B, 1, ·, ·) each -> (B, 1, ·, ·)."""
        return torch.sigmoid(self.bn(self.conv(torch.cat([peak, mean], dim=1))))


@register_block("spatial", family="spatial", paper="Woo et al., ECCV 2018, arXiv:1807.06521")
class SpatialAttention(Gate):
    """Maximum and mean over channels -> convolution -> batch norm -> sigmoid: one weight per position.

    Args:
        channels: C.
        kernel_size: an odd number.
    """

    def __init__(self, channels: int, *, kernel_size: int = 7, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.channels = channels
        self.gate = MaxMeanGate(kernel_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with the same weight everywhere."""
        nn.init.zeros_(self.gate.bn.weight)

    def attention(self, x: Tensor) -> Tensor:
        """Spatial gate (B, 1, H, W)."""
        return self.gate(*max_mean(x, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return gate_by_max_mean(x, (1,), self.gate)
        return x * self.attention(x)
