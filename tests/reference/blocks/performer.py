"""FAVOR+ attention (Choromanski et al., Rethinking Attention with Performers, ICLR 2021, arXiv 2009.14794).

phi(t)_m = (exp(w_m . t' - |t'|^2 / 2 - c) + eps) / sqrt(M), t' = t / d^(1/4)
c: for a query its largest w_m . t'; for the keys the largest over features and positions of that head
a_ij = phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j); y_i = W sum_j a_ij v_j

x: (B, C, H, W), positions in row-major order. q, k, v, out: pairs (weight (C, C), bias (C,) or None).
projection: (M, d) rows w_m, d = C/heads, for all heads; not trained.
"""

import math

import numpy as np

from ._ops import Array, pointwise
from ._ops_heads import Linear, heads_of, weighted_sum


def _features(t: Array, projection: Array, eps: float, shift_axes: tuple[int, ...]) -> Array:
    t = t / t.shape[2] ** 0.25
    dots = np.einsum("md,bndi->bnmi", projection, t)
    half_norm = (t**2).sum(axis=2, keepdims=True) / 2
    e = np.exp(dots - half_norm - dots.max(axis=shift_axes, keepdims=True))
    return (e + eps) / math.sqrt(len(projection))


def performer_weights(
    x: Array,
    q: Linear,
    k: Linear,
    v: Linear | None,
    out: Linear | None,
    projection: Array,
    heads: int,
    *,
    eps: float = 1e-6,
) -> Array:
    """Weights (B, heads, N, N); the rows sum to one."""
    queries = _features(heads_of(x, q, heads), projection, eps, (2,))
    keys = _features(heads_of(x, k, heads), projection, eps, (2, 3))
    s = np.einsum("bnmi,bnmj->bnij", queries, keys)
    return s / s.sum(axis=3, keepdims=True)


def performer(
    x: Array, q: Linear, k: Linear, v: Linear, out: Linear, projection: Array, heads: int, *, eps: float = 1e-6
) -> Array:
    """FAVOR+ attention with its four projections, no residual."""
    a = performer_weights(x, q, k, v, out, projection, heads, eps=eps)
    return pointwise(weighted_sum(a, heads_of(x, v, heads), *x.shape[2:]), *out)
