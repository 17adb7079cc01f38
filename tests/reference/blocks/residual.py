"""Residual Attention Network soft mask (Wang et al., CVPR 2017, arXiv 1704.06904): y = (1 + M(x)) x.

M: D levels of max-pooling and a pre-activation bottleneck unit, one more unit at the bottom, then back up:
bilinear resize (align_corners), plus a unit of the level's feature, a unit; resize to x, head, sigmoid.
A unit is x + w3 relu(bn3(w2 * relu(bn2(w1 relu(bn1(x)))))), w2 being a 3x3 convolution, without biases.

x: (B, C, H, W). Units: dicts {"bn1", "w1", "bn2", "w2", "bn3", "w3"}; w1: (M, C), w2: (M, M, 3, 3),
w3: (C, M). down: D units. skip, up: D - 1 units (index 0 is level 1). bottom: a unit.
head: (bnA, WA, bnB, WB), BN relu 1x1 twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._ops import Array, Norm, batchnorm, conv2d, max_pool, pointwise, relu, sigmoid

Unit = dict[str, Any]
Head = tuple[Norm, Array, Norm, Array]


def residual_unit(x: Array, bns: Sequence[Norm], w1: Array, w2: Array, w3: Array) -> Array:
    """Pre-activation bottleneck with an identity shortcut."""
    y = pointwise(relu(batchnorm(x, bns[0])), w1)
    y = conv2d(relu(batchnorm(y, bns[1])), w2, padding=1)
    return x + pointwise(relu(batchnorm(y, bns[2])), w3)


def _unit(x: Array, unit: Unit) -> Array:
    return residual_unit(x, [unit["bn1"], unit["bn2"], unit["bn3"]], unit["w1"], unit["w2"], unit["w3"])


def max_pool_3x3_s2(x: Array) -> Array:
    """3x3 max pooling, stride 2, padding 1."""
    return max_pool(x, 3, 2, 1)


def _interpolation(n_in: int, n_out: int) -> Array:
    """(n_out, n_in) matrix of linear interpolation with the end points aligned."""
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        position = i * (n_in - 1) / (n_out - 1) if n_out > 1 else 0.0
        low = min(int(position), n_in - 1)
        high = min(low + 1, n_in - 1)
        matrix[i, low] += 1.0 - (position - low)
        matrix[i, high] += position - low
    return matrix


def resize(x: Array, h: int, w: int) -> Array:
    """Bilinear resize to (h, w) with align_corners=True."""
    rows, cols = _interpolation(x.shape[2], h), _interpolation(x.shape[3], w)
    return np.einsum("ph,qw,bchw->bcpq", rows, cols, x, optimize=True)


def soft_mask(
    x: Array, down: Sequence[Unit], skip: Sequence[Unit], up: Sequence[Unit], bottom: Unit, head: Head
) -> Array:
    """The mask M in (0, 1), of the shape of x."""
    features = []
    y = x
    for unit in down:
        y = _unit(max_pool_3x3_s2(y), unit)
        features.append(y)
    y = _unit(y, bottom)
    for i in reversed(range(len(down) - 1)):
        feature = features[i]
        y = resize(y, feature.shape[2], feature.shape[3]) + _unit(feature, skip[i])
        y = _unit(y, up[i])
    y = resize(y, x.shape[2], x.shape[3])
    bn_a, w_a, bn_b, w_b = head
    y = pointwise(relu(batchnorm(y, bn_a)), w_a)
    return sigmoid(pointwise(relu(batchnorm(y, bn_b)), w_b))


def residual_mask(
    x: Array, down: Sequence[Unit], skip: Sequence[Unit], up: Sequence[Unit], bottom: Unit, head: Head
) -> Array:
    """(1 + M(x)) x."""
    return (1.0 + soft_mask(x, down, skip, up, bottom, head)) * x
