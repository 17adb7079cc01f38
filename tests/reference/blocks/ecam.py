"""Efficient channel attention with circular padding, and with a small MLP (both of timm; after arXiv 1910.03151).

circular: y = x * sigmoid(s), s_c = sum_t k_t p_{(c + t - K//2) mod C}, p = GAP(x), no bias
mlp:      y = x * sigmoid(s), s_c = b2 + sum_r sum_t w2_{r,t} h_{r, c + t - K//2}, h_{r,c} = relu(w1_r p_c + b1_r),
          h = 0 outside 0 <= c < C

x: (B, C, H, W). kernel: (K,), K odd. w1, b1: (R,). w2: (R, K). b2: a number.
"""

import math

import numpy as np

from ._ops import Array, gate_channels, global_average, relu, sigmoid


def kernel_size(channels: int) -> int:
    """|log2(C) / 2 + 1 / 2|_odd, at least 3."""
    t = int((math.log2(channels) + 1) / 2)
    return max(t if t % 2 == 1 else t + 1, 3)


def circular_channel(x: Array, kernel: Array) -> Array:
    """Gate by a convolution over the channels, the last of which is a neighbour of the first."""
    kernel = np.ravel(kernel)
    pooled = global_average(x)
    channels, half = x.shape[1], len(kernel) // 2
    score = np.zeros_like(pooled)
    for c in range(channels):
        for t, weight in enumerate(kernel):
            score[:, c] += weight * pooled[:, (c + t - half) % channels]
    return gate_channels(x, sigmoid(score))


def mlp_channel(x: Array, w1: Array, b1: Array, w2: Array, b2: float) -> Array:
    """Gate by a convolution over the channels of R rectified copies of the means."""
    w1, b1, w2 = np.ravel(w1), np.ravel(b1), w2.reshape(len(np.ravel(w1)), -1)
    pooled = global_average(x)
    hidden = relu(w1[:, None] * pooled[:, None] + b1[:, None])  # (B, R, C)
    channels, half = x.shape[1], w2.shape[1] // 2
    score = np.full_like(pooled, b2)
    for c in range(channels):
        for t in range(w2.shape[1]):
            if 0 <= c + t - half < channels:
                score[:, c] += hidden[:, :, c + t - half] @ w2[:, t]
    return gate_channels(x, sigmoid(score))
