"""Convolutional additive self-attention of CAS-ViT (Zhang et al., 2024, arXiv 2408.03703).

(q, k, v) = wqkv x; phi(u) = C(S(u)), a context map of each of q and k with its own weights
S(u) = u * sigmoid(w1 relu(BN(depthwise 3x3 of u)))     (one number for each position)
C(u) = u * sigmoid(wc GAP(u))                           (one number for each channel)
y = depthwise 3x3 of (v * depthwise 3x3 of (phi_q(q) + phi_k(k)))

x: (B, C, H, W). wqkv: (3C, C), no bias. Each context: (wd (C, 3, 3), bd (C,), bn, w1 (1, C), wc (C, C)).
wa, wp: (C, 3, 3) with biases ba, bp: (C,).
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, depthwise, gate_channels, global_average, pointwise, relu, sigmoid

Context = tuple[Array, Array, Norm, Array, Array]


def _context(u: Array, context: Context) -> Array:
    wd, bd, bn, w1, wc = context
    u = u * sigmoid(pointwise(relu(batchnorm(depthwise(u, wd, bd, padding=1), bn)), w1))
    return gate_channels(u, sigmoid(pointwise(global_average(u), wc)))


def additive_map(x: Array, wqkv: Array, of_q: Context, of_k: Context, wa: Array, ba: Array) -> Array:
    """(B, C, H, W): what the values are multiplied by (any sign)."""
    q, k, _ = np.split(pointwise(x, wqkv), 3, axis=1)
    return depthwise(_context(q, of_q) + _context(k, of_k), wa, ba, padding=1)


def additive(x: Array, wqkv: Array, of_q: Context, of_k: Context, wa: Array, ba: Array, wp: Array, bp: Array) -> Array:
    """Convolutional additive self-attention, without the residual."""
    v = pointwise(x, wqkv)[:, 2 * x.shape[1] :]
    return depthwise(v * additive_map(x, wqkv, of_q, of_k, wa, ba), wp, bp, padding=1)
