r"""Large Kernel Attention.

Guo et al., *Visual Attention Network*, Computational Visual Media 2023, https://arxiv.org/abs/2202.09741

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}(\mathrm{dw}^{d=3}_{7\times7}(\mathrm{dw}_{5\times5}(x)))

a 21x21 receptive field from a depthwise, a dilated depthwise and a pointwise convolution, without a sigmoid.

Differences from the paper: none. VAN wraps this core in two more 1x1 convolutions, a GELU and a shortcut. It has no
stride; here the output is averaged over stride x stride pixels. It has no groups; here, as in any such decomposition of
a convolution, they are those of the last, pointwise one (``mix``).

>>> import torch
>>> LargeKernel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import gate
from visattn.blocks.widths import output_width
from visattn.blocks.windows import averages
from visattn.core.arguments import Device, DType


@register_block(
    "lka",
    family="spatial",
    paper="Guo et al., CVM 2023, arXiv:2202.09741",
    attends="channels and places",
    used_in="the blocks of VAN",
)
class LargeKernel(Gate):
    """A decomposed 21x21 convolution as the gate.

    Args:
        channels: C.
        out_channels: of the output; none but C, since the gate multiplies the input.
        stride: the output is averaged over stride x stride pixels.
        groups: of the pointwise convolution; the others have one for every channel.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("lka", channels, out_channels, stride, groups)
        if width != channels:
            raise ValueError(f"lka multiplies its input of {channels} channels: it cannot have an output of {width}")
        self.stride = stride
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.local = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, **factory)
        self.distant = nn.Conv2d(channels, channels, 7, padding=9, dilation=3, groups=channels, **factory)
        self.mix = nn.Conv2d(channels, channels, 1, groups=groups, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.distant(self.local(x)))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H / stride, W / stride)."""
        return averages(gate(x, self.attention(x)), self.stride)
