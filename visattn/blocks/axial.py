r"""Position-sensitive axial attention: within every column, then within every row.

Wang et al., *Axial-DeepLab: Stand-Alone Axial-Attention for Panoptic Segmentation*, ECCV 2020,
https://arxiv.org/abs/2003.07853

.. math:: a_{op} = \mathrm{softmax}_p\big(\mathrm{BN}(q_o \cdot k_p) + \mathrm{BN}(q_o \cdot r^q_{p-o})
          + \mathrm{BN}(k_p \cdot r^k_{p-o})\big), \qquad
          y_o = \mathrm{BN}\Big(\sum_p a_{op} v_p\Big) + \mathrm{BN}\Big(\sum_p a_{op} r^v_{p-o}\Big)

along one axis and head by head, where q, k (d/2 channels of a head) and v (d) are a bias-free 1x1 convolution ``qkv``
with a norm, and r^q, r^k (2S - 1, d/2), r^v (2S - 1, d) are ``rel_q``, ``rel_k`` and ``rel_v``, shared by the heads.
The block is the layer ``height`` and then the layer ``width``. There is no 1/sqrt(d): the norms of the energies take
its place.

Differences from the paper: none from the authors' code for maps of S x S pixels (their tables for q and v are stored in
the opposite order). Shorter axes read the offsets that they have from the middle of the tables, longer ones by linear
interpolation, so that any size works. Eight heads where twice as many divide the channels, else the largest smaller
number that does. The ReLU that follows in the authors' networks is not part of the block. :meth:`attention` is the
product of both layers' weights, each averaged over the heads.

>>> import torch
>>> axial = Axial(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> axial(x).shape, axial.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Pointwise
from visattn.blocks.widths import fitting_heads
from visattn.blocks.windows import all_pairs, resample_offsets
from visattn.core.arguments import Device, DType, positive


def _middle(table: Tensor, length: int) -> Tensor:
    """The offsets of an axis, (L, L, d): from the middle of the table (2S - 1, d), or resampled if it is too short."""
    spare = (table.shape[0] + 1) // 2 - length
    return all_pairs(table[spare : table.shape[0] - spare] if spare >= 0 else resample_offsets(table, length))


class AxialLayer(nn.Module):
    """Attention within every column of a map.

    Args:
        channels: C.
        heads: twice as many must divide C.
        size: length S of the columns that the position tables are stored for.
    """

    def __init__(self, channels: int, *, heads: int, size: int, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = heads
        self.head_dim = channels // heads
        self.qkv = Pointwise(channels, 2 * channels, bias=False, **factory)
        self.bn_qkv = nn.BatchNorm2d(2 * channels, **factory)
        self.bn_energies = nn.BatchNorm2d(3 * heads, **factory)
        self.bn_out = nn.BatchNorm2d(2 * channels, **factory)
        self.rel_q = nn.Parameter(torch.empty(2 * size - 1, self.head_dim // 2, **factory))
        self.rel_k = nn.Parameter(torch.empty(2 * size - 1, self.head_dim // 2, **factory))
        self.rel_v = nn.Parameter(torch.empty(2 * size - 1, self.head_dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Layers that keep the size of numbers, position tables of unit length on average."""
        nn.init.normal_(self.qkv.weight, std=self.qkv.in_channels**-0.5)
        for table in (self.rel_q, self.rel_k, self.rel_v):
            nn.init.normal_(table, std=self.head_dim**-0.5)

    def weights_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B·W, heads, H, H) and values (B·W, heads, H, d)."""
        length, half = x.shape[2], self.head_dim // 2
        qkv = self.bn_qkv(self.qkv(x)).unflatten(1, (self.heads, -1))  # (B, heads, 2d, H, W)
        query, key, value = qkv.permute(0, 4, 1, 3, 2).flatten(0, 1).split([half, half, self.head_dim], dim=-1)
        energies = torch.cat(
            [
                query @ key.mT,
                torch.einsum("shod,opd->shop", query, _middle(self.rel_q, length)),
                torch.einsum("shpd,opd->shop", key, _middle(self.rel_k, length)),
            ],
            dim=1,
        )  # (B·W, 3·heads, H, H)
        return F.softmax(self.bn_energies(energies).unflatten(1, (3, -1)).sum(1), dim=-1), value

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        weights, value = self.weights_values(x)
        collected = weights @ value  # (B·W, heads, H, d)
        positions = torch.einsum("shop,opd->shod", weights, _middle(self.rel_v, x.shape[2]))
        both = torch.stack([collected, positions], dim=-1)  # (B·W, heads, H, d, 2): the two of a channel side by side
        both = both.unflatten(0, (-1, x.shape[3])).permute(0, 2, 4, 5, 3, 1).flatten(1, 3)  # (B, 2C, H, W)
        return self.bn_out(both).unflatten(1, (-1, 2)).sum(2)


@register_block("axial", family="self", paper="Wang et al., ECCV 2020, arXiv:2003.07853")
class Axial(nn.Module):
    """Attention within columns, then within rows.

    Args:
        channels: C, an even number.
        heads: twice as many must divide C; at most 8 unless given.
        size: side S of the map that the position tables are stored for.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        size: int = 56,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("axial", size=size)
        heads = fitting_heads("axial", channels, heads, parts=2)
        self.height = AxialLayer(channels, heads=heads, size=size, device=device, dtype=dtype)
        self.width = AxialLayer(channels, heads=heads, size=size, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other through both layers, (B, 1, N, N)."""
        size = x.shape[2:]
        columns = self.height.weights_values(x)[0].mean(1).unflatten(0, (-1, size[1]))  # (B, W, H, H)
        rows = self.width.weights_values(self.height(x).mT)[0].mean(1).unflatten(0, (-1, size[0]))  # (B, H, W, W)
        # From (r, c) along the row to column d, then along that column to row s.
        return torch.einsum("brcd,bdrs->brcsd", rows, columns).flatten(3).flatten(1, 2).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return laid_out_like(self.width(self.height(x).mT).mT, x)
