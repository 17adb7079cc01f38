"""Criss-cross attention (Huang et al., CCNet, ICCV 2019 and TPAMI 2020, arXiv 1811.11721), applied R times.

a_ij = softmax_j(q_i . k_j) over the H + W - 1 positions j in the row or the column of i (i itself counts once)
y_i = gamma sum_j a_ij v_j + x_i, then the same layer, with the same weights, on y

x: (B, C, H, W). q, k: pairs (weight (C/8, C), bias (C/8,)). v: pair (weight (C, C), bias (C,)). gamma: scalar.
There is no scaling by the width of the key.
"""

import numpy as np

from ._ops import Array, softmax
from ._ops_heads import Linear, heads_of, weighted_sum


def _weights(x: Array, q: Linear, k: Linear) -> Array:
    height, width = x.shape[2:]
    queries, keys = heads_of(x, q, 1)[:, 0], heads_of(x, k, 1)[:, 0]
    n = height * width
    a = np.zeros((x.shape[0], 1, n, n))
    for i in range(n):
        row, column = divmod(i, width)
        cross = [j for j in range(n) if j // width == row or j % width == column]
        logits = np.einsum("bd,bdj->bj", queries[:, :, i], keys[:, :, cross])
        a[:, 0, i, cross] = softmax(logits, axis=1)
    return a


def _layer(x: Array, q: Linear, k: Linear, v: Linear, gamma: float) -> Array:
    return gamma * weighted_sum(_weights(x, q, k), heads_of(x, v, 1), *x.shape[2:]) + x


def criss_cross(x: Array, q: Linear, k: Linear, v: Linear, gamma: float, *, recurrence: int = 2) -> Array:
    """Recurrent criss-cross attention."""
    for _ in range(recurrence):
        x = _layer(x, q, k, v, gamma)
    return x


def criss_cross_weights(x: Array, q: Linear, k: Linear, v: Linear, gamma: float, *, recurrence: int = 2) -> Array:
    """Weights (B, 1, N, N) of the last pass, zero outside the cross; the rows sum to one."""
    return _weights(criss_cross(x, q, k, v, gamma, recurrence=recurrence - 1), q, k)
