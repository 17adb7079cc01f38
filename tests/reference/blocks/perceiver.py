"""Perceiver cross-attention (Jaegle et al., ICML 2021, arXiv 2103.03206; Perceiver IO, arXiv 2107.14795) on a map.

cross(q, kv): t = q + wo softmax(Q(LN q) . K(LN kv) / sqrt(d)) V(LN kv) + bo, then t + w2 gelu(w1 LN(t) + b1) + b2
z = cross(latents, x): the latents read the map; y = cross(x, z): every position reads the latents
gelu is the tanh approximation; LN has eps 1e-5 and is over channels.

x: (B, C, H, W). latents: (M, D). A cross is (norm_q, norm_kv, wq, bq, wk, bk, wv, bv, wo, bo, norm_mlp, w1, b1, w2,
b2), each norm a pair (gamma, beta). Encoder: queries D, keys C channels; wq (E, D), wk, wv (E, C), wo (D, E),
w1 (F, D), w2 (D, F). Decoder: the same with C and D exchanged.
"""

import math

import numpy as np

from ._ops import Array, flatten, pointwise
from ._ops_group4 import channel_norm, dot_weights, gelu_tanh, mix, split_heads

Affine = tuple[Array, Array]
Cross = tuple[
    Affine, Affine, Array, Array, Array, Array, Array, Array, Array, Array, Affine, Array, Array, Array, Array
]


def _cross(q: Array, kv: Array, cross: Cross, heads: int) -> tuple[Array, Array]:
    """Weights (B, heads, N, M) and output (B, channels of q, N)."""
    norm_q, norm_kv, wq, bq, wk, bk, wv, bv, wo, bo, norm_mlp, w1, b1, w2, b2 = cross
    memory = channel_norm(kv, *norm_kv)
    queries = split_heads(pointwise(channel_norm(q, *norm_q), wq, bq), heads)
    keys = split_heads(pointwise(memory, wk, bk), heads)
    a = dot_weights(queries, keys, 1.0 / math.sqrt(queries.shape[2]))
    t = q + pointwise(mix(a, split_heads(pointwise(memory, wv, bv), heads)), wo, bo)
    return a, t + pointwise(gelu_tanh(pointwise(channel_norm(t, *norm_mlp), w1, b1)), w2, b2)


def perceiver_weights(x: Array, latents: Array, encoder: Cross, decoder: Cross, heads: int = 1) -> tuple[Array, Array]:
    """Reading (B, heads, M, N) and handing back (B, heads, N, M); rows of both sum to one."""
    tokens = flatten(x)
    start = np.repeat(latents.T[None], len(x), axis=0)
    read, z = _cross(start, tokens, encoder, heads)
    return read, _cross(tokens, z, decoder, heads)[0]


def perceiver(x: Array, latents: Array, encoder: Cross, decoder: Cross, heads: int = 1) -> Array:
    """Latents read the map, the map reads the latents; residuals included."""
    tokens = flatten(x)
    z = _cross(np.repeat(latents.T[None], len(x), axis=0), tokens, encoder, heads)[1]
    return _cross(tokens, z, decoder, heads)[1].reshape(x.shape)
