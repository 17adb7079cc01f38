r"""Double attention (A²-Nets).

Chen et al., *A²-Nets: Double Attention Networks*, NeurIPS 2018, https://arxiv.org/abs/1810.11579

.. math:: Z = \big[ A\, \mathrm{softmax}_\mathrm{positions}(B)^\top \big]\, \mathrm{softmax}_\mathrm{channels}(V),
          \qquad \tilde x = x + W_o Z

where A (``features``), B (``gather``) and V (``distribute``) are 1x1 convolutions of x to C/4 channels: every channel
of B collects one descriptor of the whole map, and every position then mixes the descriptors it needs.

Differences from the paper: none in the equation. The authors' MXNet code is no longer available, so initialisation
and biases are PyTorch's own. Widely copied versions take the second softmax over positions; it is over the descriptors.

>>> import torch
>>> double = DoubleAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> double(x).shape, double.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.core.arguments import Device, DType


@register_block("double", family="self", paper="Chen et al., NeurIPS 2018, arXiv:1810.11579")
class DoubleAttention(nn.Module):
    """Gather a few descriptors of the whole map, then distribute them to the positions; linear in the pixels.

    Args:
        channels: C.
        rd_ratio: number of descriptors, and of their features, as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 4, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        hidden = reduced(channels, rd_ratio)
        self.features = nn.Conv2d(channels, hidden, 1, device=device, dtype=dtype)
        self.gather = nn.Conv2d(channels, hidden, 1, device=device, dtype=dtype)
        self.distribute = nn.Conv2d(channels, hidden, 1, device=device, dtype=dtype)
        self.out = nn.Conv2d(hidden, channels, 1, device=device, dtype=dtype)

    def _gather_distribute(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gather = F.softmax(self.gather(x).flatten(-2), dim=-1)  # (B, n, N), sums to one over positions
        distribute = F.softmax(self.distribute(x).flatten(-2), dim=-2)  # (B, n, N), over descriptors
        return gather, distribute

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other through the descriptors, (B, 1, N, N)."""
        gather, distribute = self._gather_distribute(x)
        return (distribute.mT @ gather).unsqueeze(-3)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what was distributed, (B, C, H, W)."""
        gather, distribute = self._gather_distribute(x)
        descriptors = self.features(x).flatten(-2) @ gather.mT  # (B, m, n)
        z = (descriptors @ distribute).unflatten(-1, x.shape[-2:])  # (B, m, H, W)
        return x + self.out(z)
