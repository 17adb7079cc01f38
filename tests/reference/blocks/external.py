"""External attention (Guo et al., TPAMI 2022, arXiv 2105.02358), the block of the segmentation network.

F = conv1x1(x), A = Norm(F M_k^T), y = relu(x + BN(conv1x1(A M_v)))
Norm is double: softmax over the N positions, then each position divided by (1e-9 + its sum over the S slots)

x: (B, C, H, W). first: pair (weight (C, C), bias (C,)). mk: (S, C). mv: (C, S). last: (C, C), no bias.
bn: (gamma, beta, mean, var).
"""

from ._ops import Array, Norm, batchnorm, flatten, pointwise, relu, softmax
from ._ops_heads import Linear


def external_attention_weights(
    x: Array, first: Linear, mk: Array, mv: Array | None = None, last: Array | None = None, bn: Norm | None = None
) -> Array:
    """Weights (B, 1, N, S) of the memory slots for each position; the rows sum to (nearly) one."""
    a = softmax(pointwise(pointwise(flatten(x), *first), mk), axis=2)  # (B, S, N)
    a = a / (1e-9 + a.sum(axis=1, keepdims=True))
    return a.transpose(0, 2, 1)[:, None]


def external_attention(x: Array, first: Linear, mk: Array, mv: Array, last: Array, bn: Norm) -> Array:
    """External attention with two linear memories."""
    a = external_attention_weights(x, first, mk)[:, 0].transpose(0, 2, 1)
    y = pointwise(pointwise(a, mv), last).reshape(x.shape)
    return relu(x + batchnorm(y, bn))
