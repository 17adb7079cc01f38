"""Multi-scale dilated attention of DilateFormer (Jiao et al., TMM 2023, arXiv 2302.01791).

The heads are shared out evenly, in order, over the dilations r. A head attends from each position to the K x K
positions at distances that are multiples of its r: a = softmax_t(q_i . k_{i + r t} / sqrt(d)), keys and values being
zero outside the map (such a tap keeps its share of the softmax). y = wp (joined heads) + bp

x: (B, C, H, W). wqkv: (3C, C), bqkv: (3C,) or None. wp: (C, C), bp: (C,).
"""

import math

import numpy as np

from ._ops import Array, flatten, pointwise, softmax
from ._ops_group4 import split_heads


def _taps(x: Array, heads: int, dilations: tuple[int, ...], kernel: int) -> Array:
    """(B, heads, d, N, K^2): what lies under the taps of each position, from a (B, C, H, W) map."""
    batch, channels, height, width = x.shape
    per_dilation = heads // len(dilations)
    y = np.zeros((batch, heads, channels // heads, height, width, kernel * kernel))
    split = x.reshape(batch, heads, -1, height, width)
    for head, i, j, tap in np.ndindex(heads, height, width, kernel * kernel):
        r = dilations[head // per_dilation]
        row, column = i + r * (tap // kernel - kernel // 2), j + r * (tap % kernel - kernel // 2)
        if 0 <= row < height and 0 <= column < width:
            y[:, head, :, i, j, tap] = split[:, head, :, row, column]
    return y.reshape(batch, heads, -1, height * width, kernel * kernel)


def dilated_weights(
    x: Array,
    wqkv: Array,
    bqkv: Array | None,
    heads: int,
    dilations: tuple[int, ...] = (1, 2, 3),
    kernel: int = 3,
) -> Array:
    """(B, heads, N, K^2); rows sum to one, taps outside the map included."""
    q, k, _ = np.split(pointwise(x, wqkv, bqkv), 3, axis=1)
    q = split_heads(flatten(q), heads)
    logits = np.einsum("bndi,bndit->bnit", q, _taps(k, heads, dilations, kernel))
    return softmax(logits / math.sqrt(q.shape[2]), axis=-1)


def dilated(
    x: Array,
    wqkv: Array,
    bqkv: Array | None,
    wp: Array,
    bp: Array,
    heads: int,
    dilations: tuple[int, ...] = (1, 2, 3),
    kernel: int = 3,
) -> Array:
    """Multi-scale dilated attention, without the residual."""
    a = dilated_weights(x, wqkv, bqkv, heads, dilations, kernel)
    v = np.split(pointwise(x, wqkv, bqkv), 3, axis=1)[2]
    y = np.einsum("bnit,bndit->bndi", a, _taps(v, heads, dilations, kernel))
    return pointwise(y.reshape(x.shape), wp, bp)
