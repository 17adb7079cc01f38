r"""Squeeze-and-Excitation.

Hu et al., *Squeeze-and-Excitation Networks*, CVPR 2018, https://arxiv.org/abs/1709.01507

.. math:: \tilde x_c = x_c \cdot \sigma(W_2\, \mathrm{ReLU}(W_1 z + b_1) + b_2)_c, \qquad z = \mathrm{GAP}(x)

where W_1 (C/r, C) is ``fc1``, W_2 (C, C/r) is ``fc2`` and r = 1 / ``rd_ratio`` = 16.

Differences from the paper: none. The equation in the paper shows no biases; the authors' Caffe models, from which
the published 28.09 M parameters of SE-ResNet-50 come, have them, and so has this block (``bias=False`` removes them).
The bottleneck is exactly C/r wide: timm's ``SEModule`` rounds it to a multiple of eight.

>>> import torch
>>> se = SqueezeExcite(64)
>>> x = torch.randn(2, 64, 8, 8)
>>> se(x).shape, se.attention(x).shape
(torch.Size([2, 64, 8, 8]), torch.Size([2, 64, 1, 1]))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.primitives import Pointwise, mean_places
from visattn.core.arguments import Device, DType


@register_block("se", family="channel", paper="Hu et al., CVPR 2018, arXiv:1709.01507")
class SqueezeExcite(Gate):
    """Global average -> bottleneck -> sigmoid: one weight per channel.

    Args:
        channels: C.
        rd_ratio: width of the bottleneck as a fraction of C.
        bias: whether the two layers have biases.
    """

    def __init__(
        self, channels: int, *, rd_ratio: float = 1 / 16, bias: bool = True, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        hidden = reduced(channels, rd_ratio)
        self.fc1 = Pointwise(channels, hidden, bias=bias, device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, bias=bias, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(x)  # (B, C, 1, 1)
        return torch.sigmoid(self.fc2(F.relu(self.fc1(z))))
