"""Adaptive Fine-Grained Channel attention (Sun et al., Neural Networks 2024), as released.

p = GAP(x); u = k * p (the convolution of ECA, zero padded, no bias); v = W p + b
M = u v^T; the sums over its rows and its columns are (sum u) v and (sum v) u
m = sigmoid(theta); f = m sigmoid((sum u) v) + (1 - m) sigmoid((sum v) u)
y = x * sigmoid(k * f), with the same kernel k

x: (B, C, H, W). kernel: (K,), K odd. w: (C, C), b: (C,). theta: a number.
"""

import numpy as np

from ._ops import Array, gate_channels, global_average, pointwise, sigmoid


def along_channels(p: Array, kernel: Array) -> Array:
    """Zero-padded correlation of (B, C) with a kernel."""
    half, channels = len(kernel) // 2, p.shape[1]
    padded = np.pad(p, ((0, 0), (half, half)))
    return np.stack([padded[:, c : c + len(kernel)] @ kernel for c in range(channels)], axis=1)


def fine_grained_channel(x: Array, kernel: Array, w: Array, b: Array, theta: float) -> Array:
    """Gate by a local and a global description of the channels, mixed through their outer product."""
    kernel = np.ravel(kernel)
    p = global_average(x)
    local, everywhere = along_channels(p, kernel), pointwise(p, w.reshape(len(b), -1), b)
    product = local[:, :, None] * everywhere[:, None, :]  # (B, C, C)
    m = sigmoid(np.asarray(theta, dtype=float))
    mixed = m * sigmoid(product.sum(axis=1)) + (1.0 - m) * sigmoid(product.sum(axis=2))
    return gate_channels(x, sigmoid(along_channels(mixed, kernel)))
