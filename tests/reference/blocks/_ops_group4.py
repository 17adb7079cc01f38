"""More slow primitives in NumPy float64: heads, windows, bilinear reading, activations of transformers.

Tokens are (B, C, N), channels first, positions in row-major order; head n has channels n d .. (n + 1) d - 1.
"""

import math

import numpy as np

from ._ops import Array, layernorm, softmax

_erf = np.vectorize(math.erf)


def gelu(x: Array) -> Array:
    """x times the normal distribution function of x (exact, not the tanh approximation)."""
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of gelu."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return 0.5 * x * (1.0 + np.tanh(0.5 * x))


def channel_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """Layer norm over the channels, axis 1, of each position."""
    return np.moveaxis(layernorm(np.moveaxis(x, 1, -1), gamma, beta, eps), -1, 1)


def split_heads(x: Array, heads: int) -> Array:
    """(B, C, N) -> (B, heads, C/heads, N)."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads, x.shape[2])


def dot_weights(q: Array, k: Array, scale: float, bias: Array | float = 0.0) -> Array:
    """softmax_j(scale q_i . k_j + bias_ij) from (B, heads, d, N) queries and (B, heads, d, M) keys."""
    return softmax(scale * np.einsum("bndi,bndj->bnij", q, k) + bias, axis=-1)


def mix(a: Array, v: Array) -> Array:
    """sum_j a_ij v_j, heads joined: (B, heads, N, M), (B, heads, d, M) -> (B, C, N)."""
    y = np.einsum("bnij,bndj->bndi", a, v)
    return y.reshape(y.shape[0], -1, y.shape[3])


def pad_to_multiple(x: Array, multiple_h: int, multiple_w: int) -> Array:
    """Zeros added below and to the right until both sides are multiples."""
    bottom, right = -x.shape[2] % multiple_h, -x.shape[3] % multiple_w
    return np.pad(x, ((0, 0), (0, 0), (0, bottom), (0, right)))


def bilinear(image: Array, y: float, x: float) -> Array:
    """Read a (C, H, W) image at pixel coordinates (y, x), zeros outside: (C,)."""
    value = np.zeros(image.shape[0])
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                value += (1.0 - abs(y - row)) * (1.0 - abs(x - column)) * image[:, row, column]
    return value


def resize_matrix(source: int, target: int) -> Array:
    """(target, source) matrix of linear resizing, half-pixel centres, edges repeated."""
    m = np.zeros((target, source))
    for i in range(target):
        centre = max((i + 0.5) * source / target - 0.5, 0.0)
        low = min(math.floor(centre), source - 1)
        high = min(low + 1, source - 1)
        m[i, low] += 1.0 - (centre - low)
        m[i, high] += centre - low
    return m


def resize(x: Array, height: int, width: int) -> Array:
    """Bilinear resizing of the last two axes (align_corners=False)."""
    rows, columns = resize_matrix(x.shape[-2], height), resize_matrix(x.shape[-1], width)
    return np.einsum("ih,...hw,jw->...ij", rows, x, columns)
