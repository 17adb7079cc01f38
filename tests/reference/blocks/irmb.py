"""Inverted residual mobile block of EMO (Zhang et al., ICCV 2023, arXiv 2301.01146), its form with attention.

u = LN(x), zeros added below and to the right up to multiples of the window; position (y, x) belongs to the group
(y mod n_y, x mod n_x), n_y = H'/window, n_x = W'/window: each group is a coarse grid over the whole map, not a tile.
In each group A = softmax_j(q_i . k_j / sqrt(d)), (q, k) = wqk u + bqk, and m = gelu(wv (A u) + bv), widened
y = x + wp (m + silu(BN(depthwise conv of m))), the zeros cut off before the convolution

x: (B, C, H, W). gamma, beta: (C,), eps 1e-6. wqk: (2C, C), bqk: (2C,), queries first. wv: (E, C), bv: (E,).
wd: (E, K, K), bnd: (gamma, beta, mean, var), eps 1e-6. wp: (C, E), no bias.
"""

import math

import numpy as np

from ._ops import Array, Norm, batchnorm, depthwise, flatten, pointwise
from ._ops_group4 import channel_norm, dot_weights, gelu, mix, pad_to_multiple, silu, split_heads


def _groups(u: Array, wqk: Array, bqk: Array, heads: int, window: int) -> tuple[list[Array], Array]:
    """The weights of every group (row-major) and A u on the padded map."""
    y = np.empty_like(u)
    down, across = u.shape[2] // window, u.shape[3] // window
    weights = []
    for top, left in np.ndindex(down, across):
        group = u[:, :, top::down, left::across]
        q, k = np.split(pointwise(flatten(group), wqk, bqk), 2, axis=1)
        q, k = split_heads(q, heads), split_heads(k, heads)
        a = dot_weights(q, k, 1.0 / math.sqrt(q.shape[2]))
        y[:, :, top::down, left::across] = mix(a, split_heads(flatten(group), heads)).reshape(group.shape)
        weights.append(a)
    return weights, y


def irmb_weights(x: Array, gamma: Array, beta: Array, wqk: Array, bqk: Array, heads: int, window: int = 7) -> Array:
    """(B, groups, heads, window^2, window^2); rows sum to one."""
    u = pad_to_multiple(channel_norm(x, gamma, beta, 1e-6), window, window)
    return np.stack(_groups(u, wqk, bqk, heads, window)[0], axis=1)


def irmb(
    x: Array,
    gamma: Array,
    beta: Array,
    wqk: Array,
    bqk: Array,
    wv: Array,
    bv: Array,
    wd: Array,
    bnd: Norm,
    wp: Array,
    heads: int,
    window: int = 7,
) -> Array:
    """The whole block, its residual included."""
    u = pad_to_multiple(channel_norm(x, gamma, beta, 1e-6), window, window)
    mixed = _groups(u, wqk, bqk, heads, window)[1][:, :, : x.shape[2], : x.shape[3]]
    m = gelu(pointwise(mixed, wv, bv))
    local = silu(batchnorm(depthwise(m, wd, padding=wd.shape[-1] // 2), bnd, 1e-6))
    return x + pointwise(m + local, wp)
