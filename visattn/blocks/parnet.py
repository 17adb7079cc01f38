r"""ParNet block with skip-squeeze-excitation.

Goyal et al., *Non-deep Networks*, NeurIPS 2022, https://arxiv.org/abs/2110.07641

.. math:: z = \mathrm{BN}(x), \qquad
          \tilde x = \mathrm{SiLU}\big(\mathrm{BN}(f^{3\times3}(x)) + \mathrm{BN}(f^{1\times1}(x))
          + z \cdot \sigma(W\,\mathrm{GAP}(z))\big)

where W (C, C) is ``fc``, and all convolutions are free of biases. It is a whole convolutional block, to be used in
place of a 3x3 convolution; what is gated is its skip.

Differences from the authors' code: none, for stride 1. Common copies leave out the batch norm of the skip and so gate
x itself, and give W a bias.

>>> import torch
>>> ParNet(64).eval()(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.primitives import Pointwise, gate, mean_places
from visattn.core.arguments import Device, DType


@register_block(
    "parnet",
    family="channel",
    paper="Goyal et al., NeurIPS 2022, arXiv:2110.07641",
    used_in="ParNet, of which it is a block",
)
class ParNet(nn.Module):
    """Two convolutions side by side with a skip whose channels are gated.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **factory)
        self.bn3 = nn.BatchNorm2d(channels, **factory)
        self.conv1 = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.bn1 = nn.BatchNorm2d(channels, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.fc = Pointwise(channels, channels, bias=False, **factory)

    def _weights(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(mean_places(z)))

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate of the skip, (B, C, 1, 1)."""
        return self._weights(self.bn(x))

    def forward(self, x: Tensor) -> Tensor:
        """The three branches together, (B, C, H, W)."""
        z = self.bn(x)
        return F.silu(self.bn3(self.conv3(x)) + self.bn1(self.conv1(x)) + gate(z, self._weights(z)))
