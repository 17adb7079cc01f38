"""Co-attention of two sequences and hierarchical attention pooling."""

import numpy as np
from numpy.typing import NDArray

from .distributions import softmax
from .scores import additive

Array = NDArray[np.float64]
Additive = tuple[Array, Array, Array, Array]  # (w_query (h, dq), u_key (h, dk), bias (h,), v (h,))
Level = tuple[Array, Array, Array, Array, Array]  # (query (d,), w (h, d), u (h, d), b (h,), v (h,))


def _weighted_sum(weights: Array, x: Array) -> Array:
    """sum_i a_i x_i."""
    out = np.zeros(x.shape[1])
    for a, row in zip(weights, x, strict=True):
        out += a * row
    return out


def _guided(x: Array, guide: Array, score: Additive) -> tuple[Array, Array]:
    """a = softmax_i(v^T tanh(W g + U x_i + bias)), c = sum_i a_i x_i (Lu et al. 2016, eq. 6)."""
    w, u, b, v = score
    weights = softmax(additive(guide[None, :], x, w, u, v, b)[0])
    return _weighted_sum(weights, x), weights


def parallel_coattention(
    a: Array, b: Array, wc: Array, wa: Array, wb: Array, va: Array, vb: Array
) -> tuple[Array, Array, Array, Array]:
    """C = tanh(A Wc B^T), Ha = tanh(A Wa^T + C B Wb^T), Hb = tanh(B Wb^T + C^T A Wa^T), a = softmax(H v).

    Lu et al. 2016, eqs. 3-5, rows instead of columns (A = question, B = image there); Wc (da, db),
    Wa (h, da), Wb (h, db), va and vb (h,). Returns (ctx_a, ctx_b, weights_a, weights_b).
    """
    na, nb = len(a), len(b)
    affinity = np.zeros((na, nb))
    for i in range(na):
        for j in range(nb):
            affinity[i, j] = np.tanh(a[i] @ wc @ b[j])
    pa = [wa @ row for row in a]
    pb = [wb @ row for row in b]
    ea, eb = np.zeros(na), np.zeros(nb)
    for i in range(na):
        ea[i] = va @ np.tanh(pa[i] + sum(affinity[i, j] * pb[j] for j in range(nb)))
    for j in range(nb):
        eb[j] = vb @ np.tanh(pb[j] + sum(affinity[i, j] * pa[i] for i in range(na)))
    weights_a, weights_b = softmax(ea), softmax(eb)
    return _weighted_sum(weights_a, a), _weighted_sum(weights_b, b), weights_a, weights_b


def alternating_coattention(
    a: Array, b: Array, step1: Additive, step2: Additive, step3: Additive
) -> tuple[Array, Array, Array, Array]:
    """s = A(a; 0), ctx_b = A(b; s), ctx_a = A(a; ctx_b), A the additive attention (Lu et al. 2016, eq. 6).

    Returns (ctx_a, ctx_b, weights_a, weights_b), the weights being those of steps 3 and 2.
    """
    summary, _ = _guided(a, np.zeros(step1[0].shape[1]), step1)
    ctx_b, weights_b = _guided(b, summary, step2)
    ctx_a, weights_a = _guided(a, ctx_b, step3)
    return ctx_a, ctx_b, weights_a, weights_b


def coarse_parallel_coattention(
    a: Array, b: Array, score_a: Additive, score_b: Additive
) -> tuple[Array, Array, Array, Array]:
    """ctx_a = A(a; mean b), ctx_b = A(b; mean a), A the additive attention (after IAN, Ma et al. 2017).

    Returns (ctx_a, ctx_b, weights_a, weights_b).
    """
    ctx_a, weights_a = _guided(a, _weighted_sum(np.full(len(b), 1 / len(b)), b), score_a)
    ctx_b, weights_b = _guided(b, _weighted_sum(np.full(len(a), 1 / len(a)), a), score_b)
    return ctx_a, ctx_b, weights_a, weights_b


def hierarchical(x: Array, inner: Level, outer: Level) -> tuple[Array, Array, Array]:
    """s_g = sum_n a_gn x_gn, c = sum_g b_g s_g, a_g and b = softmax(v^T tanh(W query + U . + b)) per level.

    After Yang et al. 2016 (HAN), without its recurrent encoders; x (G, N, d), inner weights shared by groups.
    Returns (context (d,), inner_weights (G, N), outer_weights (G,)).
    """
    groups, inner_weights = np.zeros((x.shape[0], x.shape[2])), np.zeros(x.shape[:2])
    for g in range(len(x)):
        groups[g], inner_weights[g] = _guided(x[g], inner[0], inner[1:])
    context, outer_weights = _guided(groups, outer[0], outer[1:])
    return context, inner_weights, outer_weights
