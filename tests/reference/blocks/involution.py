"""Involution (Li et al., CVPR 2021, arXiv 2103.06255): every pixel makes its own kernel, for groups of channels.

K_i = w1 relu(BN(w0 x_i)) + b1, s^2 numbers for each of G groups; with a stride t, x_i is the average of t x t pixels
y_ic = sum over the s x s window of K_i[group of c, tap] v_c(t i + tap), zeros outside, channel c in group c // (C/G)

x: (B, C_in, H, W). w0: (r, C_in), no bias. w1: (G s^2, r), the taps of a group row by row. b1: (G s^2,).
bn: (gamma, beta, mean, var). v = x, or wv x with wv: (C, C_in) where other channels go out than come in (not in the
paper). At the end of a map whose size is no multiple of t, the average is over the pixels that are there.
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, pointwise, relu
from ._ops_heads import average_tiles


def involution_kernels(x: Array, w0: Array, bn: Norm, w1: Array, b1: Array, groups: int, *, stride: int = 1) -> Array:
    """The kernels (B, G, s, s, H', W')."""
    k = pointwise(relu(batchnorm(pointwise(average_tiles(x, stride), w0), bn)), w1, b1)
    size = round((len(w1) / groups) ** 0.5)
    return k.reshape(len(x), groups, size, size, *k.shape[2:])


def involution_weights(x: Array, w0: Array, bn: Norm, w1: Array, b1: Array, groups: int, *, stride: int = 1) -> Array:
    """The kernels as weights of all pixels, (B, G, N', N)."""
    kernels = involution_kernels(x, w0, bn, w1, b1, groups, stride=stride)
    (height, width), margin = x.shape[2:], kernels.shape[2] // 2
    weights = np.zeros((*kernels.shape[:2], *kernels.shape[4:], height, width))
    for i, j in np.ndindex(*kernels.shape[4:]):
        for u, v in np.ndindex(*kernels.shape[2:4]):
            row, column = i * stride + u - margin, j * stride + v - margin
            if 0 <= row < height and 0 <= column < width:
                weights[:, :, i, j, row, column] = kernels[:, :, u, v, i, j]
    return weights.reshape(*kernels.shape[:2], -1, height * width)


def involution(
    x: Array,
    w0: Array,
    bn: Norm,
    w1: Array,
    b1: Array,
    groups: int,
    wv: Array | None = None,
    *,
    stride: int = 1,
) -> Array:
    """The map, each pixel filtered by its own kernel."""
    values = x if wv is None else pointwise(x, wv)
    weights = involution_weights(x, w0, bn, w1, b1, groups, stride=stride)
    grouped = values.reshape(len(x), groups, values.shape[1] // groups, -1)
    y = np.einsum("bgij,bgcj->bgci", weights, grouped)
    return y.reshape(len(x), values.shape[1], -(-x.shape[2] // stride), -(-x.shape[3] // stride))
