r"""The soft mask of the Residual Attention Network.

Wang et al., *Residual Attention Network for Image Classification*, CVPR 2017, https://arxiv.org/abs/1704.06904

.. math:: H(x) = (1 + M(x)) \cdot T(x), \qquad M(x) \in (0, 1)

where M is an hourglass: ``depth`` times max-pooling and a residual unit, one more unit at the bottom, then bilinear
upsampling with a skip connection through a residual unit at each level, and a head of twice (BN, ReLU, 1x1) with a
sigmoid. Units are pre-activation bottlenecks of width C/4.

Differences from the paper: the trunk T is whatever stands before the block in the network, so T(x) = x here. The
paper's stages use depth 3, 2, 1 at 56, 28, 14 pixels. The authors released two descriptions of Attention-56, one with
a sigmoid, as in the paper and here, and one with a tanh. Pooling is padded (Caffe rounds up instead), so that any size
works.

>>> import torch
>>> ResidualMask(64)(torch.randn(2, 64, 14, 14)).shape
torch.Size([2, 64, 14, 14])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.core.arguments import Device, DType

DEEPEST = 16  # a map of 65,536 pixels a side is down to one


class PreActivationUnit(nn.Module):
    """x + 1x1(3x3(1x1(x))), each convolution behind batch norm and ReLU."""

    def __init__(self, channels: int, hidden: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.bn1 = nn.BatchNorm2d(channels, **factory)
        self.conv1 = nn.Conv2d(channels, hidden, 1, bias=False, **factory)
        self.bn2 = nn.BatchNorm2d(hidden, **factory)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False, **factory)
        self.bn3 = nn.BatchNorm2d(hidden, **factory)
        self.conv3 = nn.Conv2d(hidden, channels, 1, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        y = self.conv1(F.relu(self.bn1(x)))
        y = self.conv2(F.relu(self.bn2(y)))
        return x + self.conv3(F.relu(self.bn3(y)))


def _resize(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


@register_block(
    "residual", family="spatial", paper="Wang et al., CVPR 2017, arXiv:1704.06904", attends="channels and places"
)
class ResidualMask(Gate):
    """A bottom-up, top-down mask that can only strengthen what it selects: (1 + M(x)) x.

    Args:
        channels: C.
        depth: how many times the map is halved.
        rd_ratio: width of the residual units as a fraction of C.
    """

    def __init__(
        self, channels: int, *, depth: int = 2, rd_ratio: float = 1 / 4, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"the mask needs a depth of at least 1, got {depth}")
        if depth > DEEPEST:
            raise ValueError(f"the mask needs a depth of at most {DEEPEST}, got {depth}: every level halves the map")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)

        def units(number: int) -> nn.ModuleList:
            return nn.ModuleList(PreActivationUnit(channels, hidden, **factory) for _ in range(number))

        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.down = units(depth)
        self.bottom = PreActivationUnit(channels, hidden, **factory)
        self.skip = units(depth - 1)
        self.up = units(depth - 1)
        self.head = nn.Sequential(
            *(nn.BatchNorm2d(channels, **factory), nn.ReLU(), nn.Conv2d(channels, channels, 1, bias=False, **factory)),
            *(nn.BatchNorm2d(channels, **factory), nn.ReLU(), nn.Conv2d(channels, channels, 1, bias=False, **factory)),
        )

    def mask(self, x: Tensor) -> Tensor:
        """M(x), (B, C, H, W), between 0 and 1."""
        levels = []
        y = x
        for down in self.down:
            y = down(self.pool(y))
            levels.append(y)
        y = self.bottom(y)
        for level, skip, up in zip(levels[-2::-1], reversed(self.skip), reversed(self.up), strict=True):
            y = up(_resize(y, level) + skip(level))
        return torch.sigmoid(self.head(_resize(y, x)))

    def attention(self, x: Tensor) -> Tensor:
        """Gate 1 + M(x), (B, C, H, W)."""
        return 1 + self.mask(x)
