"""Large selective kernel (Li et al., LSKNet, ICCV 2023, arXiv 2303.09030).

u1 = dw5x5(x), u2 = dw7x7, dilation 3 (u1); v_i = W_i u_i + b_i with C/2 channels
[s1; s2] = sig(conv7x7 [mean; max over the channels of [v1; v2]]), y = x (W (s1 v1 + s2 v2) + b)

x: (B, C, H, W). dw5: ((C, 5, 5), (C,)), dw7: ((C, 7, 7), (C,)). p1, p2: ((C/2, C), (C/2,)).
squeeze: ((2, 2, 7, 7), (2,)). last: ((C, C/2), (C,)).
"""

import numpy as np

from ._ops import Array, conv2d, pointwise, sigmoid
from ._ops_2 import same_depthwise

Layer = tuple[Array, Array]


def lsk(x: Array, dw5: Layer, dw7: Layer, p1: Layer, p2: Layer, squeeze: Layer, last: Layer) -> Array:
    """Gate the input by two large kernels, mixed at every place; each layer is (weight, bias)."""
    u1 = same_depthwise(x, *dw5)
    u2 = same_depthwise(u1, *dw7, dilation=3)
    v1, v2 = pointwise(u1, *p1), pointwise(u2, *p2)
    both = np.concatenate([v1, v2], axis=1)
    pooled = np.stack([both.mean(axis=1), both.max(axis=1)], axis=1)
    s = sigmoid(conv2d(pooled, *squeeze, padding=3))
    return x * pointwise(s[:, :1] * v1 + s[:, 1:] * v2, *last)
