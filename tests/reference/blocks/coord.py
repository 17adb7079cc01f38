"""Coordinate Attention (Hou et al., CVPR 2021, arXiv 2103.02907).

f = hswish(BN(W1 [mean over W ; mean over H] + b1)), concatenated along the length H + W
a_h = sigmoid(Wh f[:H] + bh), a_w = sigmoid(Ww f[H:] + bw), y[c,i,j] = x[c,i,j] a_h[c,i] a_w[c,j]

x: (B, C, H, W). w1: (M, C), b1: (M,) or None. bn: (gamma, beta, mean, var) over M.
wh, ww: (C, M). bh, bw: (C,) or None.
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, hard_swish, pointwise, sigmoid


def coordinate(
    x: Array,
    w1: Array,
    b1: Array | None,
    bn: Norm,
    wh: Array,
    bh: Array | None,
    ww: Array,
    bw: Array | None,
) -> Array:
    """Gate by a row map and a column map."""
    height = x.shape[2]
    pooled = np.concatenate([x.mean(axis=3), x.mean(axis=2)], axis=2)
    f = hard_swish(batchnorm(pointwise(pooled, w1, b1), bn))
    a_h = sigmoid(pointwise(f[:, :, :height], wh, bh))
    a_w = sigmoid(pointwise(f[:, :, height:], ww, bw))
    return x * a_h[:, :, :, None] * a_w[:, :, None, :]
