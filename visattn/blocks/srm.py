r"""Style-based Recalibration.

Lee et al., *SRM: A Style-based Recalibration Module for Convolutional Neural Networks*, ICCV 2019,
https://arxiv.org/abs/1903.10829

.. math:: \tilde x_c = x_c \cdot \sigma(\mathrm{BN}(w_{c1} \mu_c + w_{c2} s_c))

where μ_c and s_c are mean and standard deviation of channel c over the map and w (C, 2) is ``weight``.

Differences from the authors' code: none where that is defined (unbiased variance, 1e-5 added before the root, w starts
at zero). On a map of a single pixel the unbiased variance is 0/0; here it is zero.

>>> import torch
>>> StyleRecalibration(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block("srm", family="channel", paper="Lee et al., ICCV 2019, arXiv:1903.10829")
class StyleRecalibration(Gate):
    """Mean and standard deviation of each channel -> two weights per channel -> batch norm -> sigmoid.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 2, device=device, dtype=dtype))
        self.bn = nn.BatchNorm2d(channels, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every channel starts with the same gate."""
        nn.init.zeros_(self.weight)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        pixels = precise(x).flatten(2)  # (B, C, N)
        variance, mean = torch.var_mean(pixels, dim=-1, correction=min(1, pixels.shape[-1] - 1))
        style = self.weight[:, 0] * mean + self.weight[:, 1] * (variance + 1e-5).sqrt()  # (B, C)
        return torch.sigmoid(self.bn(style.to(x.dtype)[..., None, None]))
