r"""Linear attention.

Katharopoulos et al., *Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention*, ICML 2020,
https://arxiv.org/abs/2006.16236

.. math:: a_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\sum_j \phi(q_i) \cdot \phi(k_j) + 10^{-6}}, \qquad
          \phi(t) = \mathrm{elu}(t) + 1, \qquad y_i = W_o \sum_j a_{ij} v_j

head by head, where q, k, v and W_o are the 1x1 convolutions ``query``, ``key``, ``value`` and ``out``, with biases.

Differences from the paper: none from the authors' code (not causal). There is no residual inside: in the paper's
transformers it is outside, where :func:`visattn.attach` puts it as well. Eight heads where they divide the channels,
else the largest smaller number that does. What is called linear attention elsewhere, a softmax of queries and one of
keys, is the ``efficient`` attention of Shen et al.

>>> import torch
>>> linear = LinearAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> linear(x).shape, linear.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.base import register_block
from visattn.blocks.feature_maps import FeatureMapAttention, heads_of
from visattn.blocks.widths import fitting_heads
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


def elu_plus_one(t: Tensor) -> Tensor:
    """exp(t) below zero and t + 1 above; a small exp(t) does not get lost next to a one."""
    return torch.exp(t.clamp(max=0)) + F.relu(t)


@register_block(
    "linear",
    family="self",
    paper="Katharopoulos et al., ICML 2020, arXiv:2006.16236",
    used_in="transformers, as their self-attention",
)
class LinearAttention(FeatureMapAttention):
    """Attention over the whole map whose features are elu(t) + 1.

    Args:
        channels: C.
        heads: must divide C; at most 8 unless given.
    """

    def __init__(self, channels: int, *, heads: int | None = None, device: Device = None, dtype: DType = None) -> None:
        super().__init__(
            channels,
            heads=fitting_heads("linear", channels, heads),
            key_channels=channels,
            value_channels=channels,
            device=device,
            dtype=dtype,
        )

    def eps(self, pixels: int) -> float:  # noqa: ARG002
        """The same for any number of pixels."""
        return 1e-6

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """elu(t) + 1 of queries and keys, (B, heads, N, d)."""
        query, key = (precise(heads_of(layer(x), self.heads)) for layer in (self.query, self.key))
        return elu_plus_one(query), elu_plus_one(key)
