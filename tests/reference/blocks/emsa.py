"""Efficient multi-head self-attention of ResT (Zhang and Yang, NeurIPS 2021, arXiv 2105.13677).

keys and values are read from u = LN(depthwise conv, kernel s + 1, stride s, padding s // 2, of x); u = x if s = 1
A = softmax_j(sum_m mixing_nm (q_m . k_m / sqrt(d)) + shift_n), then instance norm over the N x M matrix of each head
y = wp (A v) + bp. A single head has neither mixing nor instance norm.

x: (B, C, H, W). wq: (C, C), bq: (C,). wkv: (2C, C), bkv: (2C,), keys first. reduce: None or (w (C, s + 1, s + 1),
b (C,), gamma (C,), beta (C,)). mixing: (heads, heads), shift: (heads,), or None. wp: (C, C), bp: (C,).
"""

import math

import numpy as np

from ._ops import Array, depthwise, flatten, pointwise, softmax
from ._ops_group4 import channel_norm, mix, split_heads

Reduce = tuple[Array, Array, Array, Array]


def _memory(x: Array, reduce: Reduce | None) -> Array:
    if reduce is None:
        return flatten(x)
    w, b, gamma, beta = reduce
    s = w.shape[-1] - 1
    return channel_norm(flatten(depthwise(x, w, b, stride=s, padding=s // 2)), gamma, beta)


def emsa_weights(
    x: Array,
    wq: Array,
    bq: Array,
    wkv: Array,
    bkv: Array,
    reduce: Reduce | None,
    mixing: Array | None,
    shift: Array | None,
    heads: int,
) -> Array:
    """(B, heads, N, M): the softmax, before the instance norm."""
    q = split_heads(pointwise(flatten(x), wq, bq), heads)
    k = split_heads(pointwise(_memory(x, reduce), wkv, bkv)[:, : x.shape[1]], heads)
    logits = np.einsum("bndi,bndj->bnij", q, k) / math.sqrt(q.shape[2])
    return softmax(logits if mixing is None else pointwise(logits, mixing, shift), axis=-1)


def emsa(
    x: Array,
    wq: Array,
    bq: Array,
    wkv: Array,
    bkv: Array,
    reduce: Reduce | None,
    mixing: Array | None,
    shift: Array | None,
    wp: Array,
    bp: Array,
    heads: int,
) -> Array:
    """Efficient multi-head self-attention, without the residual."""
    a = emsa_weights(x, wq, bq, wkv, bkv, reduce, mixing, shift, heads)
    if mixing is not None:
        a = (a - a.mean(axis=(2, 3), keepdims=True)) / np.sqrt(a.var(axis=(2, 3), keepdims=True) + 1e-5)
    v = split_heads(pointwise(_memory(x, reduce), wkv, bkv)[:, x.shape[1] :], heads)
    return pointwise(mix(a, v), wp, bp).reshape(x.shape)
