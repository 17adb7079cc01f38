r"""Coordinate attention.

Hou et al., *Coordinate Attention for Efficient Mobile Network Design*, CVPR 2021, https://arxiv.org/abs/2103.02907

.. math:: f = \delta(\mathrm{BN}(F_1([z^h; z^w]))), \qquad
          \tilde x_{c,i,j} = x_{c,i,j} \cdot \sigma(F_h(f^h))_{c,i} \cdot \sigma(F_w(f^w))_{c,j}

where z^h is the mean over each row, z^w over each column, δ is hard swish, and F_1 (``reduce``), F_h (``row``) and
F_w (``column``) are 1x1 convolutions with max(8, C/32) channels in between.

Differences from the paper: none; biases as in the authors' code. (timm's version has no biases and another width.)

>>> import torch
>>> Coordinate(64)(torch.randn(2, 64, 8, 6)).shape
torch.Size([2, 64, 8, 6])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import Pointwise, gate_rows_columns, mean
from visattn.core.arguments import Device, DType


@register_block(
    "coord",
    family="mixed",
    paper="Hou et al., CVPR 2021, arXiv:2103.02907",
    attends="channels, rows and columns",
    used_in="the inverted residuals of MobileNetV2",
)
class Coordinate(nn.Module):
    """One gate along the height times one along the width, for every channel.

    Args:
        channels: C.
        rd_ratio: width of the bottleneck as a fraction of C.
        rd_min: the bottleneck is at least this wide.
    """

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 32,
        rd_min: int = 8,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio, minimum=rd_min)
        self.reduce = Pointwise(channels, hidden, **factory)
        self.bn = nn.BatchNorm2d(hidden, **factory)
        self.row = Pointwise(hidden, channels, **factory)
        self.column = Pointwise(hidden, channels, **factory)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gate of every row (B, C, H, 1) and of every column (B, C, 1, W)."""
        rows = mean(x, 3)  # (B, C, H, 1)
        columns = mean(x, 2).transpose(2, 3)  # (B, C, W, 1)
        f = F.hardswish(self.bn(self.reduce(torch.cat([rows, columns], dim=2))))  # (B, C', H + W, 1)
        along_h, along_w = f.split([x.shape[2], x.shape[3]], dim=2)
        return torch.sigmoid(self.row(along_h)), torch.sigmoid(self.column(along_w)).transpose(2, 3)

    def attention(self, x: Tensor) -> Tensor:
        """The product of both gates, (B, C, H, W)."""
        row, column = self.gates(x)
        return row * column

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        row, column = self.gates(x)
        return gate_rows_columns(x, row, column)
