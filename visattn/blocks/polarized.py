r"""Polarized self-attention, in parallel and in sequence.

Liu et al., *Polarized Self-Attention: Towards High-quality Pixel-wise Regression*, 2021,
https://arxiv.org/abs/2107.00782

.. math:: A(x) = \sigma\Big(F\Big(\sum_n \mathrm{softmax}_n(w x)_n\, (V x)_n\Big)\Big)

.. math:: S_p(x)_n = \sigma\big(\mathrm{softmax}_n(\mathrm{GAP}(Q x) \cdot (K x)_n)\big), \qquad
          S_s(x)_n = \sigma\big(\mathrm{GAP}(Q x) \cdot \mathrm{softmax}_n(K x)_n\big)

.. math:: \text{parallel:}\ \tilde x = x \cdot A(x) + x \cdot S_p(x), \qquad
          \text{sequential:}\ x' = x \cdot A(x),\ \tilde x = x' \cdot S_s(x')

where w (1, C) is ``weigh``, V, Q and K (C/2, C) are ``value``, ``query`` and ``key``, all without bias, and F is a
matrix (``up``) in the parallel form and W_2 ReLU(LN(W_1 ·)) with C/8 channels in between (``fc1``, ``norm``, ``fc2``,
with biases) in the sequential one. A gates channels and S pixels.

Differences from the paper: both follow the authors' code, where the two forms are not the same parts in another
order. The paper has one S, σ(softmax_c(GAP(Q x)) · K x), and a LayerNorm in F; common copies follow that. Since V and
Q are linear, they are applied to the pooled pixels, which changes nothing but the time. An odd C has a width of (C -
1)/2 inside, and C/8 is rounded down (at least one each); the authors' code needs a multiple of eight.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> PolarizedParallel(64)(x).shape, PolarizedSequential(64).attention(x).shape
(torch.Size([2, 64, 8, 8]), torch.Size([2, 64, 8, 8]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import Pointwise, gate, mean_places
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise

PAPER = "Liu et al., 2021, arXiv:2107.00782"


class Polarized(nn.Module):
    """What both forms share: one pooled pixel for the channel gate, a query and keys for the gate of pixels.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        inner = reduced(channels, 1 / 2)
        self.weigh = Pointwise(channels, 1, **factory)
        self.value = Pointwise(channels, inner, **factory)
        self.query = Pointwise(channels, inner, **factory)
        self.key = Pointwise(channels, inner, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw as the authors do; the layers of the forms themselves start as PyTorch's do."""
        for conv in (self.weigh, self.value, self.query, self.key):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")

    def context(self, x: Tensor) -> Tensor:
        """The mean of V x, weighted by the softmax of w x; (B, C/2, 1, 1)."""
        weights = F.softmax(self.weigh(x).flatten(2), dim=-1)  # (B, 1, N)
        return self.value((x.flatten(2) @ weights.mT).unsqueeze(-1))


@register_block(
    "polarized_parallel", family="mixed", paper=PAPER, used_in="networks for pose estimation and segmentation"
)
class PolarizedParallel(Polarized):
    """A channel gate plus a gate of pixels.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.up = Pointwise(self.value.out_channels, channels, bias=False, device=device, dtype=dtype)

    def _places(self, x: Tensor) -> Tensor:
        query, key = precise(self.query(mean_places(x))), precise(self.key(x))
        energies = gate(key, query).sum(1, keepdim=True)  # (B, 1, H, W)
        return torch.sigmoid(F.softmax(energies.flatten(2), dim=-1)).view_as(energies).to(x.dtype)

    def attention(self, x: Tensor) -> Tensor:
        """The sum of both gates, (B, C, H, W), between 0 and 2."""
        return torch.sigmoid(self.up(self.context(x))) + self._places(x)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        return gate(x, self.attention(x))


@register_block(
    "polarized_sequential", family="mixed", paper=PAPER, used_in="networks for pose estimation and segmentation"
)
class PolarizedSequential(Polarized):
    """A channel gate, then a gate of pixels on the result.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        hidden = reduced(channels, 1 / 8)
        self.fc1 = Pointwise(self.value.out_channels, hidden, device=device, dtype=dtype)
        self.norm = nn.LayerNorm([hidden, 1, 1], device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, device=device, dtype=dtype)

    def _channels(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc2(F.relu(self.norm(self.fc1(self.context(x))))))  # (B, C, 1, 1)

    def _places(self, x: Tensor) -> Tensor:
        query, key = precise(self.query(mean_places(x))), precise(self.key(x))
        shares = F.softmax(key.flatten(2), dim=-1).view_as(key)  # of the pixels, for every channel
        return torch.sigmoid(gate(shares, query).sum(1, keepdim=True)).to(x.dtype)  # (B, 1, H, W)

    def attention(self, x: Tensor) -> Tensor:
        """The product of both gates, (B, C, H, W)."""
        channel = self._channels(x)
        return channel * self._places(gate(x, channel))

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        x = gate(x, self._channels(x))
        return gate(x, self._places(x))
