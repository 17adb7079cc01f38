r"""Large separable kernel attention.

Lau et al., *Large Separable Kernel Attention: Rethinking the Large Kernel Attention Design in CNN*, Expert Systems with
Applications 236, 2024, https://arxiv.org/abs/2309.01439

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}\big(\mathrm{dw}^d_{l\times1}(\mathrm{dw}^d_{1\times l}(
          \mathrm{dw}_{s\times1}(\mathrm{dw}_{1\times s}(x))))\big), \qquad s = 2d - 1, \quad l = \lfloor k / d \rfloor

the two depthwise convolutions of :mod:`visattn.blocks.lka` as a row and a column each (``row``, ``column``,
``far_row``, ``far_column``), a 1x1 convolution (``mix``), and no sigmoid. The dilation is d = 2 for k = 7 and 11, and
d = 3 for larger k.

Differences from the paper: none. The default k = 23 is that of the released ImageNet models. VAN, where the authors
put this in the place of LKA, wraps it in two more 1x1 convolutions, a GELU and a shortcut, and draws the weights of the
whole network from normal distributions; here they start as PyTorch's do, like those of ``lka``. Common copies default
to k = 7 or 11.

>>> import torch
>>> block = SeparableLargeKernel(64)
>>> block(torch.randn(2, 64, 8, 8)).shape, block.far_row.kernel_size, block.far_row.dilation
(torch.Size([2, 64, 8, 8]), (1, 7), (3, 3))
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.strips import depthwise
from visattn.core.arguments import Device, DType

DILATIONS = {7: 2, 11: 2, 23: 3, 35: 3, 41: 3, 53: 3}  # by kernel size


@register_block(
    "lska",
    family="spatial",
    paper="Lau et al., ESWA 2024, arXiv:2309.01439",
    attends="channels and places",
    used_in="the blocks of VAN",
)
class SeparableLargeKernel(Gate):
    """A large convolution, decomposed into rows and columns, as the gate.

    Args:
        channels: C.
        kernel_size: 7, 11, 23, 35, 41 or 53.
    """

    def __init__(self, channels: int, *, kernel_size: int = 23, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        if kernel_size not in DILATIONS:
            raise ValueError(f"lska needs a kernel_size of {', '.join(map(str, DILATIONS))}, got {kernel_size}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        dilation = DILATIONS[kernel_size]
        near, far = 2 * dilation - 1, kernel_size // dilation
        self.row = depthwise(channels, 1, near, **factory)
        self.column = depthwise(channels, near, 1, **factory)
        self.far_row = depthwise(channels, 1, far, dilation=dilation, **factory)
        self.far_column = depthwise(channels, far, 1, dilation=dilation, **factory)
        self.mix = nn.Conv2d(channels, channels, 1, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.far_column(self.far_row(self.column(self.row(x)))))
