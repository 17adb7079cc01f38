r"""Contextual Transformer: static context of neighbouring keys, and dynamic context that it guides.

Li et al., *Contextual Transformer Networks for Visual Recognition*, TPAMI 2022, https://arxiv.org/abs/2107.12292

.. math:: K^1 = \mathrm{ReLU}(\mathrm{BN}(f^{3\times3}(x))), \qquad
          A = \mathrm{GN}(W_\delta\, \mathrm{ReLU}(\mathrm{BN}(W_\theta [x; K^1]))), \qquad
          K^2_c(i) = \mathrm{swish}\Big(\mathrm{BN}\Big(\sum_t A_{c,t}(i)\, V_c(i + t)\Big)\Big)

.. math:: y = g_2 \cdot K^2 + g_1 \cdot K^1, \qquad
          (g_2, g_1) = \mathrm{softmax}(W_b\, \mathrm{ReLU}(\mathrm{BN}(W_a\, \mathrm{GAP}(K^1 + K^2))))

where f (four groups) is ``static``, W_θ and W_δ are ``theta`` and ``delta``, V = BN(1x1 convolution of x) is
``value``, t runs over the 3 x 3 taps around pixel i, and W_a, W_b are ``fc1``, ``fc2``. A has one plane of nine
weights per pixel for every eight channels, C/8 apart; they are not normalised by a softmax. The query is x itself.

Differences from the paper: none from the authors' code, which produced the published figures (the norms are there
alone). As there, a stride is a 3x3 average pooling before the block. Other numbers of channels going out than coming in
are ours: f, W_θ and V map to them. So are ``groups`` of f and V, what keys and values are made with; f keeps within its
four, too. Eight channels share a plane and f has four groups where the numbers of channels are divisible, else the
largest common divisor. Widely copied versions take a softmax over the whole map and simply add both contexts.

>>> import torch
>>> cot = ContextualTransformer(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> cot(x).shape, cot.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
>>> ContextualTransformer(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Pointwise, mean_places, mix
from visattn.blocks.widths import odd, output_width
from visattn.blocks.windows import neighbours, spread
from visattn.core.arguments import Device, DType


@register_block("cot", family="self", paper="Li et al., TPAMI 2022, arXiv:2107.12292")
class ContextualTransformer(nn.Module):
    """A convolution, local attention that is computed from it, and a choice between both for every channel.

    Args:
        channels: C of the input.
        out_channels: of the output; as many as of the input unless given.
        stride: of an average pooling before the block.
        kernel_size: side of the window; an odd number.
        groups: of the convolutions that make keys and values; the keys keep to their own four as well.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        kernel_size: int = 3,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("cot", channels, out_channels, stride, groups)
        odd("cot", kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.stride = stride
        self.kernel_size = kernel_size
        self.planes = width // math.gcd(width, 8)
        own, hidden, descriptor = math.gcd(channels, width, 4), max(1, width // 2), max(width // 2, 32)
        keys: dict[str, Any] = {"padding": kernel_size // 2, "groups": math.lcm(groups, own), "bias": False}
        self.static = nn.Sequential(
            nn.Conv2d(channels, width, kernel_size, **keys, **factory),
            nn.BatchNorm2d(width, **factory),
            nn.ReLU(),
        )
        self.theta = Pointwise(channels + width, hidden, bias=False, **factory)
        self.bn_theta = nn.BatchNorm2d(hidden, **factory)
        self.delta = Pointwise(hidden, self.planes * kernel_size**2, **factory)
        self.norm = nn.GroupNorm(self.planes, self.planes * kernel_size**2, **factory)
        self.value = nn.Sequential(
            Pointwise(channels, width, bias=False, groups=groups, **factory), nn.BatchNorm2d(width, **factory)
        )
        self.bn_dynamic = nn.BatchNorm2d(width, **factory)
        self.fc1 = Pointwise(width, descriptor, **factory)
        self.bn = nn.BatchNorm2d(descriptor, **factory)
        self.fc2 = Pointwise(descriptor, 2 * width, **factory)

    def _pooled(self, x: Tensor) -> Tensor:
        return x if self.stride == 1 else F.avg_pool2d(x, 3, self.stride, 1)

    def _taps(self, x: Tensor, static: Tensor) -> Tensor:
        """The weights of every plane at every pixel, (B, planes, k², H, W)."""
        hidden = F.relu(self.bn_theta(self.theta(torch.cat([x, static], dim=1))))
        return self.norm(self.delta(hidden)).unflatten(1, (self.planes, -1))

    def _dynamic(self, x: Tensor, taps: Tensor) -> Tensor:
        """The sum of the neighbouring values, each times its weight, (B, C', H, W)."""
        height, width, margin = x.shape[2], x.shape[3], self.kernel_size // 2
        value = F.pad(self.value(x), [margin, margin, margin, margin]).unflatten(1, (-1, self.planes))
        shifted: list[Tensor] = []  # (B, C' / planes, planes, H, W) each
        for tap in range(self.kernel_size * self.kernel_size):  # TorchScript has no whole powers
            row, column = tap // self.kernel_size, tap % self.kernel_size
            shifted.append(value[..., row : row + height, column : column + width])
        return mix(shifted, taps.transpose(1, 2).unsqueeze(2)).flatten(1, 2)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, of either sign, (B, planes, N, N)."""
        x = self._pooled(x)
        taps = self._taps(x, self.static(x)).flatten(3).mT  # (B, planes, N, k²)
        return spread(taps, neighbours(x, self.kernel_size), x.shape[2] * x.shape[3])

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        pooled = self._pooled(x)
        static = self.static(pooled)
        dynamic = F.silu(self.bn_dynamic(self._dynamic(pooled, self._taps(pooled, static))))
        z = F.relu(self.bn(self.fc1(mean_places(static + dynamic))))
        choice = F.softmax(self.fc2(z).unflatten(1, (-1, 2)), dim=2)  # (B, C', 2, 1, 1), the dynamic context first
        return laid_out_like(mix([dynamic, static], choice.transpose(1, 2)), x)
