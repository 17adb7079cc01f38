"""Pyramid Split Attention (Zhang et al., ACCV 2022, arXiv 2105.14447), as released.

u_i = conv_{k_i}(x) with C / 4 outputs, g_i groups and one stride for all, i = 0..3, no bias
z_i = sigmoid(W2 relu(W1 GAP(u_i) + b1) + b2), the same two layers for every i
a = softmax over i of z_i, channel by channel; y = [a_3 u_3; a_2 u_2; a_1 u_1; a_0 u_0]: the authors' code joins the
branches backwards

x: (B, C_in, H, W). kernels: four (C/4, C_in/g_i, k_i, k_i). w1: (R, C/4), b1: (R,), w2: (C/4, R), b2: (C/4,).
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, conv2d, gate_channels, global_average, pointwise, relu, sigmoid, softmax


def pyramid_split(
    x: Array, kernels: Sequence[Array], w1: Array, b1: Array, w2: Array, b2: Array, stride: int = 1
) -> Array:
    """Convolutions of several sizes, weighed against each other channel by channel."""
    branches, scores = [], []
    for kernel in kernels:
        groups = x.shape[1] // kernel.shape[1]
        branch = conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2, groups=groups)
        hidden = relu(pointwise(global_average(branch), w1.reshape(np.size(b1), -1), b1))
        branches.append(branch)
        scores.append(sigmoid(pointwise(hidden, w2.reshape(np.size(b2), -1), b2)))
    weights = softmax(np.stack(scores), axis=0)
    gated = [gate_channels(branch, weight) for branch, weight in zip(branches, weights, strict=True)]
    return np.concatenate(gated[::-1], axis=1)
