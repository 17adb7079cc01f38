"""Spatial and channel synergistic attention (Si et al., Neurocomputing 634, 2025, arXiv 2407.05128).

r = mean over W (B, C, H), c = mean over H (B, C, W); a quarter of the channels q has kernel k_q in (3, 5, 7, 9)
A_h = sig(GN4(dwconv1d(r))), A_w = sig(GN4(dwconv1d(c))): one set of kernels, two group norms; u = x A_h A_w
t = GN1(average pool of u, 7x7 stride 7, a rest at the border dropped), Q, K, V = t scaled per channel
y = u sig(mean over positions of softmax(Q K^T / sqrt(d)) V), channels attending to channels, d = C / heads

Maps smaller than the window are pooled with a window of their own size (the authors' code refuses them).
x: (B, C, H, W). kernels: four ((C/4, k), bias (C/4,)). norm_h, norm_w, norm: (gamma, beta) over C. q, k, v: (C,).
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, gate_channels, sigmoid, softmax
from ._ops_2 import groupnorm, same_conv1d

Layer = tuple[Array, Array]


def _lines(x: Array, kernels: Sequence[Layer], norm: Layer) -> Array:
    parts = np.split(x, 4, axis=1)
    mixed = np.concatenate([same_conv1d(p, *k) for p, k in zip(parts, kernels, strict=True)], axis=1)
    return sigmoid(groupnorm(mixed, 4, *norm))


def _pool(x: Array, window: int) -> Array:
    kh, kw = min(window, x.shape[2]), min(window, x.shape[3])
    y = np.empty((*x.shape[:2], x.shape[2] // kh, x.shape[3] // kw))
    for i, j in np.ndindex(*y.shape[2:]):
        y[:, :, i, j] = x[:, :, i * kh : (i + 1) * kh, j * kw : (j + 1) * kw].mean(axis=(2, 3))
    return y


def scsa(
    x: Array,
    kernels: Sequence[Layer],
    norm_h: Layer,
    norm_w: Layer,
    norm: Layer,
    q: Array,
    k: Array,
    v: Array,
    *,
    heads: int = 1,
    window: int = 7,
) -> Array:
    """Row and column gates, then a channel gate from attention between channels."""
    batch, channels = x.shape[:2]
    rows, columns = _lines(x.mean(axis=3), kernels, norm_h), _lines(x.mean(axis=2), kernels, norm_w)
    u = x * rows[:, :, :, None] * columns[:, :, None, :]
    t = groupnorm(_pool(u, window), 1, *norm).reshape(batch, heads, channels // heads, -1)
    query, key, value = (t * s.reshape(1, heads, -1, 1) for s in (q, k, v))
    scores = np.einsum("bhin,bhjn->bhij", query, key) / np.sqrt(channels // heads)
    context = np.einsum("bhij,bhjn->bhin", softmax(scores, -1), value)
    return gate_channels(u, sigmoid(context.mean(axis=3).reshape(batch, channels)))
