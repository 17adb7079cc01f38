"""Efficient Channel Attention (Wang et al., CVPR 2020, arXiv 1910.03151).

y = x * sigmoid(conv1d_k(GAP(x))) along the channel axis, zero padded, no bias
k = |log2(C) / 2 + 1 / 2|_odd: t = int((log2 C + 1) / 2), plus one if t is even

x: (B, C, H, W). kernel: (k,), k odd.
"""

import math

import numpy as np

from ._ops import Array, gate_channels, global_average, sigmoid


def eca_kernel_size(channels: int) -> int:
    """Odd kernel size for a number of channels (gamma = 2, b = 1)."""
    t = int((math.log2(channels) + 1) / 2)
    return t if t % 2 == 1 else t + 1


def efficient_channel(x: Array, kernel: Array) -> Array:
    """Gate channel c by sigmoid(sum_t kernel[t] pooled[c + t - k//2])."""
    kernel = np.ravel(kernel)
    pooled = global_average(x)
    channels, half = x.shape[1], len(kernel) // 2
    score = np.zeros_like(pooled)
    for c in range(channels):
        for t, weight in enumerate(kernel):
            source = c + t - half
            if 0 <= source < channels:
                score[:, c] += weight * pooled[:, source]
    return gate_channels(x, sigmoid(score))
