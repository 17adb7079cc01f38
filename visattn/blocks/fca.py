r"""Frequency Channel Attention (FcaNet).

Qin et al., *FcaNet: Frequency Channel Attention Networks*, ICCV 2021, https://arxiv.org/abs/2012.11879

.. math:: \tilde x = x \cdot \sigma(W_2\,\mathrm{ReLU}(W_1 z)), \qquad
          z_c = \sum_{h,w} x_{c,h,w} B_{u_c}(h) B_{v_c}(w), \qquad
          B_u(h) = \sqrt{\tfrac{1 + [u > 0]}{S}} \cos\Big(\frac{\pi u}{S} (h + \tfrac12)\Big)

where the channels are divided among the 16 frequencies (u, v) that did best on ImageNet, counted on a 7x7 grid and
scaled to the S x S grid of the map.

Differences from the authors' code: none where that is defined (bias-free layers; maps of another size are first
average-pooled to S x S). The number of channels need not be a multiple of 16: channel c takes frequency
floor(16 c / C). The basis is separable, so pooling and cosines are applied as one row and one column vector per
channel instead of an S x S weight. B_0 is the mean times S, so FCA with the lowest frequency alone is not SE.

>>> import torch
>>> FrequencyChannel(64)(torch.randn(2, 64, 14, 14)).shape
torch.Size([2, 64, 14, 14])
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.pooling import pooling_matrix
from visattn.blocks.primitives import Pointwise
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise

TOP16 = (  # (u along the height, v along the width), best first
    *((0, 0), (0, 1), (6, 0), (0, 5), (0, 2), (1, 0), (1, 2), (4, 0)),
    *((5, 0), (1, 6), (3, 0), (0, 4), (0, 6), (0, 3), (3, 5), (2, 2)),
)


def cosine_basis(frequency: Tensor, size: int) -> Tensor:
    """Orthonormal DCT-II basis vectors, (len(frequency), size)."""
    position = torch.arange(size, device=frequency.device, dtype=frequency.dtype) + 0.5
    norm = ((1 + (frequency > 0).to(frequency.dtype)) / size).sqrt()
    return norm[:, None] * torch.cos(math.pi / size * frequency[:, None] * position)


@register_block("fca", family="channel", paper="Qin et al., ICCV 2021, arXiv:2012.11879")
class FrequencyChannel(Gate):
    """One DCT coefficient per channel instead of the mean -> bottleneck -> sigmoid.

    Args:
        channels: C.
        size: side S of the frequency grid; the authors use the map's own size: 56, 28, 14, 7 in a ResNet at 224.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    rows: Tensor
    columns: Tensor

    def __init__(
        self, channels: int, *, size: int = 7, rd_ratio: float = 1 / 16, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        if size < 7:
            raise ValueError(f"the frequencies are chosen on a 7x7 grid, so size must be at least 7, got {size}")
        self.size = size
        # The angles are large numbers, which half precision would round.
        dtype = dtype or torch.get_default_dtype()
        frequency = precise(torch.tensor(TOP16, device=device, dtype=dtype)) * (size // 7)
        u, v = frequency[torch.arange(channels, device=device) * len(TOP16) // channels].unbind(1)
        self.register_buffer("rows", cosine_basis(u, size).to(dtype), persistent=False)  # (C, S)
        self.register_buffer("columns", cosine_basis(v, size).to(dtype), persistent=False)
        hidden = reduced(channels, rd_ratio)
        self.fc1 = Pointwise(channels, hidden, bias=False, device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, bias=False, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        rows = self.rows @ pooling_matrix(self.size, x.shape[2], like=self.rows)  # (C, H)
        columns = self.columns @ pooling_matrix(self.size, x.shape[3], like=self.columns)  # (C, W)
        z = rows.unsqueeze(1) @ x @ columns.unsqueeze(2)  # (B, C, 1, 1)
        return torch.sigmoid(self.fc2(F.relu(self.fc1(z))))
