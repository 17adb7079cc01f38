r"""Circular efficient channel attention.

Ha, in timm's ``layers/eca.py`` (``CecaModule``), https://github.com/huggingface/pytorch-image-models; after Wang et
al., *ECA-Net: Efficient Channel Attention for Deep Convolutional Neural Networks*, CVPR 2020,
https://arxiv.org/abs/1910.03151

.. math:: \tilde x_c = x_c \cdot \sigma\Big(\sum_{t=0}^{k-1} w_t\, z_{(c + t - \lfloor k/2 \rfloor) \bmod C}\Big),
          \qquad z = \mathrm{GAP}(x)

where w (k) is ``conv``, without bias: :mod:`visattn.blocks.eca`, but the last channel is a neighbour of the first, so
that no channel sees zeros.

Differences from timm: none. The kernel size is ECA's, but at least 3, as there. There is no paper of its own and no
published result. timm's ``ecam`` is something else: :mod:`visattn.blocks.ecam`.

>>> import torch
>>> CircularChannel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.eca import fitting_kernel
from visattn.blocks.primitives import AcrossChannels, mean_places
from visattn.core.arguments import Device, DType


@register_block("ceca", family="channel", paper="timm's CecaModule, after Wang et al., CVPR 2020, arXiv:1910.03151")
class CircularChannel(Gate):
    """Global average -> 1-D convolution around the circle of channels -> sigmoid.

    Args:
        channels: C.
        kernel_size: an odd number; from ECA's formula, and at least 3, unless given.
    """

    def __init__(
        self, channels: int, *, kernel_size: int | None = None, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        kernel_size = fitting_kernel("ceca", channels, kernel_size, least=3)
        if kernel_size // 2 > channels:
            raise ValueError(f"a kernel_size of {kernel_size} goes more than once around {channels} channels")
        self.conv = AcrossChannels(1, 1, kernel_size, padding_mode="circular", device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(x).flatten(1).unsqueeze(1)  # (B, 1, C)
        return torch.sigmoid(self.conv(z)).mT.unsqueeze(-1)  # (B, C, 1, 1)
