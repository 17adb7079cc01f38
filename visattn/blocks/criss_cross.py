r"""Criss-cross attention (CCNet): every pixel attends to its row and its column, twice.

Huang et al., *CCNet: Criss-Cross Attention for Semantic Segmentation*, ICCV 2019, https://arxiv.org/abs/1811.11721

.. math:: a_{ij} = \mathrm{softmax}_{j \in \Omega_i}(q_i \cdot k_j), \qquad
          y_i = x_i + \gamma \sum_{j \in \Omega_i} a_{ij} v_j

where Ω_i are the H + W - 1 pixels in the row or column of pixel i, and q, k (to C/8 channels) and v are the 1x1
convolutions ``query``, ``key`` and ``value``, with biases. The same layer, with the same weights, is applied again to y
(``recurrence`` = 2): after two passes a pixel has heard of every other. γ starts at zero, so the block starts as the
identity. There is no 1/sqrt(d).

Differences from the paper: none. The pixel itself is counted once, with its row; copies that forget this count it
twice. :meth:`attention` returns the weights of the last pass.

>>> import torch
>>> criss_cross = CrissCross(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> torch.equal(criss_cross(x), x), criss_cross.attention(x).shape
(True, torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.blocks.primitives import Pointwise
from visattn.core.arguments import Device, DType, positive
from visattn.core.energies import dot

OFTENEST = 16  # passes: after two of them every pixel has heard of every other


@register_block("criss_cross", family="self", paper="Huang et al., ICCV 2019, arXiv:1811.11721")
class CrissCross(nn.Module):
    """Attention to the row and the column of a pixel, applied several times.

    Args:
        channels: C.
        rd_ratio: channels of queries and keys as a fraction of C.
        recurrence: how many times.
    """

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 8,
        recurrence: int = 2,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("criss_cross", recurrence=recurrence)
        if recurrence > OFTENEST:
            raise ValueError(f"criss_cross needs a recurrence of at most {OFTENEST}, got {recurrence}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)
        self.recurrence = recurrence
        self.query = Pointwise(channels, hidden, **factory)
        self.key = Pointwise(channels, hidden, **factory)
        self.value = Pointwise(channels, channels, **factory)
        self.gamma = nn.Parameter(torch.empty(1, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The identity at first."""
        nn.init.zeros_(self.gamma)

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of a pixel's column (B, H, W, H) and of its row (B, H, W, W), which together sum to one."""
        query, key = (layer(x).permute(0, 2, 3, 1) for layer in (self.query, self.key))  # (B, H, W, d)
        in_row = dot(query, key)  # (B, H, W, W)
        in_column = dot(query.transpose(1, 2), key.transpose(1, 2)).transpose(1, 2)  # (B, H, W, H)
        height, width = x.shape[2:]
        itself = torch.eye(height, dtype=torch.bool, device=x.device).unsqueeze(1)  # counted in the row
        energies = torch.cat([in_column.masked_fill(itself, -torch.inf), in_row], dim=-1)
        column, row = F.softmax(energies, dim=-1).to(x.dtype).split([height, width], dim=-1)
        return column, row

    def _pass(self, x: Tensor) -> Tensor:
        column, row = self._weights(x)
        value = self.value(x).permute(0, 2, 3, 1)  # (B, H, W, C)
        collected = row @ value + (column.transpose(1, 2) @ value.transpose(1, 2)).transpose(1, 2)
        return x + self.gamma * collected.permute(0, 3, 1, 2)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other in the last pass, (B, 1, N, N)."""
        for _ in range(self.recurrence - 1):
            x = self._pass(x)
        column, row = self._weights(x)
        same_row, same_column = (torch.eye(size, device=x.device, dtype=x.dtype) for size in x.shape[2:])
        in_column = column.unsqueeze(-1) * same_column.unsqueeze(1)  # (B, H, W, H, W)
        in_row = row.unsqueeze(-2) * same_row[:, None, :, None]
        return (in_column + in_row).flatten(3).flatten(1, 2).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what each position has collected, (B, C, H, W)."""
        y = x
        for _ in range(self.recurrence):
            y = self._pass(y)
        return laid_out_like(y, x)
