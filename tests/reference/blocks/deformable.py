"""Deformable attention of DAT (Xia et al., CVPR 2022, arXiv 2201.00520).

For each of the groups of channels, the offset network reads the queries and moves the reference points:
offset = range tanh(w2 gelu(LN(depthwise conv of q))) / (H_k, W_k), reference = 2 (i + 1/2) / H_k - 1 (likewise x)
keys and values are projections of x read bilinearly at p = reference + offset, -1 and 1 being the centres of the
first and the last pixel, zeros outside. A = softmax_j(q_i . k_j / sqrt(d) + bias((r_i - p_j) / 2)), r_i the
reference point of position i on the full map, bias read bilinearly from a table. y = wo (A v) + bo

x: (B, C, H, W). wq, wk, wv, wo: (C, C) with biases (C,). w1: (C/groups, K, K), b1, gamma, beta: (C/groups,);
w2: (2, C/groups), row 0 moves y. table: (heads, R, R'), usually 2H - 1 by 2W - 1.
"""

import math

import numpy as np

from ._ops import Array, depthwise, flatten, pointwise, softmax
from ._ops_group4 import bilinear, channel_norm, gelu, mix, split_heads

Offset = tuple[Array, Array, Array, Array, Array]


def _references(height: int, width: int) -> Array:
    """(N, 2): (y, x) of pixel centres, the map spanning -1 .. 1."""
    rows, columns = np.divmod(np.arange(height * width), width)
    return np.stack([2.0 * (rows + 0.5) / height - 1.0, 2.0 * (columns + 0.5) / width - 1.0], axis=1)


def _read(image: Array, point: Array) -> Array:
    """Value at a point whose -1 and 1 are the centres of the border pixels."""
    y, x = (point + 1.0) / 2.0 * (np.array(image.shape[1:]) - 1.0)
    return bilinear(image, y, x)


def sampling_points(q: Array, offset: Offset, groups: int, factor: float = 2.0, stride: int = 1) -> Array:
    """(B, groups, M, 2) points (y, x) from the query map (B, C, H, W)."""
    w1, b1, gamma, beta, w2 = offset
    batch, channels, height, width = q.shape
    grouped = q.reshape(batch * groups, channels // groups, height, width)
    hidden = depthwise(grouped, w1, b1, stride=stride, padding=w1.shape[-1] // 2)
    moves = pointwise(gelu(channel_norm(hidden, gamma, beta)), w2)
    rows, columns = moves.shape[2:]
    moves = factor * np.tanh(np.moveaxis(flatten(moves), 1, 2)) / np.array([rows, columns])
    return (_references(rows, columns) + moves).reshape(batch, groups, -1, 2)


def _read_map(x: Array, points: Array) -> Array:
    """(B, C, M): group g of the channels is read at its own points."""
    batch, groups, count, _ = points.shape
    grouped = x.reshape(batch, groups, -1, *x.shape[2:])
    y = np.empty((batch, groups, grouped.shape[2], count))
    for b, g, j in np.ndindex(batch, groups, count):
        y[b, g, :, j] = _read(grouped[b, g], points[b, g, j])
    return y.reshape(batch, -1, count)


def deformable_weights(
    x: Array,
    wq: Array,
    bq: Array,
    wk: Array,
    bk: Array,
    offset: Offset,
    table: Array,
    groups: int,
    factor: float = 2.0,
    stride: int = 1,
) -> Array:
    """(B, heads, N, M); rows sum to one."""
    heads = table.shape[0]
    query_map = pointwise(x, wq, bq)
    points = sampling_points(query_map, offset, groups, factor, stride)
    q = split_heads(flatten(query_map), heads)
    k = split_heads(pointwise(_read_map(x, points), wk, bk), heads)
    logits = np.einsum("bndi,bndj->bnij", q, k) / math.sqrt(q.shape[2])
    tables = table.reshape(groups, heads // groups, *table.shape[1:])
    references = _references(*x.shape[2:])
    for b, g, i, j in np.ndindex(x.shape[0], groups, len(references), points.shape[2]):
        bias = _read(tables[g], (references[i] - points[b, g, j]) / 2.0)
        logits[b, g * heads // groups : (g + 1) * heads // groups, i, j] += bias
    return softmax(logits, axis=-1)


def deformable(
    x: Array,
    wq: Array,
    bq: Array,
    wk: Array,
    bk: Array,
    wv: Array,
    bv: Array,
    wo: Array,
    bo: Array,
    offset: Offset,
    table: Array,
    groups: int,
    factor: float = 2.0,
    stride: int = 1,
) -> Array:
    """Deformable attention, without the residual."""
    a = deformable_weights(x, wq, bq, wk, bk, offset, table, groups, factor, stride)
    points = sampling_points(pointwise(x, wq, bq), offset, groups, factor, stride)
    v = split_heads(pointwise(_read_map(x, points), wv, bv), table.shape[0])
    return pointwise(mix(a, v), wo, bo).reshape(x.shape)
