"""Efficient attention (Shen et al., WACV 2021, arXiv 1812.01243).

y = x + W (rho_q(Q) (rho_k(K)^T V)), rho_q: softmax over the key channels of a head, rho_k: softmax over positions

x: (B, C, H, W). keys, queries: pairs (weight (d_k, C), bias (d_k,)). values: pair (weight (d_v, C), bias (d_v,)).
out: pair (weight (C, d_v), bias (C,)). Heads split d_k and d_v evenly.
"""

import numpy as np

from ._ops import Array, pointwise, softmax
from ._ops_heads import Linear, heads_of, weighted_sum


def efficient_attention_weights(
    x: Array, keys: Linear, queries: Linear, values: Linear | None, out: Linear | None, heads: int
) -> Array:
    """rho_q(Q) rho_k(K)^T, (B, heads, N, N); the rows sum to one."""
    k = softmax(heads_of(x, keys, heads), axis=3)
    q = softmax(heads_of(x, queries, heads), axis=2)
    return np.einsum("bndi,bndj->bnij", q, k)


def efficient_attention(x: Array, keys: Linear, queries: Linear, values: Linear, out: Linear, heads: int) -> Array:
    """Efficient attention with its projection and its residual."""
    a = efficient_attention_weights(x, keys, queries, values, out, heads)
    return x + pointwise(weighted_sum(a, heads_of(x, values, heads), *x.shape[2:]), *out)
