"""Double attention, A2-Nets (Chen et al., NeurIPS 2018, arXiv 1810.11579).

A = wa x + ba (m, N), B = softmax over positions of wb x + bb (n, N), V = softmax over the n channels of
wv x + bv (n, N); Z = (A B^T) V, y = x + wo Z + bo

x: (B, C, H, W). wa: (m, C), wb, wv: (n, C), wo: (C, m); ba, bb, bv, bo: biases or None.
The weights are row i = sum_k V[k, i] B[k, :], so that Z_i = sum_j weights[i, j] A_j.
"""

import numpy as np

from ._ops import Array, flatten, pointwise, softmax


def _maps(x: Array, wb: Array, bb: Array | None, wv: Array, bv: Array | None) -> tuple[Array, Array]:
    gather = softmax(pointwise(flatten(x), wb, bb), axis=2)
    distribute = softmax(pointwise(flatten(x), wv, bv), axis=1)
    return gather, distribute


def double_attention_weights(
    x: Array,
    wa: Array | None,
    ba: Array | None,
    wb: Array,
    bb: Array | None,
    wv: Array,
    bv: Array | None,
    wo: Array | None = None,
    bo: Array | None = None,
) -> Array:
    """Equivalent pairwise weights (B, N, N); wa, ba, wo and bo do not matter."""
    gather, distribute = _maps(x, wb, bb, wv, bv)
    return np.einsum("bki,bkj->bij", distribute, gather)


def double_attention(
    x: Array,
    wa: Array,
    ba: Array | None,
    wb: Array,
    bb: Array | None,
    wv: Array,
    bv: Array | None,
    wo: Array,
    bo: Array | None,
) -> Array:
    """Gather n descriptors, distribute them to the positions, project, add."""
    gather, distribute = _maps(x, wb, bb, wv, bv)
    descriptors = np.einsum("bmj,bkj->bmk", pointwise(flatten(x), wa, ba), gather)
    z = np.einsum("bmk,bki->bmi", descriptors, distribute)
    return x + pointwise(z, wo, bo).reshape(x.shape)
