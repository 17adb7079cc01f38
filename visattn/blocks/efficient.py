r"""Efficient attention.

Shen et al., *Efficient Attention: Attention with Linear Complexities*, WACV 2021, https://arxiv.org/abs/1812.01243

.. math:: y = x + W_o\, \rho_q(Q)\, \big(\rho_k(K)^\top V\big), \qquad
          \rho_q = \mathrm{softmax}_\mathrm{channels}, \quad \rho_k = \mathrm{softmax}_\mathrm{positions}

where Q, K, V and W_o are the 1x1 convolutions ``query``, ``key``, ``value`` and ``out``, with biases: every channel of
K collects one descriptor of the map, and every position mixes the descriptors. The weights ρ_q ρ_k' sum to one.

Differences from the paper: none in the equation. Keys and values have C/2 channels and there is one head, as in the
non-local block that it takes the place of; the authors' code leaves the widths to its user, and says that several heads
(``heads``) are not in the paper. The softmax of queries is over the channels of one head.

>>> import torch
>>> efficient = EfficientAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> efficient(x).shape, efficient.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import reduced, register_block
from visattn.blocks.feature_maps import FeatureMapAttention, heads_of
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


@register_block("efficient", family="self", paper="Shen et al., WACV 2021, arXiv:1812.01243")
class EfficientAttention(FeatureMapAttention):
    """A softmax of the queries over channels and one of the keys over positions; keys meet values first.

    Args:
        channels: C.
        rd_ratio: channels of the keys, and of the values, as a fraction of C.
        heads: must divide that number.
    """

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 2,
        heads: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        hidden = reduced(channels, rd_ratio)
        super().__init__(channels, heads=heads, key_channels=hidden, value_channels=hidden, device=device, dtype=dtype)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries that sum to one over channels and keys that do so over positions, (B, heads, N, d)."""
        query, key = (precise(heads_of(layer(x), self.heads)) for layer in (self.query, self.key))
        return F.softmax(query, dim=-1), F.softmax(key, dim=-2)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what each position has collected, (B, C, H, W)."""
        return x + self.out(self.collect(x, self.value(x)))
