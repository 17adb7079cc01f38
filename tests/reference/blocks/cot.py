"""Contextual Transformer block (Li et al., CoTNet, TPAMI 2022, arXiv 2107.12292), kernel k.

K1 = relu(BN(conv kxk, 4 groups, of x)), the static context
A = GN(conv1x1(relu(BN(conv1x1 [x; K1])))): for each of C/8 shared planes k^2 weights at every position, no softmax
K2 = swish(BN(sum over the kxk window of A times V)), V = BN(conv1x1 x); channel c uses plane c mod C/8
(g2, g1) = softmax of conv1x1(relu(BN(conv1x1 GAP(K1 + K2)))), y = g2 K2 + g1 K1

x: (B, C, H, W). key: (C, C/4, k, k), bn_key. first: (C/2, 2C), bn_first. second: pair (weight (k^2 C/8, C/2), bias),
plane p has rows p k^2 .. (p + 1) k^2 - 1, window row by row. gn: (gamma, beta), one group per plane.
value: (C, C), bn_value. bn_local. down: pair (weight (m, C), bias), bn_down, m = max(C/2, 32).
up: pair (weight (2C, m), bias), row 2c gates K2 and row 2c + 1 gates K1. Norms are (gamma, beta, mean, var).
"""

from typing import Any

import numpy as np

from ._ops import Array, batchnorm, conv2d, global_average, per_channel, pointwise, relu, sigmoid, softmax
from ._ops_heads import neighbours

Weights = dict[str, Any]


def _static(x: Array, w: Weights) -> Array:
    return relu(batchnorm(conv2d(x, w["key"], padding=w["key"].shape[-1] // 2, groups=4), w["bn_key"]))


def _planes(x: Array, w: Weights) -> Array:
    """(B, C/8, k^2, H, W)."""
    hidden = relu(batchnorm(pointwise(np.concatenate([x, _static(x, w)], axis=1), w["first"]), w["bn_first"]))
    a = pointwise(hidden, *w["second"])
    groups = a.reshape(a.shape[0], -1, w["key"].shape[-1] ** 2, *x.shape[2:])
    centred = groups - groups.mean(axis=(2, 3, 4), keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=(2, 3, 4), keepdims=True) + 1e-5)
    gamma, beta = (per_channel(p, 4) for p in w["gn"])
    return (gamma * normed.reshape(a.shape) + beta).reshape(groups.shape)


def contextual_transformer_weights(x: Array, w: Weights) -> Array:
    """Local weights (B, C/8, N, k^2) of the planes; of either sign, they do not sum to one."""
    a = _planes(x, w)
    return a.reshape(*a.shape[:3], -1).transpose(0, 1, 3, 2)


def contextual_transformer(x: Array, w: Weights) -> Array:
    """Static and dynamic context, mixed per channel."""
    static, a = _static(x, w), _planes(x, w)
    windows = neighbours(batchnorm(pointwise(x, w["value"]), w["bn_value"]), w["key"].shape[-1])
    local = np.stack([(windows[:, c] * a[:, c % a.shape[1]]).sum(axis=1) for c in range(windows.shape[1])], axis=1)
    local = batchnorm(local, w["bn_local"])
    dynamic = local * sigmoid(local)
    hidden = relu(batchnorm(pointwise(global_average(dynamic + static), *w["down"]), w["bn_down"]))
    gate = softmax(pointwise(hidden, *w["up"]).reshape(*dynamic.shape[:2], 2), axis=2)[..., None, None]
    return gate[:, :, 0] * dynamic + gate[:, :, 1] * static
