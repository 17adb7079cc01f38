r"""Context anchor attention.

Cai et al., *Poly Kernel Inception Network for Remote Sensing Detection*, CVPR 2024, https://arxiv.org/abs/2403.06258

.. math:: \tilde x = x \cdot \sigma\big(W_2\, \mathrm{dw}_{k\times1}(\mathrm{dw}_{1\times k}(W_1\, P x))\big)

where P is a 7x7 average of stride 1, W_1 and W_2 are 1x1 convolutions (``first``, ``last``), and the two strips are
``row`` and ``column``. Zeros beyond the border count in the average.

Differences from the paper: PKINet computes the gate g from one map and applies it to another, p + p·g; here both are x,
without the shortcut. The biases start at zero, as in the authors' code. The default k = 11 is that of the first unit of
a stage; the i-th has 11 + 2i. Widely copied versions have batch norms and SiLUs behind the 1x1 convolutions: those are
defaults of the authors' class that their network turns off.

>>> import torch
>>> ContextAnchor(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.strips import depthwise
from visattn.blocks.widths import odd
from visattn.core.arguments import Device, DType


@register_block(
    "caa",
    family="spatial",
    paper="Cai et al., CVPR 2024, arXiv:2403.06258",
    attends="channels and places",
    used_in="the blocks of PKINet",
)
class ContextAnchor(Gate):
    """Local average -> a long row and a long column -> sigmoid.

    Args:
        channels: C.
        kernel_size: length k of the row and of the column; an odd number.
    """

    def __init__(self, channels: int, *, kernel_size: int = 11, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        odd("caa", kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.first = nn.Conv2d(channels, channels, 1, **factory)
        self.row = depthwise(channels, 1, kernel_size, **factory)
        self.column = depthwise(channels, kernel_size, 1, **factory)
        self.last = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Biases of zero."""
        for layer in (self.first, self.row, self.column, self.last):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # every convolution here has one

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W)."""
        around = F.avg_pool2d(x, 7, stride=1, padding=3)
        return torch.sigmoid(self.last(self.column(self.row(self.first(around)))))
