r"""Efficient Local Attention.

Xu & Wan, *ELA: Efficient Local Attention for Deep Convolutional Neural Networks*, 2024,
https://arxiv.org/abs/2403.01123

.. math:: \tilde x_{c,i,j} = x_{c,i,j} \cdot \sigma(\mathrm{GN}(F(z^h)))_{c,i} \cdot \sigma(\mathrm{GN}(F(z^w)))_{c,j}

where z^h is the mean over each row, z^w over each column, F (``conv``) is a 1-D convolution without bias along the
rows or the columns, and GN (``norm``) has 16 groups.

Differences from the paper: none known. **Not established**: no code of the authors is public. The paper writes F_h
and F_w, and whether they share their weights is not certain; here both directions share convolution and norm, as in
all copies made when it was published. The default is the paper's ELA-B; ELA-T has a ``kernel_size`` of 5 and 32
``norm_groups``, ELA-S a ``kernel_size`` of 5 and a ``group_width`` of 8, ELA-L a ``group_width`` of 8. Numbers of
channels that 16 does not divide use the largest common divisor. timm's ``ela`` is another block: it has a SiLU before
the sigmoid, one group, and separate weights.

>>> import torch
>>> EfficientLocal(64)(torch.randn(2, 64, 8, 6)).shape
torch.Size([2, 64, 8, 6])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.group_norm import GroupNorm
from visattn.blocks.primitives import gate, mean
from visattn.blocks.widths import odd
from visattn.core.arguments import Device, DType, positive


@register_block("ela", family="mixed", paper="Xu & Wan, 2024, arXiv:2403.01123", attends="channels, rows and columns")
class EfficientLocal(nn.Module):
    """One gate along the height times one along the width, each from a 1-D convolution.

    Args:
        channels: C.
        kernel_size: an odd number.
        group_width: channels that the convolution mixes.
        norm_groups: of the group norm; the largest common divisor of C and 16 unless given.
    """

    def __init__(
        self,
        channels: int,
        *,
        kernel_size: int = 7,
        group_width: int = 1,
        norm_groups: int | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("ela", group_width=group_width)
        odd("ela", kernel_size=kernel_size)
        if channels % group_width:
            raise ValueError(f"ela: groups of {group_width} do not divide {channels} channels")
        norm_groups = math.gcd(channels, 16) if norm_groups is None else norm_groups
        if norm_groups < 1 or channels % norm_groups:
            raise ValueError(f"ela: {norm_groups} groups of the norm do not divide {channels} channels")
        self.conv = nn.Conv1d(
            channels,
            channels,
            kernel_size,
            padding=kernel_size // 2,
            groups=channels // group_width,
            bias=False,
            device=device,
            dtype=dtype,
        )
        self.norm = GroupNorm(norm_groups, channels, device=device, dtype=dtype)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gate of every row (B, C, H, 1) and of every column (B, C, 1, W)."""
        rows, columns = mean(x, 3).squeeze(3), mean(x, 2).squeeze(2)  # (B, C, H), (B, C, W)
        row, column = torch.sigmoid(self.norm(self.conv(rows))), torch.sigmoid(self.norm(self.conv(columns)))
        return row.unsqueeze(3), column.unsqueeze(2)

    def attention(self, x: Tensor) -> Tensor:
        """The product of both gates, (B, C, H, W)."""
        row, column = self.gates(x)
        return row * column

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        row, column = self.gates(x)
        return gate(gate(x, row), column)
