r"""Normalization-based attention, the channel part.

Liu et al., *NAM: Normalization-based Attention Module*, NeurIPS Workshop 2021, https://arxiv.org/abs/2111.12419

.. math:: \tilde x_c = x_c \cdot \sigma\Big(\frac{|\gamma_c|}{\sum_j |\gamma_j|}\, \mathrm{BN}(x)_c\Big)

where γ (C) are the scales of that same batch norm, ``bn``: what the network scales up is taken to matter.

Differences from the paper: its equation ends at the sigmoid; the authors' code multiplies the input by it, and so
does this block. As in their code, no gradient goes through the share of γ: γ learns through the batch norm only.
Where all γ are zero the share is 0/0 there and zero here. The spatial part, which the paper describes and nobody
released, needs a batch norm with a scale for every pixel of a map of fixed size; it is left out. So is the penalty on
|γ| that the authors add to the loss: it belongs to training. Common copies compute the same; that in Plug-play-modules
adds a spatial part of its own making.

>>> import torch
>>> NormalizationBased(64).eval()(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block("nam", family="mixed", paper="Liu et al., NeurIPSW 2021, arXiv:2111.12419")
class NormalizationBased(Gate):
    """Batch norm, weighted by each channel's share in its scales -> sigmoid.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W)."""
        scales = precise(self.bn.weight.detach()).abs()
        share = scales / scales.sum().clamp(min=1e-30)  # (C)
        return torch.sigmoid(share.to(x.dtype)[:, None, None] * self.bn(x))
