r"""Convolutional additive self-attention (CAS-ViT).

Zhang et al., *CAS-ViT: Convolutional Additive Self-attention Vision Transformers for Efficient Mobile Applications*,
2024, https://arxiv.org/abs/2408.03703

.. math:: y = \mathrm{DW}_p\big(\mathrm{DW}_a(\Phi_q(q) + \Phi_k(k)) \odot v\big), \qquad
          \Phi(u) = \mathcal C(\mathcal S(u))

.. math:: \mathcal S(u) = u \odot \sigma(w_1\, \mathrm{ReLU}(\mathrm{BN}(\mathrm{DW}(u)))), \qquad
          \mathcal C(u) = u \odot \sigma(W_c\, \mathrm{GAP}(u))

where q, k, v are a bias-free 1x1 convolution (``qkv``), every DW is a depthwise 3x3 convolution (``depthwise`` of Φ,
``mixing`` for DW_a and ``out`` for DW_p), w_1 (1, C) is ``place`` and W_c (C, C) is ``channel``. Queries and keys are
added where others multiply them, so this is linear in the pixels; there are no heads, and no softmax.

Differences from the paper: the paper writes a linear projection where the authors' code, which is followed here, has
DW_a, and a second depthwise convolution DW_p after the product. Common copies compute the same.

>>> import torch
>>> cas = ConvolutionalAdditive(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> cas(x).shape, cas.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 64, 8, 6]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.primitives import Pointwise, gate, mean_places
from visattn.core.arguments import Device, DType


class Context(nn.Module):
    """Φ: a gate on the places, then a gate on the channels.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, **factory: Any) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.place = nn.Conv2d(channels, 1, 1, bias=False, **factory)
        self.channel = Pointwise(channels, channels, bias=False, **factory)

    def forward(self, u: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        u = gate(u, torch.sigmoid(self.place(F.relu(self.bn(self.depthwise(u))))))
        return gate(u, torch.sigmoid(self.channel(mean_places(u))))


@register_block("cas", family="mixed", paper="Zhang et al., 2024, arXiv:2408.03703", used_in="the blocks of CAS-ViT")
class ConvolutionalAdditive(nn.Module):
    """Values, multiplied by the sum of gated queries and keys.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False, **factory)
        self.query_context = Context(channels, **factory)
        self.key_context = Context(channels, **factory)
        self.mixing = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, **factory)
        self.out = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, **factory)

    def _map(self, query: Tensor, key: Tensor) -> Tensor:
        return self.mixing(self.query_context(query) + self.key_context(key))

    def attention(self, x: Tensor) -> Tensor:
        """What the values are multiplied by, of either sign, (B, C, H, W)."""
        query, key, _ = self.qkv(x).chunk(3, dim=1)
        return self._map(query, key)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query, key, value = self.qkv(x).chunk(3, dim=1)
        return self.out(self._map(query, key) * value)
