"""Split attention (Zhang et al., ResNeSt, CVPRW 2022, arXiv 2004.08955), radix-major layout.

U = relu(BN(conv3x3 x)) has radix blocks U_r of C channels; s = GAP(sum_r U_r)
logits = fc2 relu(BN(fc1 s)), viewed as (groups, radix, C/groups); softmax over radix (sigmoid if radix 1)
y_c = sum_r a[c // (C/groups), r, c % (C/groups)] U_{r,c}

x: (B, C_in, H, W). w: (radix C, C_in/(groups radix), 3, 3). w1: (inter, C/groups), b1: (inter,) or None.
w2: (radix C, inter/groups), b2: (radix C,) or None. bn0, bn1: (gamma, beta, mean, var).
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, conv2d, global_average, relu, sigmoid, softmax


def _grouped_linear(v: Array, w: Array, b: Array | None, groups: int) -> Array:
    """Block-diagonal linear layer: v (B, in), w (out, in/groups)."""
    n_in, n_out = v.shape[1] // groups, w.shape[0] // groups
    w = w.reshape(w.shape[0], n_in)
    blocks = [v[:, g * n_in : (g + 1) * n_in] @ w[g * n_out : (g + 1) * n_out].T for g in range(groups)]
    y = np.concatenate(blocks, axis=1)
    return y if b is None else y + b


def split_attention(
    x: Array,
    w: Array,
    bn0: Norm,
    w1: Array,
    b1: Array | None,
    bn1: Norm,
    w2: Array,
    b2: Array | None,
    radix: int,
    groups: int,
) -> Array:
    """Weighted sum of the radix splits."""
    u = relu(batchnorm(conv2d(x, w, padding=1, groups=groups * radix), bn0))
    channels = u.shape[1] // radix
    width = channels // groups
    splits = [u[:, r * channels : (r + 1) * channels] for r in range(radix)]
    hidden = relu(batchnorm(_grouped_linear(global_average(sum(splits)), w1, b1, groups), bn1))
    logits = _grouped_linear(hidden, w2, b2, groups).reshape(-1, groups, radix, width)
    a = softmax(logits, axis=2) if radix > 1 else sigmoid(logits)
    y = np.zeros_like(splits[0])
    for r in range(radix):
        for c in range(channels):
            y[:, c] += a[:, c // width, r, c % width][:, None, None] * splits[r][:, c]
    return y
