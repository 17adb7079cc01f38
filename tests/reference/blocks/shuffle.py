"""Shuffle Attention (Zhang and Yang, ICASSP 2021, arXiv 2102.00240).

The channels are cut into G groups, each group into two halves of n = C / (2 G) channels, a and b:
a' = a sigmoid(w1 GAP(a) + b1), b' = b sigmoid(w2 GN(b) + b2); GN has as many groups as channels
the halves are put back in place, and channel i + j C / 2 (j = 0, 1) becomes channel 2 i + j

x: (B, C, H, W). w1, b1, w2, b2, gamma, beta: (n,), shared by all groups.
"""

import numpy as np

from ._ops import Array, per_channel, sigmoid
from ._ops_1 import groupnorm


def shuffle_attention(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, gamma: Array, beta: Array) -> Array:
    """Gate one half of each group by channel and the other by position, then interleave the halves of all channels."""
    half = np.size(w1)
    y = np.empty_like(x, dtype=float)
    for start in range(0, x.shape[1], 2 * half):
        a, b = x[:, start : start + half], x[:, start + half : start + 2 * half]
        by_channel = per_channel(w1, 4) * a.mean(axis=(2, 3), keepdims=True) + per_channel(b1, 4)
        by_place = per_channel(w2, 4) * groupnorm(b, half, np.ravel(gamma), np.ravel(beta)) + per_channel(b2, 4)
        y[:, start : start + 2 * half] = np.concatenate([a * sigmoid(by_channel), b * sigmoid(by_place)], axis=1)
    shuffled = np.empty_like(y)
    middle = x.shape[1] // 2
    for i in range(middle):
        shuffled[:, 2 * i], shuffled[:, 2 * i + 1] = y[:, i], y[:, middle + i]
    return shuffled
