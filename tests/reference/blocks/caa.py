"""Context anchor attention (Cai et al., Poly Kernel Inception Network, CVPR 2024, arXiv 2403.06258).

A = sig(W2 v * (h * (W1 P x))), P = 7x7 average, stride 1, padded zeros counted; h, v: depthwise 1 x k, k x 1.
y = x * A. Biases in all four layers, no norm and no activation between them.

x: (B, C, H, W). w1, w2: (C, C). h, v: (C, k), k odd. b1, bh, bv, b2: (C,).
"""

import numpy as np

from ._ops import Array, pointwise, sigmoid
from ._ops_2 import same_depthwise


def caa_gate(x: Array, w1: Array, b1: Array, h: Array, bh: Array, v: Array, bv: Array, w2: Array, b2: Array) -> Array:
    """Gate (B, C, H, W)."""
    pooled = same_depthwise(x, np.full((x.shape[1], 7, 7), 1.0 / 49.0))
    a = same_depthwise(pointwise(pooled, w1, b1), h[:, None, :], bh)
    a = same_depthwise(a, v[:, :, None], bv)
    return sigmoid(pointwise(a, w2, b2))


def caa(x: Array, w1: Array, b1: Array, h: Array, bh: Array, v: Array, bv: Array, w2: Array, b2: Array) -> Array:
    """Gate every value."""
    return x * caa_gate(x, w1, b1, h, bh, v, bv, w2, b2)
