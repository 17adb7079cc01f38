"""Attention of queries over keys and values: one head, several heads, one distribution per feature."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .distributions import softmax
from .scores import scaled_dot

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Distribution = Callable[[Array], Array]
Score = Callable[[Array, Array], Array]


def attend(
    q: Array,
    k: Array,
    v: Array,
    energies: Array | Score,
    distribution: Distribution,
    mask: Mask | None = None,
    gain: Array | None = None,
) -> tuple[Array, Array]:
    """a_i = distribution(e_i, -inf where hidden) * gain_i, c_i = sum_j a_ij v_j (Luong et al. 2015, 3).

    `energies` is the (Nq, Nk) array itself or a score called as energies(q, k); the gain is applied after
    normalisation and nothing is renormalised (Luong et al. 2015, local-p). Returns (context, weights).
    """
    table = np.asarray(energies(q, k) if callable(energies) else energies, dtype=np.float64)
    nq, nk = len(q), len(k)
    weights = np.zeros((nq, nk))
    context = np.zeros((nq, v.shape[1]))
    for i in range(nq):
        row = [float(table[i, j]) if mask is None or mask[i, j] else -math.inf for j in range(nk)]
        weights[i] = distribution(np.array(row))
        for j in range(nk):
            if gain is not None:
                weights[i, j] *= gain[i, j]
            context[i] += weights[i, j] * v[j]
    return context, weights


def multi_head(q: Array, k: Array, v: Array, heads: int, mask: Mask | None = None) -> tuple[Array, Array]:
    """head_h = softmax(Q_h K_h^T / sqrt(d_k / H)) V_h, concatenated (Vaswani et al. 2017, 3.2.2).

    Head h owns the h-th consecutive chunk of the features of q, k and v; no projections.
    Returns the context (Nq, dv) and the weights (heads, Nq, Nk).
    """
    assert all(x.shape[1] % heads == 0 for x in (q, k, v))
    contexts, weights = [], []
    for h in range(heads):
        qh, kh, vh = (x[:, h * x.shape[1] // heads : (h + 1) * x.shape[1] // heads] for x in (q, k, v))
        c, a = attend(qh, kh, vh, scaled_dot, softmax, mask)
        contexts.append(c)
        weights.append(a)
    return np.concatenate(contexts, axis=1), np.stack(weights)


def multi_dimensional(q: Array, k: Array, v: Array, w: Array, u: Array, b: Array, vmat: Array) -> tuple[Array, Array]:
    """e_ij = V tanh(W q_i + U k_j + b) in R^dv, a_ij[f] = softmax_j e_ij[f], c_i[f] = sum_j a_ij[f] v_j[f].

    After Shen et al. 2018 (DiSAN), tanh for their sigma, no output bias (softmax cancels it).
    W (h, dq), U (h, dk), V (dv, h).
    Returns the context (Nq, dv) and the weights (Nq, Nk, dv).
    """
    nq, nk, dv = len(q), len(k), v.shape[1]
    context, weights = np.zeros((nq, dv)), np.zeros((nq, nk, dv))
    for i in range(nq):
        energies = np.array([vmat @ np.tanh(w @ q[i] + u @ k[j] + b) for j in range(nk)])
        for f in range(dv):
            weights[i, :, f] = softmax(energies[:, f])
            context[i, f] = sum(weights[i, j, f] * v[j, f] for j in range(nk))
    return context, weights
