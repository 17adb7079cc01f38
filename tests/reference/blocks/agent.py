"""Agent attention (Han et al., ECCV 2024, arXiv 2312.08874).

agents a = p x p adaptive averages of the queries; n = p^2
gathered = softmax_j(a . k_j / sqrt(d) + B1) v, y_i = softmax_a(q_i . a / sqrt(d) + B2) gathered
out = wp (y + depthwise 3x3 of v) + bp
B1 = resized an + resized (ah + aw), B2 = the transpose of (resized na + resized (ha + wa)); resizing is bilinear,
from the side of the table to H x W.

x: (B, C, H, W). wq: (C, C), bq: (C,) or None. wkv: (2C, C), bkv. wd: (C, 3, 3), bd: (C,). wp: (C, C), bp: (C,).
tables: (an, ah, aw, na, ha, wa): an, na (heads, n, t, t); ah, ha (heads, n, S, 1); aw, wa (heads, n, 1, S').
"""

import math

import numpy as np

from ._ops import Array, adaptive_average_pool, depthwise, flatten, pointwise
from ._ops_group4 import dot_weights, mix, resize, split_heads

Tables = tuple[Array, Array, Array, Array, Array, Array]


def _bias(block: Array, rows: Array, columns: Array, height: int, width: int) -> Array:
    """(heads, agents, N)."""
    total = resize(block, height, width) + resize(rows + columns, height, width)
    return total.reshape(*block.shape[:2], -1)


def agent_weights(
    x: Array, wq: Array, bq: Array | None, wkv: Array, bkv: Array | None, tables: Tables, heads: int
) -> tuple[Array, Array]:
    """Gathering (B, heads, agents, N) and handing out (B, heads, N, agents); rows of both sum to one.

    Their product, handing out times gathering, is the (B, heads, N, N) attention of positions to positions.
    """
    an, ah, aw, na, ha, wa = tables
    query_map = pointwise(x, wq, bq)
    agents = split_heads(flatten(adaptive_average_pool(query_map, math.isqrt(an.shape[1]))), heads)
    q = split_heads(flatten(query_map), heads)
    k = split_heads(flatten(pointwise(x, wkv, bkv))[:, : x.shape[1]], heads)
    scale = 1.0 / math.sqrt(q.shape[2])
    gather = dot_weights(agents, k, scale, _bias(an, ah, aw, *x.shape[2:]))
    hand_out = dot_weights(q, agents, scale, np.swapaxes(_bias(na, ha, wa, *x.shape[2:]), 1, 2))
    return gather, hand_out


def agent(
    x: Array,
    wq: Array,
    bq: Array | None,
    wkv: Array,
    bkv: Array | None,
    tables: Tables,
    wd: Array,
    bd: Array,
    wp: Array,
    bp: Array,
    heads: int,
) -> Array:
    """Agent attention, without the residual."""
    gather, hand_out = agent_weights(x, wq, bq, wkv, bkv, tables, heads)
    value_map = pointwise(x, wkv, bkv)[:, x.shape[1] :]
    y = mix(hand_out @ gather, split_heads(flatten(value_map), heads)).reshape(x.shape)
    return pointwise(y + depthwise(value_map, wd, bd, padding=1), wp, bp)
