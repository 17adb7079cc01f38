r"""Efficient channel attention with a hidden layer.

timm's ``EcaModule(use_mlp=True)``, https://github.com/huggingface/pytorch-image-models; after Wang et al., *ECA-Net:
Efficient Channel Attention for Deep Convolutional Neural Networks*, CVPR 2020, https://arxiv.org/abs/1910.03151

.. math:: \tilde x_c = x_c \cdot \sigma\Big(b + \sum_{r=1}^{R} \sum_{t=0}^{k-1} w_{rt}\,
          h_{r,\, c + t - \lfloor k/2 \rfloor}\Big), \qquad h_{rc} = \mathrm{ReLU}(v_r z_c + d_r), \qquad
          z = \mathrm{GAP}(x)

where v and d (R) are ``expand``, w (R, k) and b are ``conv``, and h is zero beyond the first and the last channel. R
is C/8, rounded to a multiple of eight.

Differences from timm, where this block comes from and bears the same name: none. The kernel size is ECA's, but at
least 3, as there. There is no paper of its own and no published result. ECA with circular padding is timm's ``ceca``:
:mod:`visattn.blocks.ceca`.

>>> import torch
>>> EfficientChannelMLP(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.eca import fitting_kernel
from visattn.blocks.primitives import AcrossChannels, mean_places
from visattn.core.arguments import Device, DType


def hidden_width(channels: int) -> int:
    """C/8 as the nearest multiple of eight, at least eight, and not more than a tenth below C/8.

    >>> [hidden_width(c) for c in (16, 64, 140, 256)]
    [8, 8, 16, 32]
    """
    near = max(8, (channels // 8 + 4) // 8 * 8)
    return near if near >= 0.9 * channels / 8 else near + 8


@register_block("ecam", family="channel", paper="timm's EcaModule, after Wang et al., CVPR 2020, arXiv:1910.03151")
class EfficientChannelMLP(Gate):
    """Global average -> R rectified copies -> 1-D convolution across neighbouring channels -> sigmoid.

    Args:
        channels: C.
        kernel_size: an odd number; from ECA's formula, and at least 3, unless given.
    """

    def __init__(
        self, channels: int, *, kernel_size: int | None = None, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        kernel_size = fitting_kernel("ecam", channels, kernel_size, least=3)
        hidden = hidden_width(channels)
        self.expand = AcrossChannels(1, hidden, 1, bias=True, device=device, dtype=dtype)
        self.conv = AcrossChannels(hidden, 1, kernel_size, bias=True, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(x).flatten(1).unsqueeze(1)  # (B, 1, C)
        h = F.relu(self.expand(z))  # (B, R, C)
        return torch.sigmoid(self.conv(h)).mT.unsqueeze(-1)  # (B, C, 1, 1)
