"""Cascaded group attention of EfficientViT (Liu et al., CVPR 2023, arXiv 2305.07027).

Head n reads its share x_n of the channels plus the output of head n - 1: u_n = x_n + y_{n-1}, y_{-1} = 0
(q, k, v) = BN(w_n u_n), q <- BN(depthwise conv of q), y_n = v softmax_j(q_i . k_j / sqrt(key) + t_n[|dy|, |dx|])
y = BN(wp relu([y_0; y_1; ...]))

A map of at most window x window positions is one window; a larger one gets zeros below and to the right up to
multiples of the window, and each window is treated on its own (convolutions too).

x: (B, C, H, W). heads: a list of (w (2 key + C/heads, C/heads), bn, wd (key, K, K), bnd, table (window, window)).
wp: (C, C), bnp. Every bn is (gamma, beta, mean, var).
"""

import math

import numpy as np

from ._ops import Array, Norm, batchnorm, depthwise, flatten, pointwise, relu
from ._ops_group4 import dot_weights, mix, pad_to_multiple

Head = tuple[Array, Norm, Array, Norm, Array]


def _distances(height: int, width: int) -> tuple[Array, Array]:
    """|dy| and |dx| of every pair of positions, (N, N) each."""
    rows, columns = np.divmod(np.arange(height * width), width)
    return np.abs(rows[:, None] - rows), np.abs(columns[:, None] - columns)


def _window(x: Array, heads: list[Head]) -> tuple[list[Array], list[Array]]:
    """Weights (B, N, N) and outputs (B, C/heads, H, W) of each head on one window."""
    weights: list[Array] = []
    outputs: list[Array] = []
    for share, (w, bn, wd, bnd, table) in zip(np.split(x, len(heads), axis=1), heads, strict=True):
        u = share + outputs[-1] if outputs else share
        key = wd.shape[0]
        qkv = batchnorm(pointwise(u, w), bn)
        q = batchnorm(depthwise(qkv[:, :key], wd, padding=wd.shape[-1] // 2), bnd)
        q, k, v = (flatten(part)[:, None] for part in (q, qkv[:, key : 2 * key], qkv[:, 2 * key :]))
        a = dot_weights(q, k, 1.0 / math.sqrt(key), table[_distances(*x.shape[2:])])
        weights.append(a[:, 0])
        outputs.append(mix(a, v).reshape(x.shape[0], -1, *x.shape[2:]))
    return weights, outputs


def _windows(x: Array, window: int) -> tuple[Array, list[tuple[slice, slice]]]:
    """The padded map and the places of its windows, in row-major order."""
    if x.shape[2] <= window and x.shape[3] <= window:
        return x, [(slice(None), slice(None))]
    padded = pad_to_multiple(x, window, window)
    tops, lefts = (range(0, length, window) for length in padded.shape[2:])
    return padded, [(slice(top, top + window), slice(left, left + window)) for top in tops for left in lefts]


def cascaded_weights(x: Array, heads: list[Head]) -> Array:
    """(B, windows, heads, n, n), n the positions of a window; rows sum to one."""
    padded, places = _windows(x, heads[0][4].shape[0])
    return np.stack(
        [np.stack(_window(padded[:, :, rows, columns], heads)[0], axis=1) for rows, columns in places], axis=1
    )


def cascaded(x: Array, heads: list[Head], wp: Array, bnp: Norm) -> Array:
    """Cascaded group attention in windows, without the residual."""
    padded, places = _windows(x, heads[0][4].shape[0])
    y = np.empty_like(padded)
    for rows, columns in places:
        joined = np.concatenate(_window(padded[:, :, rows, columns], heads)[1], axis=1)
        y[:, :, rows, columns] = batchnorm(pointwise(relu(joined), wp), bnp)
    return y[:, :, : x.shape[2], : x.shape[3]]
