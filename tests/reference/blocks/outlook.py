"""Outlook attention of VOLO (Yuan et al., TPAMI 2022, arXiv 2106.13112).

Window centres lie at (s i, s j), i < ceil(H/s), j < ceil(W/s); each window has k x k taps around its centre.
A = softmax over the last axis of ((wa u + ba) / sqrt(d)), u the s x s average of x at the centre: one k^2 x k^2
matrix for each centre and head. Row r of A mixes the k^2 values under the window (zeros outside the map) into
tap r; overlapping taps are summed. y = wp (that sum) + bp.

x: (B, C, H, W). wv: (C, C), bv: (C,) or None. wa: (heads k^4, C), ba: (heads k^4,), row ((n k^2 + r) k^2 + t).
wp: (C, C), bp: (C,).
"""

import math

import numpy as np

from ._ops import Array, flatten, max_pool, pointwise, softmax
from ._ops_group4 import mix, split_heads


def _pooled(x: Array, stride: int) -> Array:
    """s x s averages, partial windows at the end averaged over what they hold."""
    if stride == 1:
        return x
    y = np.empty_like(max_pool(x, stride, stride, ceil_mode=True))
    for i, j in np.ndindex(*y.shape[2:]):
        y[:, :, i, j] = x[:, :, i * stride : (i + 1) * stride, j * stride : (j + 1) * stride].mean(axis=(2, 3))
    return y


def outlook_weights(x: Array, wa: Array, ba: Array, heads: int, kernel: int = 3, stride: int = 2) -> Array:
    """(B, heads, centres, k^2, k^2); each last row sums to one."""
    logits = pointwise(flatten(_pooled(x, stride)), wa, ba)
    taps = kernel * kernel
    logits = np.moveaxis(logits.reshape(x.shape[0], heads, taps, taps, -1), -1, 2)
    return softmax(logits / math.sqrt(x.shape[1] // heads), axis=-1)


def outlook_matrix(x: Array, wa: Array, ba: Array, heads: int, kernel: int = 3, stride: int = 2) -> Array:
    """(B, heads, N, N): the total weight with which each position reads each other one (rows do not sum to one)."""
    a = outlook_weights(x, wa, ba, heads, kernel, stride)
    height, width = x.shape[2:]
    total = np.zeros((x.shape[0], heads, height * width, height * width))
    across = -(-width // stride)
    for centre in range(a.shape[2]):
        top = centre // across * stride - kernel // 2
        left = centre % across * stride - kernel // 2
        inside = [
            (tap, (top + tap // kernel) * width + left + tap % kernel)
            for tap in range(kernel * kernel)
            if 0 <= top + tap // kernel < height and 0 <= left + tap % kernel < width
        ]
        for r, p in inside:
            for t, q in inside:
                total[:, :, p, q] += a[:, :, centre, r, t]
    return total


def outlook(
    x: Array,
    wv: Array,
    bv: Array | None,
    wa: Array,
    ba: Array,
    wp: Array,
    bp: Array,
    heads: int,
    kernel: int = 3,
    stride: int = 2,
) -> Array:
    """Outlook attention, without the residual."""
    v = split_heads(pointwise(flatten(x), wv, bv), heads)
    y = mix(outlook_matrix(x, wa, ba, heads, kernel, stride), v)
    return pointwise(y, wp, bp).reshape(x.shape)
