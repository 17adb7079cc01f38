"""HiLo attention of LITv2 (Pan et al., NeurIPS 2022, arXiv 2205.13213).

Hi-Fi: self-attention in each s x s window, in the first heads. Lo-Fi: queries from every position, keys and values
from the s x s averages, in the other heads. Both see all the channels of x and scale by 1/sqrt(d), d = C/heads.
y = [wh (Hi-Fi) + bh; wl (Lo-Fi) + bl]. Zeros are added below and to the right up to multiples of s; they take part.

x: (B, C, H, W). high: (wqkv (3h, C), bqkv (3h,) or None, wh (h, h), bh (h,)), h the channels of Hi-Fi.
low: (wq (l, C), bq, wkv (2l, C), bkv, wl (l, l), bl (l,)), l = C - h. Either is None if it has no heads.
With s = 1 all the heads are Lo-Fi: plain self-attention.
"""

import math

import numpy as np

from ._ops import Array, average_pool, flatten, pointwise
from ._ops_group4 import dot_weights, mix, pad_to_multiple, split_heads

High = tuple[Array, Array | None, Array, Array]
Low = tuple[Array, Array | None, Array, Array | None, Array, Array]


def hifi(u: Array, high: High, d: int, s: int) -> tuple[Array, Array]:
    """Weights (B, windows, heads, s^2, s^2) and output (B, h, H, W) on a padded map."""
    wqkv, bqkv, wh, bh = high
    q, k, v = np.split(pointwise(u, wqkv, bqkv), 3, axis=1)
    y = np.empty_like(q)
    weights = []
    for i, j in np.ndindex(u.shape[2] // s, u.shape[3] // s):
        place = np.s_[:, :, i * s : (i + 1) * s, j * s : (j + 1) * s]
        parts = [split_heads(flatten(p[place]), q.shape[1] // d) for p in (q, k, v)]
        a = dot_weights(parts[0], parts[1], 1.0 / math.sqrt(d))
        y[place] = mix(a, parts[2]).reshape(y[place].shape)
        weights.append(a)
    return np.stack(weights, axis=1), pointwise(y, wh, bh)


def lofi(u: Array, low: Low, d: int, s: int) -> tuple[Array, Array]:
    """Weights (B, heads, N, M) and output (B, l, H, W) on a padded map."""
    wq, bq, wkv, bkv, wl, bl = low
    heads = wq.shape[0] // d
    q = split_heads(pointwise(flatten(u), wq, bq), heads)
    pooled = flatten(average_pool(u, s, s, 0))
    k, v = (split_heads(part, heads) for part in np.split(pointwise(pooled, wkv, bkv), 2, axis=1))
    a = dot_weights(q, k, 1.0 / math.sqrt(d))
    y = pointwise(mix(a, v), wl, bl)
    return a, y.reshape(y.shape[0], -1, *u.shape[2:])


def hilo(x: Array, high: High | None, low: Low | None, heads: int, s: int = 2) -> Array:
    """HiLo attention, without the residual."""
    d = x.shape[1] // heads
    u = pad_to_multiple(x, s, s)
    parts = []
    if high is not None:
        parts.append(hifi(u, high, d, s)[1])
    if low is not None:
        parts.append(lofi(u, low, d, s)[1])
    return np.concatenate(parts, axis=1)[:, :, : x.shape[2], : x.shape[3]]
