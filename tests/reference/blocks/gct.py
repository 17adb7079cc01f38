"""Gated Channel Transformation (Yang et al., CVPR 2020, arXiv 1909.11519), l2 form.

s_c = alpha_c sqrt(sum_{h,w} x_c^2 + eps)
s_hat_c = gamma_c s_c / sqrt(mean_c s_c^2 + eps)
y_c = x_c (1 + tanh(s_hat_c + beta_c))

x: (B, C, H, W). alpha, gamma, beta: (C,). eps = 1e-5.
"""

import numpy as np

from ._ops import Array, gate_channels


def gated_channel(x: Array, alpha: Array, gamma: Array, beta: Array) -> Array:
    """Channel competition through a normalised embedding."""
    eps = 1e-5
    s = np.ravel(alpha) * np.sqrt((x**2).sum(axis=(2, 3)) + eps)
    s_hat = np.ravel(gamma) * s / np.sqrt((s**2).mean(axis=1, keepdims=True) + eps)
    return gate_channels(x, 1.0 + np.tanh(s_hat + np.ravel(beta)))
