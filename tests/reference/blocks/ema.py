"""Efficient multi-scale attention (Ouyang et al., ICASSP 2023, arXiv 2305.13563).

The C channels are cut into G groups of c = C / G, which share all weights. In each group:
[h; w] = W1 [mean over W ; mean over H] + b1, a = GN(x sig(h) sig(w)) with one normalised map per channel
e = conv3x3(x), z = softmax_c(GAP a)^T e + softmax_c(GAP e)^T a, y = x sig(z)

x: (B, C, H, W). w1: (c, c), b1: (c,). gamma, beta: (c,). w3: (c, c, 3, 3), b3: (c,). groups: G.
"""

import numpy as np

from ._ops import Array, conv2d, global_average, pointwise, sigmoid, softmax
from ._ops_2 import groupnorm


def ema_gate(x: Array, w1: Array, b1: Array, gamma: Array, beta: Array, w3: Array, b3: Array, *, groups: int) -> Array:
    """One map per group: (B, G, H, W)."""
    batch, channels, height, width = x.shape
    u = x.reshape(batch * groups, channels // groups, height, width)
    lines = pointwise(np.concatenate([u.mean(axis=3), u.mean(axis=2)], axis=2), w1, b1)
    rows, columns = sigmoid(lines[:, :, :height]), sigmoid(lines[:, :, height:])
    a = groupnorm(u * rows[:, :, :, None] * columns[:, :, None, :], channels // groups, gamma, beta)
    e = conv2d(u, w3, b3, padding=1)
    z = np.einsum("nc,nchw->nhw", softmax(global_average(a), 1), e)
    z += np.einsum("nc,nchw->nhw", softmax(global_average(e), 1), a)
    return sigmoid(z).reshape(batch, groups, height, width)


def ema(x: Array, w1: Array, b1: Array, gamma: Array, beta: Array, w3: Array, b3: Array, *, groups: int) -> Array:
    """Gate every channel by the map of its group."""
    gate = ema_gate(x, w1, b1, gamma, beta, w3, b3, groups=groups)
    return x * np.repeat(gate, x.shape[1] // groups, axis=1)
