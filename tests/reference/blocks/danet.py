"""Dual attention (Fu et al., Dual Attention Network for Scene Segmentation, CVPR 2019, arXiv 1809.02983).

position: P_i = sum_j softmax_j(q_i . k_j) v_j, no scale; channel: K_c = sum_d softmax_d(-x_c . x_d) x_d
(minus as in the authors' code, which subtracts the scores from their maximum; the paper writes plus)
y = alpha P + beta K + x: the sum of the two attentions around one shortcut

x: (B, C, H, W). wq, wk: (C/8, C), bq, bk: (C/8,). wv: (C, C), bv: (C,). alpha, beta: numbers.
"""

import numpy as np

from ._ops import Array, flatten, pointwise, softmax


def position_weights(x: Array, wq: Array, bq: Array, wk: Array, bk: Array) -> Array:
    """(B, N, N), rows sum to one."""
    q, k = flatten(pointwise(x, wq, bq)), flatten(pointwise(x, wk, bk))
    return softmax(np.einsum("bci,bcj->bij", q, k), -1)


def channel_weights(x: Array) -> Array:
    """(B, C, C), rows sum to one: the less alike two channels, the larger."""
    f = flatten(x)
    return softmax(-np.einsum("bcn,bdn->bcd", f, f), -1)


def position(x: Array, wq: Array, bq: Array, wk: Array, bk: Array, wv: Array, bv: Array, alpha: float) -> Array:
    """Position attention module: alpha P + x."""
    weights = position_weights(x, wq, bq, wk, bk)
    context = np.einsum("bij,bcj->bci", weights, flatten(pointwise(x, wv, bv)))
    return alpha * context.reshape(x.shape) + x


def channel(x: Array, beta: float) -> Array:
    """Channel attention module: beta K + x."""
    return beta * np.einsum("bcd,bdn->bcn", channel_weights(x), flatten(x)).reshape(x.shape) + x


def danet(
    x: Array, wq: Array, bq: Array, wk: Array, bk: Array, wv: Array, bv: Array, alpha: float, beta: float
) -> Array:
    """Both attentions around one shortcut."""
    return position(x, wq, bq, wk, bk, wv, bv, alpha) + channel(x, beta) - x
