r"""Selective Kernel convolution.

Li et al., *Selective Kernel Networks*, CVPR 2019, https://arxiv.org/abs/1903.06586

.. math:: U_b = \mathrm{ReLU}(\mathrm{BN}(F_b(x))), \qquad
          z = \mathrm{ReLU}(\mathrm{BN}(W\,\mathrm{GAP}(U_1 + U_2))), \qquad
          a = \mathrm{softmax}_b(A_b z), \qquad \tilde x = \sum_b a_b \cdot U_b

where F_1 is a 3x3 and F_2 a 3x3 convolution of dilation 2 (``branches``), W (d, C) is ``reduce`` with
d = max(C/16, 32), and A_b are the two halves of ``select``.

Differences from the paper: none for 32 groups (the paper's ResNeXt setting: SKNet-50 is ``resnext50_32x4d_sk``); other
numbers of channels use the largest common divisor with 32. All convolutions are free of biases, as in the released
model with its 27.5 M parameters. A stride is that of the two convolutions, as there. timm's ``SelectiveKernel`` is the
same with ``split_input=False``; by default it gives each branch half of the input.

>>> import torch
>>> SelectiveKernel(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
>>> SelectiveKernel(64, out_channels=32, stride=2)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 32, 4, 4])
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.blocks.primitives import Pointwise, mean_places, mix
from visattn.blocks.widths import output_width
from visattn.core.arguments import Device, DType


@register_block("sk", family="channel", paper="Li et al., CVPR 2019, arXiv:1903.06586", attends="branches")
class SelectiveKernel(nn.Module):
    """Two receptive fields; every channel chooses between them.

    Args:
        channels: of the input.
        out_channels: C of the output; as many as of the input unless given.
        stride: of the two convolutions.
        rd_ratio: width of the descriptor z as a fraction of C.
        rd_min: the descriptor is at least this wide.
        groups: of the two convolutions; the largest common divisor of the channels and 32 unless given.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        rd_ratio: float = 1 / 16,
        rd_min: int = 32,
        groups: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        width = output_width("sk", channels, out_channels, stride, 1 if groups is None else groups)
        groups = math.gcd(channels, width, 32) if groups is None else groups
        hidden = reduced(width, rd_ratio, minimum=rd_min)
        settings: dict[str, Any] = {"stride": stride, "groups": groups, "bias": False, **factory}
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, width, 3, padding=d, dilation=d, **settings),
                nn.BatchNorm2d(width, **factory),
                nn.ReLU(),
            )
            for d in (1, 2)
        )
        self.reduce = Pointwise(width, hidden, bias=False, **factory)
        self.bn = nn.BatchNorm2d(hidden, **factory)
        self.select = Pointwise(hidden, 2 * width, bias=False, **factory)

    def _branches(self, x: Tensor) -> list[Tensor]:
        return [branch(x) for branch in self.branches]

    def _weights(self, branches: list[Tensor]) -> Tensor:
        z = mean_places(branches[0]) + mean_places(branches[1])  # of the sum, (B, C, 1, 1)
        energies = self.select(F.relu(self.bn(self.reduce(z)))).unflatten(1, (2, -1))  # (B, 2, C, 1, 1)
        return F.softmax(energies, dim=1)

    def attention(self, x: Tensor) -> Tensor:
        """Weight of the wide branch for every channel, (B, C, 1, 1); the narrow one has the rest."""
        return self._weights(self._branches(x))[:, 1]

    def forward(self, x: Tensor) -> Tensor:
        """The chosen mixture of the branches, (B, C, H / stride, W / stride)."""
        branches = self._branches(x)
        return laid_out_like(mix(branches, self._weights(branches)), x)
