"""Class-specific residual attention (Zhu and Wu, Residual Attention, ICCV 2021, arXiv 2108.02456).

s_k(i) = x_i . m_k / |m_k| for class k at place i, base_k = mean_i s_k(i)
a_k = sum_i softmax_i(T s_k(i)) s_k(i), or max_i s_k(i) for T infinite; logit_k = base_k + lam a_k
several heads, each with its own m and T: the sum of their logits

x: (B, C, H, W). heads: for each (m (K, C), T), T a number or numpy.inf. lam: the weight of the attention.
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, flatten, softmax


def class_scores(x: Array, m: Array) -> Array:
    """(B, K, N): the score of every class at every place."""
    return np.einsum("kc,bcn->bkn", m / np.sqrt((m**2).sum(axis=1, keepdims=True)), flatten(x))


def csra(x: Array, heads: Sequence[tuple[Array, float]], *, lam: float) -> Array:
    """Logits (B, K)."""
    logits = np.zeros((x.shape[0], heads[0][0].shape[0]))
    for m, temperature in heads:
        s = class_scores(x, m)
        pooled = s.max(axis=2) if np.isinf(temperature) else (softmax(temperature * s, 2) * s).sum(axis=2)
        logits += s.mean(axis=2) + lam * pooled
    return logits
