r"""Spatial Group-wise Enhance.

Li et al., *Spatial Group-wise Enhance: Improving Semantic Feature Learning in Convolutional Networks*, 2019,
https://arxiv.org/abs/1905.09646

.. math:: c_i = \bar x \cdot x_i, \qquad \hat c_i = \frac{c_i - \mu_c}{\sigma_c + \epsilon}, \qquad
          \tilde x_i = x_i \cdot \sigma(w \hat c_i + b)

in each of G groups of channels, where x_i (C/G) is the group at pixel i, x̄ its mean over the map, μ_c and σ_c are
mean and standard deviation of c over the map, w and b are the group's ``weight`` and ``bias``, and ε = 1e-5.

Differences from the paper: σ_c is the unbiased deviation, as in the authors' code. On a map of a single pixel that is
0/0 there and zero here. G = 64 as in all published models; other numbers of channels use the largest common divisor
with 64. Common copies have G = 8 and start with b = 0, so with a gate of 0.5 rather than the 0.73 here.

>>> import torch
>>> SpatialGroupEnhance(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.primitives import gate, mean_places
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block("sge", family="spatial", paper="Li et al., 2019, arXiv:1905.09646")
class SpatialGroupEnhance(nn.Module):
    """Agreement of every pixel with the mean of its group of channels -> normalised over the map -> sigmoid.

    Args:
        channels: C.
        groups: G; the largest common divisor of C and 64 unless given.
    """

    def __init__(self, channels: int, *, groups: int | None = None, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.groups = math.gcd(channels, 64) if groups is None else groups
        if self.groups < 1 or channels % self.groups:
            raise ValueError(f"sge: {self.groups} groups do not divide {channels} channels")
        self.weight = nn.Parameter(torch.empty(self.groups, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.groups, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every pixel starts with the same gate, 0.73."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)

    def _gates(self, x: Tensor) -> Tensor:
        pixels = precise(x)
        c = gate(pixels, mean_places(pixels)).unflatten(1, (self.groups, -1)).sum(2)  # (B, G, H, W)
        variance, mean = torch.var_mean(c, dim=(2, 3), keepdim=True, correction=min(1, c.shape[2] * c.shape[3] - 1))
        # On a constant map the root has no derivative.
        c = (c - mean) / (variance.clamp(min=1e-30).sqrt() + 1e-5)
        return torch.sigmoid(self.weight[:, None, None] * c + self.bias[:, None, None]).to(x.dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), the same for all channels of a group."""
        return self._gates(x).repeat_interleave(x.shape[1] // self.groups, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        return gate(x.unflatten(1, (self.groups, -1)), self._gates(x).unsqueeze(2)).flatten(1, 2)
