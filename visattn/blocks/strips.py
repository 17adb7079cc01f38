"""Depthwise convolutions that keep the size of a map, and sums of long rows and columns of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from visattn.core.arguments import Device, DType

LENGTHS = (7, 11, 21)


def depthwise(channels: int, height: int, width: int, *, dilation: int = 1, **factory: Any) -> nn.Conv2d:
    """Convolution of every channel by itself, with a bias; the kernel's height and width are odd.

    >>> depthwise(8, 1, 7, dilation=3)
    Conv2d(8, 8, kernel_size=(1, 7), stride=(1, 1), padding=(0, 9), dilation=(3, 3), groups=8)
    """
    padding = (dilation * (height // 2), dilation * (width // 2))
    return nn.Conv2d(
        channels, channels, (height, width), padding=padding, dilation=dilation, groups=channels, **factory
    )


class Strips(nn.Module):
    """A 5x5 depthwise convolution e, plus rows and columns of it: e + Σ_k dw_{k×1}(dw_{1×k}(e)) for k = 7, 11, 21.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.local = depthwise(channels, 5, 5, **factory)
        self.scales = nn.ModuleList(
            nn.Sequential(depthwise(channels, 1, k, **factory), depthwise(channels, k, 1, **factory)) for k in LENGTHS
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        e = self.local(x)
        total = e
        for scale in self.scales:
            total = total + scale(e)
        return total
