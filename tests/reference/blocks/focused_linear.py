"""Focused linear attention (Han et al., FLatten Transformer, ICCV 2023, arXiv 2308.00442).

f(t) = |t| t**p / |t**p| with the norms over all C channels, t = (relu(u) + 1e-6) / softplus(scale)
a_ij = f(q_i) . f(k_j + position_j) / N / (f(q_i) . mean_j f(k_j + position_j) + 1e-6), head by head
y = W (sum_j a_ij v_j + DWC(v)) + b, DWC a depthwise kxk convolution with one kernel set for all heads

x: (B, C, H, W), positions in row-major order. q, k, v: pairs (weight (C, C), bias (C,) or None); out: pair with bias.
scale: (C,). position: (C, N), added to the keys. dwc: pair (weight (d, k, k), bias (d,)), d = C/heads, k odd.
"""

import numpy as np

from ._ops import Array, depthwise, flatten, pointwise, relu
from ._ops_heads import Linear, heads_of, weighted_sum


def _focus(t: Array, scale: Array, p: int) -> Array:
    t = (relu(t) + 1e-6) / np.log1p(np.exp(scale))[None, :, None]
    sharp = t**p
    return sharp * np.linalg.norm(t, axis=1, keepdims=True) / np.linalg.norm(sharp, axis=1, keepdims=True)


def focused_linear_weights(
    x: Array,
    q: Linear,
    k: Linear,
    v: Linear | None,
    out: Linear | None,
    scale: Array,
    position: Array,
    dwc: Linear | None,
    heads: int,
    *,
    p: int = 3,
) -> Array:
    """Weights (B, heads, N, N) of the linear part."""
    batch, channels, n = flatten(x).shape
    queries = _focus(pointwise(flatten(x), *q), scale, p).reshape(batch, heads, channels // heads, n)
    keys = _focus(pointwise(flatten(x), *k) + position, scale, p).reshape(batch, heads, channels // heads, n)
    s = np.einsum("bndi,bndj->bnij", queries, keys) / n
    return s / (s.sum(axis=3, keepdims=True) + 1e-6)


def focused_linear(
    x: Array,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    scale: Array,
    position: Array,
    dwc: Linear,
    heads: int,
    *,
    p: int = 3,
) -> Array:
    """Focused linear attention with its four projections, no residual."""
    a = focused_linear_weights(x, q, k, v, out, scale, position, dwc, heads, p=p)
    values = heads_of(x, v, heads)
    maps = values.reshape(-1, values.shape[2], *x.shape[2:])  # each head is one more image of the batch
    local = depthwise(maps, *dwc, padding=dwc[0].shape[-1] // 2).reshape(x.shape)
    return pointwise(weighted_sum(a, values, *x.shape[2:]) + local, *out)
