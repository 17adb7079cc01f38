r"""The attention gate of Attention U-Net.

Oktay et al., *Attention U-Net: Learning Where to Look for the Pancreas*, MIDL 2018, https://arxiv.org/abs/1804.03999

.. math:: f = \mathrm{ReLU}(\theta(x) + R(\varphi(g))), \qquad a = R'(\sigma(\psi(f))), \qquad
          \tilde x = \mathrm{BN}(W(a \cdot x))

where g, the ``signal``, is a map of any size that says what to look for: in a U-Net that of the next coarser level. θ
is a 2x2 convolution of stride 2 without bias; φ, ψ and W are 1x1 convolutions (``phi``, ``psi``, ``out``); R and R'
resize bilinearly to the grid of θ(x) and back to that of x.

Differences from the authors' code: without a signal, the map itself is the signal, so that the gate can stand anywhere
in a network. The class's default width of C/2 is kept; their 3-D U-Net has C (``rd_ratio=1``). A side of one pixel is
padded with a zero, as θ needs two. Resizing does not align corners, as has been PyTorch's default since version 0.4.
Widely copied versions are another function: 1x1 convolutions with batch norms for θ, φ and ψ, and no W.

>>> import torch
>>> gate = AttentionGate(64, signal_channels=128)
>>> x, signal = torch.randn(2, 64, 8, 6), torch.randn(2, 128, 4, 3)
>>> gate(x, signal).shape, gate.attention(x, signal).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 8, 6]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import gate
from visattn.core.arguments import Device, DType, positive


def _resize(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


@register_block(
    "attention_gate",
    family="spatial",
    paper="Oktay et al., MIDL 2018, arXiv:1804.03999",
    used_in="the skip connections of a U-Net",
)
class AttentionGate(nn.Module):
    """One weight per position, from the map and from a signal that comes from elsewhere.

    Args:
        channels: C.
        signal_channels: of the signal; as many as the map has unless given.
        rd_ratio: width of θ and φ as a fraction of C.
    """

    def __init__(
        self,
        channels: int,
        *,
        signal_channels: int | None = None,
        rd_ratio: float = 1 / 2,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        signal_channels = channels if signal_channels is None else signal_channels
        positive("attention_gate", signal_channels=signal_channels)
        hidden = reduced(channels, rd_ratio)
        self.signal_channels = signal_channels
        self.theta = nn.Conv2d(channels, hidden, 2, stride=2, bias=False, **factory)
        self.phi = nn.Conv2d(signal_channels, hidden, 1, **factory)
        self.psi = nn.Conv2d(hidden, 1, 1, **factory)
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal distributions, as in the authors' code."""
        for layer in (self.theta, self.phi, self.psi, self.out):
            nn.init.kaiming_normal_(layer.weight)
        nn.init.normal_(self.bn.weight, mean=1.0, std=0.02)

    def _check_signal(self, signal: Tensor) -> None:
        if signal.ndim != 4 or signal.shape[1] != self.signal_channels:
            raise ValueError(
                f"block 'attention_gate' was built for signals (B, {self.signal_channels}, H, W), "
                f"got a tensor {tuple(signal.shape)}"
            )

    def attention(self, x: Tensor, signal: Tensor | None = None) -> Tensor:
        """Spatial gate (B, 1, H, W)."""
        signal = x if signal is None else signal
        self._check_signal(signal)
        missing = (0, max(0, 2 - x.shape[3]), 0, max(0, 2 - x.shape[2]))  # on the right and below
        grid = self.theta(F.pad(x, missing))  # (B, M, H // 2, W // 2)
        f = F.relu(grid + _resize(self.phi(signal), grid))
        return _resize(torch.sigmoid(self.psi(f)), x)

    def forward(self, x: Tensor, signal: Tensor | None = None) -> Tensor:
        """The gated input after a convolution and a batch norm, (B, C, H, W)."""
        return self.bn(self.out(gate(x, self.attention(x, signal))))
