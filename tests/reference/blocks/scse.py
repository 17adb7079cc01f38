"""Concurrent spatial and channel SE (Roy et al., MICCAI 2018, arXiv 1803.02579; TMI 2018, 1808.08127).

cSE: x * sigmoid(W2 relu(W1 GAP(x) + b1) + b2)        sSE: x * sigmoid(sum_c w_c x_c + b)
scSE: the elementwise maximum of the two outputs (authors' code)

x: (B, C, H, W). w1: (C/2, C), b1: (C/2,) or None. w2: (C, C/2), b2: (C,) or None.
w: (C,), b: scalar or None.
"""

import numpy as np

from ._ops import Array, pointwise, relu, sigmoid


def channel_se(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Array:
    """Spatial squeeze, channel excitation."""
    pooled = x.mean(axis=(2, 3), keepdims=True)
    return x * sigmoid(pointwise(relu(pointwise(pooled, w1, b1)), w2, b2))


def spatial_se(x: Array, w: Array, b: Array | float | None) -> Array:
    """Channel squeeze, spatial excitation."""
    score = np.einsum("c,bchw->bhw", np.ravel(w), x)
    if b is not None:
        score = score + np.ravel(b)[0]
    return x * sigmoid(score)[:, None]


def concurrent_se(
    x: Array,
    w1: Array,
    b1: Array | None,
    w2: Array,
    b2: Array | None,
    w: Array,
    b: Array | float | None,
) -> Array:
    """Elementwise maximum of the two gated maps."""
    return np.maximum(channel_se(x, w1, b1, w2, b2), spatial_se(x, w, b))
