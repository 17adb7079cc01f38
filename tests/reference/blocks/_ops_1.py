"""More slow primitives for a group of channel and spatial gates: group norm, 1-d convolution, SiLU."""

import numpy as np

from ._ops import Array, per_channel, sigmoid


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def groupnorm(x: Array, groups: int, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """Group norm of a (B, C, ...) array, with the biased variance; gamma and beta are (C,)."""
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(axis=2, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + eps)
    return per_channel(gamma, x.ndim) * normed.reshape(x.shape) + per_channel(beta, x.ndim)


def conv1d(x: Array, w: Array, *, groups: int = 1) -> Array:
    """Cross-correlation of a (B, C, L) array that keeps its length, zero padded; w is (out, C/groups, k), k odd."""
    batch, channels, length = x.shape
    c_out, c_group, k = w.shape
    assert c_group * groups == channels and k % 2 == 1
    padded = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2)))
    y = np.zeros((batch, groups, c_out // groups, length))
    for t in range(k):
        part = padded[:, :, t : t + length].reshape(batch, groups, c_group, length)
        y += np.einsum("goi,bgil->bgol", w[..., t].reshape(groups, -1, c_group), part)
    return y.reshape(batch, c_out, length)
