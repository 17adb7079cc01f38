"""Boolean visibility masks (True = visible), shape (Nq, Nk), and the window of local-p attention."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def causal(nq: int, nk: int) -> Mask:
    """Key j is visible to query i iff j <= i + (nk - nq), ends aligned (Vaswani et al. 2017, 3.2.3)."""
    mask = np.zeros((nq, nk), dtype=bool)
    for i in range(nq):
        for j in range(nk):
            mask[i, j] = j <= i + (nk - nq)
    return mask


def local(nq: int, nk: int, radius: int) -> Mask:
    """Local-m: |j - p_i| <= D with p_i = i (Luong et al. 2015, 3.2)."""
    mask = np.zeros((nq, nk), dtype=bool)
    for i in range(nq):
        for j in range(nk):
            mask[i, j] = abs(j - i) <= radius
    return mask


def near(queries: Sequence[int], keys: Sequence[int], radius: int) -> Mask:
    """|p_j - p_i| <= D of any positions."""
    return np.array([[abs(key - query) <= radius for key in keys] for query in queries])


def local_2d(h: int, w: int, radius: int) -> Mask:
    """max(|row_i - row_j|, |col_i - col_j|) <= radius on an h x w grid, row-major (Chebyshev distance)."""
    mask = np.zeros((h * w, h * w), dtype=bool)
    for r in range(h):
        for c in range(w):
            for s in range(h):
                for d in range(w):
                    mask[r * w + c, s * w + d] = max(abs(r - s), abs(c - d)) <= radius
    return mask


def window_2d(h: int, w: int, size: int) -> Mask:
    """Same cell of the regular size x size partition from the top left (Liu et al. 2021, Swin, 3.2)."""
    mask = np.zeros((h * w, h * w), dtype=bool)
    for top in range(0, h, size):
        for left in range(0, w, size):
            rows = range(top, min(top + size, h))
            columns = range(left, min(left + size, w))
            members = [r * w + c for r in rows for c in columns]
            for i in members:
                for j in members:
                    mask[i, j] = True
    return mask


def local_predictive(q: Array, nk: int, wp: Array, vp: Array, radius: float) -> tuple[Mask, Array]:
    """p_i = nk sigmoid(vp^T tanh(Wp q_i)); mask |j - p_i| <= D, gain exp(-(j - p_i)^2 / (2 (D/2)^2)).

    Luong et al. 2015, 3.2 (local-p), with source positions j = 0 .. nk - 1; Wp (h, dq), vp (h,).
    """
    mask = np.zeros((len(q), nk), dtype=bool)
    gain = np.zeros((len(q), nk))
    sigma = radius / 2
    for i in range(len(q)):
        z = 0.0
        for r in range(len(vp)):
            z += float(vp[r]) * math.tanh(sum(float(wp[r, c]) * float(q[i, c]) for c in range(q.shape[1])))
        p = nk / (1 + math.exp(-z))
        for j in range(nk):
            mask[i, j] = abs(j - p) <= radius
            gain[i, j] = math.exp(-((j - p) ** 2) / (2 * sigma**2))
    return mask, gain
