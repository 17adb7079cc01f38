"""Selective Kernel convolution (Li et al., SKNet, CVPR 2019, arXiv 1903.06586), two branches.

U1 = relu(BN(conv3x3 x)), U2 = relu(BN(conv3x3 dilation 2 x)), z = relu(BN(wz GAP(U1 + U2)))
(a1, a2) = softmax over the branches of ws z, y = a1 U1 + a2 U2

With a stride, that of the two convolutions.
x: (B, C_in, H, W). w3, w5: (C, C_in/groups, 3, 3). wz: (d, C). ws: (2C, d), the first C for branch 1.
bn3, bn5, bnz: (gamma, beta, mean, var).
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, conv2d, global_average, pointwise, relu, softmax


def _branches(x: Array, w3: Array, bn3: Norm, w5: Array, bn5: Norm, groups: int, stride: int) -> tuple[Array, Array]:
    first = relu(batchnorm(conv2d(x, w3, padding=1, groups=groups, stride=stride), bn3))
    second = relu(batchnorm(conv2d(x, w5, padding=2, dilation=2, groups=groups, stride=stride), bn5))
    return first, second


def _weights(total: Array, wz: Array, bnz: Norm, ws: Array) -> Array:
    z = relu(batchnorm(pointwise(global_average(total), wz), bnz))
    logits = pointwise(z, ws)
    half = logits.shape[1] // 2
    return softmax(np.stack([logits[:, :half], logits[:, half:]], axis=1), axis=1)


def selective_kernel_weights(
    x: Array,
    w3: Array,
    bn3: Norm,
    w5: Array,
    bn5: Norm,
    wz: Array,
    bnz: Norm,
    ws: Array,
    groups: int,
    stride: int = 1,
) -> Array:
    """Branch weights (B, 2, C), summing to one over the branches."""
    first, second = _branches(x, w3, bn3, w5, bn5, groups, stride)
    return _weights(first + second, wz, bnz, ws)


def selective_kernel(
    x: Array,
    w3: Array,
    bn3: Norm,
    w5: Array,
    bn5: Norm,
    wz: Array,
    bnz: Norm,
    ws: Array,
    groups: int,
    stride: int = 1,
) -> Array:
    """Weighted sum of the two branches."""
    first, second = _branches(x, w3, bn3, w5, bn5, groups, stride)
    a = _weights(first + second, wz, bnz, ws)[..., None, None]
    return a[:, 0] * first + a[:, 1] * second
