"""Gather-Excite (Hu et al., NeurIPS 2018, arXiv 1810.12348): y = x * sigmoid(upsample(gather(x))).

theta-: gather = average pooling (kernel 2e-1, stride e, padding e-1, zeros not counted; e = 0: global).
theta: gather = depthwise convolutions with batch norm: either one kernel of the size of the map
(full_map), or 3x3 stride-2 padding-1 ones with a relu between them (none after the last).
theta+: the same gather, then relu, 1x1, relu, 1x1 before the upsampling (nearest neighbour) and sigmoid.

x: (B, C, H, W). kernels: list of (C, k, k). bns: list of (gamma, beta, mean, var), one per kernel.
w1: (C/r, C), b1, w2: (C, C/r), b2: the two 1x1 convolutions (biases may be None).
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, Norm, average_pool, batchnorm, depthwise, nearest, pointwise, relu, sigmoid


def _excite(x: Array, gathered: Array) -> Array:
    return x * sigmoid(nearest(gathered, x.shape[2], x.shape[3]))


def _gather(x: Array, kernels: Sequence[Array], bns: Sequence[Norm], full_map: bool) -> Array:
    if full_map:
        assert len(kernels) == 1 and kernels[0].shape[-2:] == x.shape[2:]
        kernel = kernels[0].reshape(x.shape[1:])
        return batchnorm(np.einsum("bchw,chw->bc", x, kernel)[:, :, None, None], bns[0])
    y = x
    for n, (kernel, bn) in enumerate(zip(kernels, bns, strict=True)):
        y = batchnorm(depthwise(y, kernel, stride=2, padding=1), bn)
        if n < len(kernels) - 1:
            y = relu(y)
    return y


def ge_theta_minus(x: Array, extent: int) -> Array:
    """Parameter-free Gather-Excite; extent 0 is the global one."""
    if extent == 0:
        return x * sigmoid(x.mean(axis=(2, 3), keepdims=True))
    return _excite(x, average_pool(x, 2 * extent - 1, extent, extent - 1))


def ge_theta(x: Array, kernels: Sequence[Array], bns: Sequence[Norm], full_map: bool) -> Array:
    """Gather-Excite with a depthwise gather."""
    return _excite(x, _gather(x, kernels, bns, full_map))


def ge_theta_plus(
    x: Array,
    kernels: Sequence[Array],
    bns: Sequence[Norm],
    w1: Array,
    b1: Array | None,
    w2: Array,
    b2: Array | None,
    full_map: bool,
) -> Array:
    """Gather-Excite with a depthwise gather and a 1x1 excite network."""
    hidden = relu(_gather(x, kernels, bns, full_map))
    hidden = relu(pointwise(hidden, w1, b1))
    return _excite(x, pointwise(hidden, w2, b2))
