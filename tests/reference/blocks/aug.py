"""Attention-augmented convolution (Bello et al., ICCV 2019, arXiv 1904.09925).

y = [conv(x); W MHA(x) + b]: convolution and attention side by side, the convolution's channels first
logits_ij = (q_i . k_j + q_i . rel_h[y_j - y_i + H - 1] + q_i . rel_w[x_j - x_i + W - 1]) / sqrt(d_k / heads)

x: (B, C_in, H, W). conv: pair (weight (C - d_v, C_in, s, s), bias), zero padding that keeps the size, s odd.
q, k: pairs (weight (d_k, C_in), bias). v: pair (weight (d_v, C_in), bias). out: pair (weight (d_v, d_v), bias).
rel_h: (2H - 1, d_k/heads), rel_w: (2W - 1, d_k/heads), for all heads.
"""

import math

import numpy as np

from ._ops import Array, conv2d, pointwise, softmax
from ._ops_heads import Linear, heads_of, weighted_sum


def augmented_convolution_weights(x: Array, q: Linear, k: Linear, rel_h: Array, rel_w: Array, heads: int) -> Array:
    """Softmax weights (B, heads, N, N)."""
    height, width = x.shape[2:]
    assert len(rel_h) == 2 * height - 1 and len(rel_w) == 2 * width - 1
    queries, keys = heads_of(x, q, heads), heads_of(x, k, heads)
    rows, columns = np.arange(height * width) // width, np.arange(height * width) % width
    logits = np.einsum("bndi,bndj->bnij", queries, keys)
    for i, (row, column) in enumerate(zip(rows, columns, strict=True)):
        r = rel_h[rows - row + height - 1] + rel_w[columns - column + width - 1]
        logits[:, :, i] += np.einsum("bnd,jd->bnj", queries[..., i], r)
    return softmax(logits / math.sqrt(queries.shape[2]), axis=3)


def augmented_convolution(
    x: Array,
    conv: Linear,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    rel_h: Array,
    rel_w: Array,
    heads: int,
) -> Array:
    """Convolution with some of its channels replaced by self-attention over the whole map."""
    a = augmented_convolution_weights(x, q, k, rel_h, rel_w, heads)
    attended = weighted_sum(a, heads_of(x, v, heads), *x.shape[2:])
    convolved = conv2d(x, *conv, padding=conv[0].shape[-1] // 2)
    return np.concatenate([convolved, pointwise(attended, *out)], axis=1)
