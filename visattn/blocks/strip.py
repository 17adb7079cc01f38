r"""The strip module of Strip R-CNN.

Yuan et al., *Strip R-CNN: Large Strip Convolution for Remote Sensing Object Detection*, 2025,
https://arxiv.org/abs/2501.03775

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}(\mathrm{dw}_{k\times1}(\mathrm{dw}_{1\times k}(
          \mathrm{dw}_{5\times5}(x)))), \qquad k = 19

where the depthwise convolutions are ``local``, ``row`` and ``column``, the pointwise one ``mix``, and there is no
sigmoid.

Differences from the paper: none. StripNet wraps this core in two more 1x1 convolutions, a GELU and a shortcut, and
draws the weights of the whole network from normal distributions; here they start as PyTorch's do, like those of
``lka``. timm's ``strip`` is another thing: a sigmoid gate from the means of rows and columns.

>>> import torch
>>> StripConvolution(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.strips import depthwise
from visattn.blocks.widths import odd
from visattn.core.arguments import Device, DType


@register_block(
    "strip",
    family="spatial",
    paper="Yuan et al., 2025, arXiv:2501.03775",
    attends="channels and places",
    used_in="the blocks of StripNet",
)
class StripConvolution(Gate):
    """A long row, then a long column, as the gate.

    Args:
        channels: C.
        kernel_size: length k of the row and of the column; an odd number.
    """

    def __init__(self, channels: int, *, kernel_size: int = 19, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        odd("strip", kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.local = depthwise(channels, 5, 5, **factory)
        self.row = depthwise(channels, 1, kernel_size, **factory)
        self.column = depthwise(channels, kernel_size, 1, **factory)
        self.mix = nn.Conv2d(channels, channels, 1, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.column(self.row(self.local(x))))
