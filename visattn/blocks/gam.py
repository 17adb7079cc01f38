r"""Global Attention Mechanism.

Liu et al., *Global Attention Mechanism: Retain Information to Enhance Channel-Spatial Interactions*, 2021,
https://arxiv.org/abs/2112.05561

.. math:: x' = x \cdot \sigma(W_2\,\mathrm{ReLU}(W_1 x)), \qquad
          \tilde x = x' \cdot \sigma(\mathrm{BN}(f_2^{7\times7}(\mathrm{ReLU}(\mathrm{BN}(f_1^{7\times7}(x'))))))

where W_1 (C/r, C) is ``fc1`` and W_2 is ``fc2``, at every pixel and without pooling, and f_1 and f_2 are ``conv1`` to
C/r channels and ``conv2`` back to C; all four have biases.

Differences from the paper: none known in the equation. **Not established**: no code of the authors is public. Whether
the spatial part has batch norms and biases is not certain; here it has both, as in common copies. r = 1 /
``rd_ratio`` = 16 is what comes closest to the 16.04 M parameters that we remember for ResNet-18 in the paper's tables,
which we could not look up again: it has 16.05 M here, and 16.04 M without the norms and biases. Common copies have
r = 4 (``rd_ratio=1/4``). The variant with grouped convolutions and a shuffle is not part of this block.

>>> import torch
>>> GlobalAttention(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import Pointwise, gate
from visattn.core.arguments import Device, DType


@register_block("gam", family="mixed", paper="Liu et al., 2021, arXiv:2112.05561")
class GlobalAttention(nn.Module):
    """A gate from the channels at each pixel, then one from the pixels around it.

    Args:
        channels: C.
        rd_ratio: width of both bottlenecks as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 16, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)
        self.fc1 = Pointwise(channels, hidden, **factory)
        self.fc2 = Pointwise(hidden, channels, **factory)
        self.conv1 = nn.Conv2d(channels, hidden, 7, padding=3, **factory)
        self.bn1 = nn.BatchNorm2d(hidden, **factory)
        self.conv2 = nn.Conv2d(hidden, channels, 7, padding=3, **factory)
        self.bn2 = nn.BatchNorm2d(channels, **factory)

    def _channels(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc2(F.relu(self.fc1(x))))

    def _places(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))

    def attention(self, x: Tensor) -> Tensor:
        """The product of both gates, (B, C, H, W)."""
        channel = self._channels(x)
        return channel * self._places(gate(x, channel))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        x = gate(x, self._channels(x))
        return gate(x, self._places(x))
