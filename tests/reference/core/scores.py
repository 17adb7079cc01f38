"""Energies of queries against keys, and kernel regression, written from the papers' equations."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kernel = Callable[[float], float]


def _pairwise(q: Array, k: Array, score: Callable[[Array, Array], float]) -> Array:
    """e_ij = score(q_i, k_j), an (Nq, Nk) array."""
    out = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            out[i, j] = score(q[i], k[j])
    return out


def _inner(x: Array, y: Array) -> float:
    """x^T y = sum_c x_c y_c, for two vectors of one length."""
    assert x.shape == y.shape and x.ndim == 1
    return math.fsum(float(a) * float(b) for a, b in zip(x, y, strict=True))


def _matvec(w: Array, x: Array) -> Array:
    """(W x)_r = sum_c W_rc x_c."""
    return np.array([_inner(row, x) for row in w])


def dot(q: Array, k: Array) -> Array:
    """e_ij = q_i^T k_j (Luong et al. 2015, 3.1, "dot")."""
    return _pairwise(q, k, _inner)


def scaled_dot(q: Array, k: Array) -> Array:
    """e_ij = q_i^T k_j / sqrt(d_k) (Vaswani et al. 2017, eq. 1)."""
    return _pairwise(q, k, lambda x, y: _inner(x, y) / math.sqrt(len(y)))


def cosine(q: Array, k: Array, temperature: float = 1.0) -> Array:
    """e_ij = q_i^T k_j / (|q_i| |k_j| temperature), 0 for a zero vector (Graves et al. 2014, eq. 6)."""

    def score(x: Array, y: Array) -> float:
        norms = math.sqrt(_inner(x, x)) * math.sqrt(_inner(y, y))
        return _inner(x, y) / norms / temperature if norms > 0 else 0.0

    return _pairwise(q, k, score)


def additive(q: Array, k: Array, w: Array, u: Array, v: Array, b: Array) -> Array:
    """e_ij = v^T tanh(W q_i + U k_j + b) (Bahdanau et al. 2015, app. A.1.2); W (h, dq), U (h, dk)."""
    return _pairwise(q, k, lambda x, y: _inner(v, np.tanh(_matvec(w, x) + _matvec(u, y) + b)))


def concat(q: Array, k: Array, w: Array, b: Array, v: Array) -> Array:
    """e_ij = v^T tanh(W [q_i; k_j] + b), query first (Luong et al. 2015, 3.1); W (h, dq + dk)."""
    return _pairwise(q, k, lambda x, y: _inner(v, np.tanh(_matvec(w, np.concatenate([x, y])) + b)))


def general(q: Array, k: Array, w: Array) -> Array:
    """e_ij = q_i^T W k_j (Luong et al. 2015, 3.1, "general"); W (dq, dk)."""
    return _pairwise(q, k, lambda x, y: _inner(x, _matvec(w, y)))


def biased_general(q: Array, k: Array, w: Array, b: Array) -> Array:
    """e_ij = k_j^T (W q_i + b) (Sordoni et al. 2016, query and document attention); W (dk, dq), b (dk,)."""
    return _pairwise(q, k, lambda x, y: _inner(y, _matvec(w, x) + b))


def location(q: Array, w: Array, b: Array) -> Array:
    """e_i = W q_i + b, one energy per key position (Luong et al. 2015, 3.1); W (Nk, dq), b (Nk,)."""
    return np.array([_matvec(w, x) + b for x in q])


def gaussian_kernel(u: float) -> float:
    """K(u) = exp(-u^2 / 2), without the factor 1 / sqrt(2 pi) (Nadaraya 1964; Watson 1964)."""
    return math.exp(-u * u / 2)


def boxcar_kernel(u: float) -> float:
    """K(u) = 1 where u <= 1, else 0 (uniform kernel, not normalised)."""
    return 1.0 if u <= 1 else 0.0


def triangular_kernel(u: float) -> float:
    """K(u) = max(1 - u, 0) (triangular kernel)."""
    return max(1 - u, 0.0)


def epanechnikov_kernel(u: float) -> float:
    """K(u) = 3/4 max(1 - u^2, 0) (Epanechnikov 1969)."""
    return 0.75 * max(1 - u * u, 0.0)


def nadaraya_watson(x_query: Array, x: Array, y: Array, kernel: Kernel, width: float) -> Array:
    """f(t) = sum_i K(|t - x_i| / width) y_i / sum_i K(|t - x_i| / width), 0 if no weight (Nadaraya 1964)."""
    out = np.zeros(len(x_query))
    for i, t in enumerate(x_query):
        weights = [kernel(abs(float(t) - float(s)) / width) for s in x]
        total = math.fsum(weights)
        if total > 0:
            out[i] = math.fsum(a * float(value) for a, value in zip(weights, y, strict=True)) / total
    return out
