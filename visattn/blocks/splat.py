r"""Split-attention convolution (ResNeSt).

Zhang et al., *ResNeSt: Split-Attention Networks*, CVPR Workshops 2022, https://arxiv.org/abs/2004.08955

.. math:: U = \mathrm{ReLU}(\mathrm{BN}(F(x))) = [U_1, \dots, U_R], \qquad
          z = \mathrm{ReLU}(\mathrm{BN}(W_1\,\mathrm{GAP}(\textstyle\sum_r U_r))), \qquad
          a = \mathrm{softmax}_r(W_2 z), \qquad \tilde x = \sum_r a_r \cdot U_r

where F is a 3x3 convolution to R·C channels (``conv``), R is the radix, W_1 is ``fc1`` and W_2 is ``fc2``; with one
split the softmax becomes a sigmoid. With several cardinal groups W_1 and W_2 are grouped and each group's softmax runs
over its own splits.

Differences from the authors' code: none (their ``splat.py``: the bottleneck is max(C·R/4, 32) wide, ``conv`` has no
bias, the two layers have). As there, a stride is a 3x3 average pooling behind the block.

>>> import torch
>>> SplitAttention(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
>>> SplitAttention(64, out_channels=32, stride=2)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 32, 4, 4])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.blocks.primitives import mean_places, mix
from visattn.blocks.widths import output_width
from visattn.core.arguments import Device, DType, positive


@register_block("splat", family="channel", paper="Zhang et al., CVPRW 2022, arXiv:2004.08955", attends="branches")
class SplitAttention(nn.Module):
    """R feature groups per cardinal group; every channel chooses between them.

    Args:
        channels: of the input.
        out_channels: C of the output; as many as of the input unless given.
        stride: of an average pooling behind the block.
        radix: number of splits R.
        groups: number of cardinal groups.
        rd_ratio: width of the bottleneck as a fraction of R·C.
        rd_min: the bottleneck is at least this wide.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        radix: int = 2,
        groups: int = 1,
        rd_ratio: float = 1 / 4,
        rd_min: int = 32,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("splat", radix=radix, groups=groups)
        width = output_width("splat", channels, out_channels, stride)
        for number in (channels, width):
            if number % (radix * groups):
                raise ValueError(f"splat: {number} channels cannot be divided into {radix} splits x {groups} groups")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(width * radix, rd_ratio, minimum=rd_min)
        self.stride = stride
        self.radix = radix
        self.groups = groups
        self.conv = nn.Conv2d(channels, width * radix, 3, padding=1, groups=groups * radix, bias=False, **factory)
        self.bn0 = nn.BatchNorm2d(width * radix, **factory)
        self.fc1 = nn.Conv2d(width, hidden, 1, groups=groups, **factory)
        self.bn1 = nn.BatchNorm2d(hidden, **factory)
        self.fc2 = nn.Conv2d(hidden, width * radix, 1, groups=groups, **factory)

    def _splits(self, x: Tensor) -> Tensor:
        return F.relu(self.bn0(self.conv(x)))  # (B, R·C, H, W)

    def _weights(self, splits: Tensor) -> Tensor:
        z = mean_places(splits).unflatten(1, (self.radix, -1)).sum(1)  # of the sum of all splits, (B, C, 1, 1)
        energies = self.fc2(F.relu(self.bn1(self.fc1(z))))  # (B, groups·R·C/groups, 1, 1)
        if self.radix == 1:
            return torch.sigmoid(energies).unsqueeze(1)
        energies = energies.unflatten(1, (self.groups, self.radix, -1)).transpose(1, 2)
        return F.softmax(energies, dim=1).flatten(2, 3)  # (B, R, C, 1, 1)

    def attention(self, x: Tensor) -> Tensor:
        """Weight of the last split for every channel, (B, C, 1, 1); with radix 2 the other has the rest."""
        return self._weights(self._splits(x))[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        """The chosen mixture of the splits, (B, C, H / stride, W / stride)."""
        splits = self._splits(x)
        parts = splits.chunk(self.radix, dim=1)
        mixed = mix([parts[number] for number in range(self.radix)], self._weights(splits))
        return laid_out_like(mixed if self.stride == 1 else F.avg_pool2d(mixed, 3, self.stride, 1), x)
