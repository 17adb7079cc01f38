"""Lambda layer (Bello, LambdaNetworks, ICLR 2021, arXiv 2102.08602), multi-query, local positions (lambda convolution).

content lambda = sum_m softmax_m(K)_m V_m^T, the same for every position; (k, v)
position lambda_n = sum_m E[m - n] V_m^T over the r x r window around n, zeros outside the map; (k, v)
y_n = for every head h: (content + position_n)^T q_n^h, heads one after the other

x: (B, C_in, H, W). q: (heads k, C_in), norm bn_q. key: (k, C_in), no norm. v: (C/heads, C_in), norm bn_v. No biases.
e: (k, r, r), r odd, e[:, i, j] for the offset (i - r//2, j - r//2). Norms are (gamma, beta, mean, var).
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, flatten, pointwise, softmax
from ._ops_heads import neighbours


def lambdas(x: Array, key: Array, v: Array, bn_v: Norm, e: Array) -> Array:
    """Content plus position lambdas (B, N, k, C/heads)."""
    keys = softmax(flatten(pointwise(x, key)), axis=2)
    values = batchnorm(pointwise(x, v), bn_v)
    content = np.einsum("bkm,bvm->bkv", keys, flatten(values))
    windows = neighbours(values, e.shape[-1])
    windows = windows.reshape(*windows.shape[:3], -1)  # (B, v, r^2, N)
    position = np.einsum("kt,bvtn->bnkv", e.reshape(len(e), -1), windows)
    return content[:, None] + position


def lambda_layer(x: Array, q: Array, bn_q: Norm, key: Array, v: Array, bn_v: Norm, e: Array, heads: int) -> Array:
    """Apply the lambda of each position to its queries."""
    queries = flatten(batchnorm(pointwise(x, q), bn_q))
    queries = queries.reshape(len(x), heads, -1, queries.shape[2])
    y = np.einsum("bhkn,bnkv->bhvn", queries, lambdas(x, key, v, bn_v, e))
    return y.reshape(len(x), -1, *x.shape[2:])


def lambda_layer_weights(x: Array, q: Array, bn_q: Norm, key: Array, e: Array, heads: int) -> Array:
    """Equivalent weights (B, heads, N, N): y_n = sum_m w_nm V_m; of either sign, rows do not sum to one."""
    height, width = x.shape[2:]
    keys = softmax(flatten(pointwise(x, key)), axis=2)
    queries = flatten(batchnorm(pointwise(x, q), bn_q))
    queries = queries.reshape(len(x), heads, -1, height * width)
    w = np.einsum("bhkn,bkm->bhnm", queries, keys)
    half = e.shape[-1] // 2
    for n, m in np.ndindex(height * width, height * width):
        dy, dx = m // width - n // width, m % width - n % width
        if abs(dy) <= half and abs(dx) <= half:
            w[:, :, n, m] += np.einsum("bhk,k->bh", queries[..., n], e[:, dy + half, dx + half])
    return w
