r"""Deformable large kernel attention.

Azad et al., *Beyond Self-Attention: Deformable Large Kernel Attention for Medical Image Segmentation*, WACV 2024,
https://arxiv.org/abs/2309.00121

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}(D_7(D_5(x))), \qquad
          D_k(u)_c(p) = \sum_t w_{ct}\, u_c(p + d\,t + \Delta_t(p)), \qquad \Delta = \mathrm{conv}_{k\times k}(u)

:mod:`visattn.blocks.lka` (d = 1 for the 5x5, ``local``, and 3 for the 7x7, ``distant``) whose taps t move: at every
place p, each by an offset Δ of its own that is the same for all channels (``offsets``). Between pixels the map is
interpolated; outside of it, it is zero.

Differences from the authors' code: none (the 2-D version). The depthwise kernels w (``weight``) have no biases. The
convolutions to the offsets are dense and hold nearly all of the parameters; they do not start at zero. As in VAN, the
authors wrap this in two more 1x1 convolutions, a GELU and a shortcut. Common copies compute the same, mostly with that
wrapping.

Half precision is sampled in single precision: torchvision has no kernel for bfloat16.

>>> import torch
>>> DeformableLargeKernel(16)(torch.randn(2, 16, 8, 8)).shape
torch.Size([2, 16, 8, 8])
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from visattn.blocks.base import Gate, register_block
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


class DeformableDepthwise(nn.Module):
    """A depthwise convolution that says itself where each of its taps reads.

    Args:
        channels: C.
        kernel_size: k, an odd number.
        dilation: d.
    """

    def __init__(
        self, channels: int, kernel_size: int, *, dilation: int = 1, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.padding = dilation * (kernel_size // 2)
        self.dilation = dilation
        self.offsets = nn.Conv2d(
            channels, 2 * kernel_size**2, kernel_size, padding=self.padding, dilation=dilation, **factory
        )
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size, kernel_size, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As an ordinary convolution starts."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        offsets = self.offsets(x)  # (B, 2·k², H, W): down and right of each tap in row order
        padding, dilation = (self.padding, self.padding), (self.dilation, self.dilation)
        # torchvision crashes at a place that is no number. Such a tap stays, and reads the NaN that it comes from.
        places = precise(offsets).nan_to_num(0.0, 1e30, -1e30)
        read = deform_conv2d(precise(x), places, precise(self.weight), padding=padding, dilation=dilation)
        return read.to(x.dtype)


@register_block(
    "deformable_lka",
    family="spatial",
    paper="Azad et al., WACV 2024, arXiv:2309.00121",
    attends="channels and places",
    used_in="a network for segmentation",
)
class DeformableLargeKernel(Gate):
    """A decomposed 21x21 convolution, the taps of which move, as the gate.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.local = DeformableDepthwise(channels, 5, **factory)
        self.distant = DeformableDepthwise(channels, 7, dilation=3, **factory)
        self.mix = nn.Conv2d(channels, channels, 1, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.distant(self.local(x)))
