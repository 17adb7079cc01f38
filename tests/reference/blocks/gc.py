"""Global Context block (Cao et al., GCNet, ICCVW 2019, arXiv 1904.11492).

a_j = softmax_j(wk . x_j + bk), ctx = sum_j a_j x_j
y_i = x_i + W2 relu(LN(W1 ctx + b1)) + b2

x: (B, C, H, W). wk: (C,), bk: scalar or None. w1: (C/r, C), b1: (C/r,) or None.
ln: (gamma, beta) over the C/r features. w2: (C, C/r), b2: (C,) or None.
"""

import numpy as np

from ._ops import Array, flatten, layernorm, pointwise, relu, softmax


def global_context_weights(
    x: Array,
    wk: Array,
    bk: Array | float | None,
    w1: Array | None = None,
    b1: Array | None = None,
    ln: tuple[Array, Array] | None = None,
    w2: Array | None = None,
    b2: Array | None = None,
) -> Array:
    """Softmax map over the positions, (B, 1, H, W); only x, wk and bk matter."""
    score = np.einsum("c,bcn->bn", np.ravel(wk), flatten(x))
    if bk is not None:
        score = score + np.ravel(bk)[0]
    return softmax(score, axis=1).reshape(x.shape[0], 1, *x.shape[2:])


def global_context(
    x: Array,
    wk: Array,
    bk: Array | float | None,
    w1: Array,
    b1: Array | None,
    ln: tuple[Array, Array],
    w2: Array,
    b2: Array | None,
) -> Array:
    """Add the transformed context vector to every position."""
    context = (global_context_weights(x, wk, bk) * x).sum(axis=(2, 3))
    hidden = layernorm(pointwise(context, w1, b1), np.ravel(ln[0]), np.ravel(ln[1]))
    return x + pointwise(relu(hidden), w2, b2)[:, :, None, None]
