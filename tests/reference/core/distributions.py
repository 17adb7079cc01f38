"""Maps from a vector of energies to weights; -inf means hidden, and only -inf gives only zeros."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(z: Array) -> Array:
    """p_i = exp(z_i) / sum_j exp(z_j), shifted by max z (Bridle 1990)."""
    top = max(float(x) for x in z)
    if top == -math.inf:
        return np.zeros(len(z))
    powers = [math.exp(float(x) - top) for x in z]
    total = math.fsum(powers)
    return np.array([x / total for x in powers])


def sigmoid(z: Array) -> Array:
    """p_i = 1 / (1 + exp(-z_i)), element-wise, not normalised."""
    out = np.zeros(len(z))
    for i in range(len(z)):
        small = math.exp(-abs(float(z[i])))
        out[i] = 1 / (1 + small) if z[i] >= 0 else small / (1 + small)
    return out


def _threshold(z: Array, scale: float, shape: Callable[[float], float]) -> Array:
    """p_i = shape(max(scale (z_i - max z) - tau, 0)); tau in [-1, 0] bisected so that sum_i p_i = 1."""
    top = max(float(x) for x in z)
    if top == -math.inf:
        return np.zeros(len(z))
    shifted = [scale * (float(x) - top) for x in z]
    low, high = -1.0, 0.0  # the sum is >= 1 at low (the largest entry alone gives 1) and 0 at high
    for _ in range(100):  # each step halves the bracket: float64 resolution well before the last
        tau = (low + high) / 2
        if math.fsum(shape(max(x - tau, 0.0)) for x in shifted) >= 1:
            low = tau
        else:
            high = tau
    return np.array([shape(max(x - low, 0.0)) for x in shifted])


def sparsemax(z: Array) -> Array:
    """p_i = max(z_i - tau, 0), sum_i p_i = 1 (Martins & Astudillo 2016, prop. 1), by bisection on tau."""
    return _threshold(z, 1.0, lambda x: x)


def entmax15(z: Array) -> Array:
    """p_i = max(z_i / 2 - tau, 0)^2, sum_i p_i = 1 (Peters et al. 2019, alpha = 1.5), by bisection on tau."""
    return _threshold(z, 0.5, lambda x: x * x)
