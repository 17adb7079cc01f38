r"""Large selective kernel.

Li et al., *Large Selective Kernel Network for Remote Sensing Object Detection*, ICCV 2023,
https://arxiv.org/abs/2303.09030

.. math:: u_1 = \mathrm{dw}_{5\times5}(x), \qquad u_2 = \mathrm{dw}^{d=3}_{7\times7}(u_1), \qquad v_i = W_i u_i

.. math:: [s_1; s_2] = \sigma\big(\mathrm{conv}_{7\times7}[\mathrm{mean}_c[v_1; v_2];\ \max_c[v_1; v_2]]\big), \qquad
          \tilde x = x \cdot W(s_1 v_1 + s_2 v_2)

where the depthwise convolutions are ``local`` and ``distant``, W_1, W_2 (C/2, C) are ``narrow`` and ``wide``, the 7x7
convolution is ``choose`` and W (C, C/2) is ``mix``. There is no sigmoid around the gate.

Differences from the paper: none. LSKNet wraps this core in two more 1x1 convolutions, a GELU and a shortcut, and draws
the weights of the whole network from normal distributions; here they start as PyTorch's do, like those of ``lka``.
Half of an odd number of channels is rounded down, but not to zero. Common copies compute the same, with or without
LSKNet's wrapping.

>>> import torch
>>> lsk = LargeSelectiveKernel(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> lsk(x).shape, lsk.selection(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 2, 8, 6]))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.primitives import max_mean, mix
from visattn.blocks.strips import depthwise
from visattn.core.arguments import Device, DType


@register_block(
    "lsk",
    family="spatial",
    paper="Li et al., ICCV 2023, arXiv:2303.09030",
    attends="channels and places",
    used_in="the blocks of LSKNet",
)
class LargeSelectiveKernel(Gate):
    """Two receptive fields, mixed at every place as it needs, as the gate.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        half = reduced(channels, 1 / 2)
        self.local = depthwise(channels, 5, 5, **factory)
        self.distant = depthwise(channels, 7, 7, dilation=3, **factory)
        self.narrow = nn.Conv2d(channels, half, 1, **factory)
        self.wide = nn.Conv2d(channels, half, 1, **factory)
        self.choose = nn.Conv2d(2, 2, 7, padding=3, **factory)
        self.mix = nn.Conv2d(half, channels, 1, **factory)

    def _branches(self, x: Tensor) -> list[Tensor]:
        local = self.local(x)
        return [self.narrow(local), self.wide(self.distant(local))]

    def _select(self, branches: list[Tensor]) -> Tensor:
        (peak1, mean1), (peak2, mean2) = max_mean(branches[0], 1), max_mean(branches[1], 1)
        pooled = torch.cat([(mean1 + mean2) / 2, torch.maximum(peak1, peak2)], dim=1)  # (B, 2, H, W)
        return torch.sigmoid(self.choose(pooled))

    def selection(self, x: Tensor) -> Tensor:
        """Weights of the narrow and of the wide branch at every place, (B, 2, H, W)."""
        return self._select(self._branches(x))

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        branches = self._branches(x)
        return self.mix(mix(branches, self._select(branches).unsqueeze(2)))
