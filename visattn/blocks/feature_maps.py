r"""What attention with a linear cost shares: the weights are products of features of queries and of keys.

.. math:: a_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\sum_j \phi(q_i) \cdot \phi(k_j) + \epsilon}, \qquad
          \sum_j a_{ij} v_j = \frac{\phi(q_i)^\top \big(\sum_j \phi(k_j)\, v_j^\top\big)}
          {\phi(q_i)^\top \sum_j \phi(k_j) + \epsilon}

On the right, keys meet values first: the cost grows with the number N of pixels, not with N². The blocks differ in what
their features are (:meth:`FeatureMapAttention.features`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from visattn.blocks.base import laid_out_like
from visattn.blocks.primitives import Pointwise
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import merge_heads
from visattn.core.energies import dot
from visattn.core.precision import precise, without_autocast


def heads_of(x: Tensor, heads: int) -> Tensor:
    """The pixels of a map, in row order, as tokens of every head: (B, heads·d, H, W) -> (B, heads, N, d)."""
    return x.flatten(2).unflatten(1, (heads, -1)).mT


def weights(query: Tensor, key: Tensor, eps: float) -> Tensor:
    """The weights (..., Nq, Nk) of features (..., Nq, m) and (..., Nk, m)."""
    products = dot(query, key)
    return products / (products.sum(-1, keepdim=True) + eps)


def context(query: Tensor, key: Tensor, value: Tensor, eps: float) -> Tensor:
    """The sum of the values (..., Nk, d), each times its weight, without the weights: (..., Nq, d)."""
    with without_autocast(query.device):
        query, key, summed = precise(query), precise(key), precise(value)
        total = query @ key.sum(-2, keepdim=True).mT + eps  # (..., Nq, 1)
        return ((query @ (key.mT @ summed)) / total).to(value.dtype)


class FeatureMapAttention(nn.Module, ABC):
    """Attention over the whole map whose weights are products of features.

    Args:
        channels: C.
        heads: groups of channels that attend separately.
        key_channels: of all queries, and of all keys.
        value_channels: of all values.
        bias: whether the layers of queries, keys and values have biases.
        out_bias: whether the last layer has one.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int,
        key_channels: int,
        value_channels: int,
        bias: bool = True,
        out_bias: bool = True,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive(type(self).__name__, heads=heads, key_channels=key_channels, value_channels=value_channels)
        if key_channels % heads or value_channels % heads:
            raise ValueError(
                f"{heads} heads do not divide keys of {key_channels} and values of {value_channels} channels"
            )
        self.heads = heads
        self.query = Pointwise(channels, key_channels, bias=bias, device=device, dtype=dtype)
        self.key = Pointwise(channels, key_channels, bias=bias, device=device, dtype=dtype)
        self.value = Pointwise(channels, value_channels, bias=bias, device=device, dtype=dtype)
        self.out = Pointwise(value_channels, channels, bias=out_bias, device=device, dtype=dtype)

    @abstractmethod
    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the queries and of the keys, (B, heads, N, m) each, in single precision at least."""

    def eps(self, pixels: int) -> float:  # noqa: ARG002  (some depend on it)
        """What is added to the sum of so many weights before they are divided by it."""
        return 0.0

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N)."""
        query, key = self.features(x)
        return weights(query, key, self.eps(key.shape[-2])).to(x.dtype)

    def collect(self, x: Tensor, value: Tensor) -> Tensor:
        """Weights times a map of values, (B, heads·d, H, W)."""
        query, key = self.features(x)
        tokens = context(query, key, heads_of(value, self.heads), self.eps(key.shape[-2]))
        return merge_heads(tokens).mT.unflatten(2, x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return laid_out_like(self.out(self.collect(x, self.value(x))), x)
