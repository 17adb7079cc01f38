r"""Multi-head convolutional attention.

Georgescu et al., *Multimodal Multi-Head Convolutional Attention with Various Kernel Sizes for Medical Image
Super-Resolution*, WACV 2023, https://arxiv.org/abs/2204.04218

.. math:: \tilde x = x \cdot \sigma\Big(\sum_{k \in \{1, 3, 5\}}
          \mathrm{deconv}_k(\mathrm{ReLU}(\mathrm{conv}_k(x)))\Big)

where conv_k, from C to M channels and without padding, makes the map smaller by k - 1, and the transposed convolution
deconv_k, from M to C, makes it as large as it was.

Differences from the authors' code: M = C/4 is the default of their options, whereas the published models have M = 2C
(``rd_ratio=2``), at eight times the cost; those for 4x super-resolution have the first two heads only (``heads=2``).
A map that is smaller than a kernel, which theirs refuses, is padded with zeros to its size for that head. Common copies
compute the same; many classes of that name are Next-ViT's block, a grouped convolution without a gate.

>>> import torch
>>> MultiHeadConvolution(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.core.arguments import Device, DType, positive

MOST_HEADS = 32  # with kernels of up to 63 x 63


class ConvolutionalHead(nn.Module):
    """Collect from every window of k x k pixels, and give back to it.

    Args:
        channels: C.
        hidden: M.
        kernel_size: k.
    """

    def __init__(
        self, channels: int, hidden: int, kernel_size: int, *, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.collect = nn.Conv2d(channels, hidden, kernel_size, device=device, dtype=dtype)
        self.spread = nn.ConvTranspose2d(hidden, channels, kernel_size, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        height, width = x.shape[2], x.shape[3]
        below, right = max(0, self.kernel_size - height), max(0, self.kernel_size - width)  # what is missing
        top, left = below // 2, right // 2
        if below or right:
            x = F.pad(x, (left, right - left, top, below - top))
        return self.spread(F.relu(self.collect(x)))[:, :, top : top + height, left : left + width]


@register_block(
    "mhca",
    family="mixed",
    paper="Georgescu et al., WACV 2023, arXiv:2204.04218",
    used_in="networks for super-resolution",
)
class MultiHeadConvolution(Gate):
    """Bottlenecks of several kernel sizes -> sum -> sigmoid.

    Args:
        channels: C.
        heads: number of kernel sizes 1, 3, 5, ...
        rd_ratio: width M of the bottlenecks as a fraction of C.
    """

    def __init__(
        self, channels: int, *, heads: int = 3, rd_ratio: float = 1 / 4, device: Device = None, dtype: DType = None
    ) -> None:
        super().__init__()
        positive("mhca", heads=heads)
        if heads > MOST_HEADS:
            raise ValueError(
                f"mhca needs at most {MOST_HEADS} heads, got {heads}: the kernel of the last is the widest"
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = reduced(channels, rd_ratio)
        self.heads = nn.ModuleList(ConvolutionalHead(channels, hidden, 2 * i + 1, **factory) for i in range(heads))

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W)."""
        energies = x.new_zeros(())
        for head in self.heads:
            energies = energies + head(x)
        return torch.sigmoid(energies)
