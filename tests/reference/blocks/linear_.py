"""Linear attention (Katharopoulos et al., Transformers are RNNs, ICML 2020, arXiv 2006.16236), not causal.

a_ij = phi(q_i) . phi(k_j) / (sum_j phi(q_i) . phi(k_j) + 1e-6), phi(t) = elu(t) + 1; y_i = W sum_j a_ij v_j + b

x: (B, C, H, W), positions in row-major order. q, k, v, out: pairs (weight (C, C), bias (C,)).
"""

import numpy as np

from ._ops import Array, pointwise
from ._ops_heads import Linear, heads_of, weighted_sum


def _phi(t: Array) -> Array:
    return np.where(t > 0, t + 1.0, np.exp(np.minimum(t, 0.0)))


def linear_attention_weights(x: Array, q: Linear, k: Linear, v: Linear | None, out: Linear | None, heads: int) -> Array:
    """Weights (B, heads, N, N)."""
    s = np.einsum("bndi,bndj->bnij", _phi(heads_of(x, q, heads)), _phi(heads_of(x, k, heads)))
    return s / (s.sum(axis=3, keepdims=True) + 1e-6)


def linear_attention(x: Array, q: Linear, k: Linear, v: Linear, out: Linear, heads: int) -> Array:
    """Linear attention with its four projections, no residual."""
    a = linear_attention_weights(x, q, k, v, out, heads)
    return pointwise(weighted_sum(a, heads_of(x, v, heads), *x.shape[2:]), *out)
