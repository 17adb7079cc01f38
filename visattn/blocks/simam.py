r"""SimAM: attention without parameters.

Yang et al., *SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural Networks*, ICML 2021,
https://proceedings.mlr.press/v139/yang21o.html

.. math:: \tilde x = x \cdot \sigma\Big(\frac{d}{4(v + \lambda)} + \frac12\Big), \qquad
          d = (x - \mu)^2, \qquad v = \frac{\sum d}{HW - 1}

with mean μ and variance v of each channel: what stands out from its channel is kept.

Differences from the authors' code: none where that is defined; on a map of a single pixel v is 0/0 there and zero
here. λ = 1e-4 is the paper's and the code's default; the published ImageNet figures were obtained with λ = 0.1 and
with the block between the last 3x3 convolution of a unit and its batch norm.

>>> import torch
>>> SimAM(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import by_image
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise


@register_block("simam", family="mixed", paper="Yang et al., ICML 2021, PMLR 139")
class SimAM(Gate):
    """Squared distance from the channel's mean, in units of its variance -> sigmoid.

    Args:
        channels: C.
        lam: λ, which keeps the quotient finite and flattens the gate.
    """

    def __init__(self, channels: int, *, lam: float = 1e-4, device: Device = None, dtype: DType = None) -> None:
        del device, dtype  # nothing to place
        super().__init__()
        positive("simam", lam=lam)
        self.channels = channels
        self.lam = lam

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), between 0.62 and 1."""
        pixels = precise(x)
        d = (pixels - pixels.mean((2, 3), keepdim=True)).square()
        variance = d.sum((2, 3), keepdim=True) / max(1, x.shape[2] * x.shape[3] - 1)
        return torch.sigmoid(d / (4 * (variance + self.lam)) + 0.5).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return by_image(self._gated, x)
        return self._gated(x)

    def _gated(self, x: Tensor) -> Tensor:
        return x * self.attention(x)

    def extra_repr(self) -> str:
        """Arguments, for print(model)."""
        return f"{self.channels}, lam={self.lam}"
