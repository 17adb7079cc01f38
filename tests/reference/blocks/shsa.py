"""Single-head self-attention of SHViT (Yun and Ro, CVPR 2024, arXiv 2401.16456).

The first P channels x1 attend, the others x2 pass: (q, k, v) = BN(wqkv GN(x1)), GN over all of (P, H, W),
y1 = v softmax_j(q_i . k_j / sqrt(key)), y = BN(wp relu([y1; x2]))

x: (B, C, H, W). gamma, beta: (P,). wqkv: (2 key + P, P), bn. wp: (C, C), bnp. No biases.
"""

import math

import numpy as np

from ._ops import Array, Norm, batchnorm, flatten, per_channel, pointwise, relu
from ._ops_group4 import dot_weights, mix


def _qkv(x: Array, gamma: Array, beta: Array, wqkv: Array, bn: Norm) -> tuple[Array, Array, Array]:
    """(B, 1, key or P, N) each."""
    part = len(gamma)
    key = (len(wqkv) - part) // 2
    x1 = x[:, :part]
    mean, var = x1.mean(axis=(1, 2, 3), keepdims=True), x1.var(axis=(1, 2, 3), keepdims=True)
    x1 = (x1 - mean) / np.sqrt(var + 1e-5) * per_channel(gamma, 4) + per_channel(beta, 4)
    qkv = flatten(batchnorm(pointwise(x1, wqkv), bn))[:, None]
    return qkv[:, :, :key], qkv[:, :, key : 2 * key], qkv[:, :, 2 * key :]


def single_head_weights(x: Array, gamma: Array, beta: Array, wqkv: Array, bn: Norm) -> Array:
    """(B, 1, N, N); rows sum to one."""
    q, k, _ = _qkv(x, gamma, beta, wqkv, bn)
    return dot_weights(q, k, 1.0 / math.sqrt(q.shape[2]))


def single_head(x: Array, gamma: Array, beta: Array, wqkv: Array, bn: Norm, wp: Array, bnp: Norm) -> Array:
    """Single-head self-attention, without the residual."""
    a = single_head_weights(x, gamma, beta, wqkv, bn)
    y = mix(a, _qkv(x, gamma, beta, wqkv, bn)[2])
    part = y.shape[1]
    joined = np.concatenate([y.reshape(x.shape[0], part, *x.shape[2:]), x[:, part:]], axis=1)
    return batchnorm(pointwise(relu(joined), wp), bnp)
