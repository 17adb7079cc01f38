"""Generalized attention (Zhu et al., ICCV 2019, arXiv 1904.05873): a sum of four terms in the softmax.

logits_ij = q_i . k_j + q_i . r_ij + u . k_j + w . r_ij, no division by sqrt(d)
r_ij = (Wx e(x_i - x_j) + Wy e(y_i - y_j)) / sqrt(2), e(t) = [sin(t / 1000^(4m/C)); cos(t / 1000^(4m/C))], m < C/4
z = x + gamma (wp (softmax_j(logits) v) + bp); keys and values are read from every s-th row and column

x: (B, C, H, W), C a multiple of 4. wq, wk, wv: (D, C), no bias, D = heads floor(C/heads). wx, wy: (D, C/2).
u, w: (D,), the paper's global content and position vectors. wp: (C, D), bp: (C,). gamma: a number.
terms: which of the four are used, in the order above.
"""

import numpy as np

from ._ops import Array, flatten, pointwise, softmax
from ._ops_group4 import mix, split_heads

ALL = (True, True, True, True)


def _waves(difference: Array, channels: int) -> Array:
    """(..., C/2) embedding of signed distances."""
    length = 1000.0 ** (4.0 * np.arange(channels // 4) / channels)
    angle = difference[..., None] / length
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def _positions(height: int, width: int, stride: int) -> Array:
    """(M, 2): (y, x) of the positions of every stride-th row and column."""
    return np.array([(y, x) for y in range(0, height, stride) for x in range(0, width, stride)], dtype=float)


def generalized_weights(
    x: Array,
    wq: Array,
    wk: Array,
    wx: Array,
    wy: Array,
    u: Array,
    w: Array,
    heads: int,
    stride: int = 2,
    terms: tuple[bool, bool, bool, bool] = ALL,
) -> Array:
    """(B, heads, N, M); rows sum to one."""
    channels, height, width = x.shape[1:]
    q = split_heads(pointwise(flatten(x), wq), heads)
    k = split_heads(pointwise(flatten(x[:, :, ::stride, ::stride]), wk), heads)
    apart = _positions(height, width, 1)[:, None] - _positions(height, width, stride)
    r = _waves(apart[..., 1], channels) @ wx.T + _waves(apart[..., 0], channels) @ wy.T
    r = r.reshape(*r.shape[:2], heads, -1) / np.sqrt(2.0)
    u, w = u.reshape(heads, -1), w.reshape(heads, -1)
    logits = terms[0] * np.einsum("bndi,bndj->bnij", q, k) + terms[1] * np.einsum("bndi,ijnd->bnij", q, r)
    logits = logits + terms[2] * np.einsum("nd,bndj->bnj", u, k)[:, :, None]
    return softmax(logits + terms[3] * np.einsum("nd,ijnd->nij", w, r), axis=-1)


def generalized(
    x: Array,
    wq: Array,
    wk: Array,
    wv: Array,
    wx: Array,
    wy: Array,
    u: Array,
    w: Array,
    wp: Array,
    bp: Array,
    gamma: float,
    heads: int,
    stride: int = 2,
    terms: tuple[bool, bool, bool, bool] = ALL,
) -> Array:
    """Generalized attention, its residual included."""
    a = generalized_weights(x, wq, wk, wx, wy, u, w, heads, stride, terms)
    v = split_heads(pointwise(flatten(x[:, :, ::stride, ::stride]), wv), heads)
    return x + gamma * pointwise(mix(a, v), wp, bp).reshape(x.shape)
