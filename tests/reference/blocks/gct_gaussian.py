"""Gaussian Context Transformer (Ruan et al., CVPR 2021).

z = GAP(x), z^ = (z - mu) / sigma, sigma = sqrt(mean_c (z_c - mu)^2) + eps, over all channels
y_c = x_c exp(-z^_c^2 / (2 c^2))
B0: c = 2, no parameters. B1: c = alpha sigmoid(theta) + beta, one number theta, alpha = 3, beta = 1

x: (B, C, H, W). theta: a number. eps = 1e-5.
"""

import numpy as np

from ._ops import Array, gate_channels, global_average, sigmoid


def gaussian_context(x: Array, c: float = 2.0) -> Array:
    """Damp the channels whose mean is far from the mean of all (B0)."""
    z = global_average(x)
    centred = z - z.mean(axis=1, keepdims=True)
    z_hat = centred / (np.sqrt((centred**2).mean(axis=1, keepdims=True)) + 1e-5)
    return gate_channels(x, np.exp(-(z_hat**2) / (2.0 * c**2)))


def learned_gaussian_context(x: Array, theta: float, alpha: float = 3.0, beta: float = 1.0) -> Array:
    """The same with a learned width between beta and alpha + beta (B1)."""
    return gaussian_context(x, alpha * float(sigmoid(np.asarray(theta, dtype=float))) + beta)
