"""AFT-conv of the attention free transformer (Zhai et al., 2021, arXiv 2105.14103), on maps.

y_t = wo (sigmoid(q_t) * sum_s exp(k_s + w[s - t]) v_s / sum_s exp(k_s + w[s - t])) + bo
w = gamma (raw - mean(raw)) / std(raw) + beta over the kernel of each head; w[s - t] = 0 outside the kernel

x: (B, C, H, W). wq, wv, wo: (C, C); wk: (heads, C); one key for the C/heads channels of a head; biases (C,) or
(heads,) or None. raw: (heads, S, S), S odd. gamma, beta: (heads,).
"""

import numpy as np

from ._ops import Array, flatten, pointwise, sigmoid, softmax
from ._ops_group4 import mix, split_heads


def position_bias(raw: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """(heads, S, S): the kernel after its normalisation (biased variance)."""
    mean = raw.mean(axis=(1, 2), keepdims=True)
    var = raw.var(axis=(1, 2), keepdims=True)
    return gamma[:, None, None] * (raw - mean) / np.sqrt(var + eps) + beta[:, None, None]


def aft_weights(x: Array, wk: Array, bk: Array | None, raw: Array, gamma: Array, beta: Array) -> Array:
    """(B, heads, N, N): the share of position s in position t; rows sum to one."""
    height, width = x.shape[2:]
    w = position_bias(raw, gamma, beta)
    reach = raw.shape[1] // 2
    n = height * width
    bias = np.zeros((w.shape[0], n, n))
    for t in range(n):
        for s in range(n):
            down, right = s // width - t // width, s % width - t % width
            if abs(down) <= reach and abs(right) <= reach:
                bias[:, t, s] = w[:, reach + down, reach + right]
    k = pointwise(flatten(x), wk, bk)
    return softmax(k[:, :, None, :] + bias, axis=-1)


def aft_conv(
    x: Array,
    wq: Array,
    bq: Array | None,
    wk: Array,
    bk: Array | None,
    wv: Array,
    bv: Array | None,
    wo: Array,
    bo: Array | None,
    raw: Array,
    gamma: Array,
    beta: Array,
) -> Array:
    """AFT-conv, without the residual."""
    q, v = pointwise(flatten(x), wq, bq), pointwise(flatten(x), wv, bv)
    context = mix(aft_weights(x, wk, bk, raw, gamma, beta), split_heads(v, wk.shape[0]))
    return pointwise(sigmoid(q) * context, wo, bo).reshape(x.shape)
