r"""Adaptive fine-grained channel attention.

Sun et al., *Unsupervised Bidirectional Contrastive Reconstruction and Adaptive Fine-Grained Channel Attention
Networks for Image Dehazing*, Neural Networks 2024, https://github.com/Lose-Code/UBRFC-Net

.. math:: u = k * z, \qquad v = W z, \qquad M = u v^\top, \qquad
          f = m\,\sigma\big(\textstyle\sum_i M_{i\cdot}\big) + (1 - m)\,\sigma\big(\sum_j M_{\cdot j}\big), \qquad
          \tilde x = x \cdot \sigma(k * f), \qquad z = \mathrm{GAP}(x)

where k is ``conv``, the convolution over channels of :mod:`visattn.blocks.eca` and the same in both places, W (C, C)
is ``fc``, with bias, and m = σ(``theta``): neighbours and all channels meet in M, and a learned share decides between
them.

Differences from the authors' code: none. M is not formed, as the sums over its rows and columns are (Σ u) v and (Σ v)
u. Not to be confused with :mod:`visattn.blocks.fca`, which has the same initials. Common copies compute the same; a few
leave out the learned share, or W as well.

>>> import torch
>>> FineGrainedChannel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.eca import fitting_kernel
from visattn.blocks.primitives import AcrossChannels, Pointwise, mean_places
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block(
    "fcattention", family="channel", paper="Sun et al., Neural Networks 2024", used_in="a network for dehazing"
)
class FineGrainedChannel(Gate):
    """Global average -> neighbouring channels against all channels, both ways -> a learned mixture -> sigmoid.

    Args:
        channels: C.
        kernel_size: an odd number; from ECA's formula unless given.
    """

    def __init__(
        self, channels: int, *, kernel_size: int | None = None, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        kernel_size = fitting_kernel("fcattention", channels, kernel_size)
        self.conv = AcrossChannels(1, 1, kernel_size, device=device, dtype=dtype)
        self.fc = Pointwise(channels, channels, device=device, dtype=dtype)
        self.theta = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with a share of 0.31, as the authors do."""
        nn.init.constant_(self.theta, -0.8)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(x)  # (B, C, 1, 1)
        u = precise(self.conv(z.flatten(2).mT))  # (B, 1, C)
        v = precise(self.fc(z).flatten(2).mT)
        over_rows = torch.sigmoid(u.sum(2, keepdim=True) * v)
        over_columns = torch.sigmoid(v.sum(2, keepdim=True) * u)
        share = torch.sigmoid(self.theta)
        f = share * over_rows + (1 - share) * over_columns
        return torch.sigmoid(self.conv(f.to(x.dtype))).mT.unsqueeze(-1)  # (B, C, 1, 1)
