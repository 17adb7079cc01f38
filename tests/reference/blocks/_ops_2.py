"""More slow primitives in NumPy float64: same-padded strips, resizing, transposed and deformable convolution.

Arrays are (B, C, H, W) unless said otherwise.
"""

from itertools import product
from math import erf

import numpy as np

from ._ops import Array, depthwise, per_channel


def gelu(x: Array) -> Array:
    """x times the normal distribution function at x (the exact form, not the tanh approximation)."""
    return x * 0.5 * (1.0 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2.0)))


def same_depthwise(x: Array, w: Array, b: Array | None = None, *, dilation: int = 1) -> Array:
    """Depthwise convolution that keeps the size; w is (C, kh, kw), both odd, zeros outside the map."""
    rows, columns = (dilation * (k // 2) for k in w.shape[-2:])
    padded = np.pad(x, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    return depthwise(padded, w, b, dilation=dilation)


def same_conv1d(x: Array, w: Array, b: Array | None = None) -> Array:
    """Depthwise 1d convolution of a (B, C, L) array that keeps the length; w is (C, k)."""
    return same_depthwise(x[:, :, None, :], w[:, None, :], b)[:, :, 0, :]


def groupnorm(x: Array, groups: int, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """Group norm of a (B, C, ...) array with the biased variance and one gamma, beta per channel."""
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(axis=2, keepdims=True)
    normed = (centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)
    return normed * per_channel(gamma, x.ndim) + per_channel(beta, x.ndim)


def adaptive_average(x: Array, height: int, width: int) -> Array:
    """Mean over rows floor(i H / h) .. ceil((i + 1) H / h), columns alike; h > H repeats values."""
    y = np.empty((*x.shape[:2], height, width))
    for i, j in np.ndindex(height, width):
        rows = slice(i * x.shape[2] // height, -(-(i + 1) * x.shape[2] // height))
        columns = slice(j * x.shape[3] // width, -(-(j + 1) * x.shape[3] // width))
        y[:, :, i, j] = x[:, :, rows, columns].mean(axis=(2, 3))
    return y


def _linear_matrix(new: int, old: int) -> Array:
    """(new, old) weights of linear interpolation with half-pixel centres, edges repeated."""
    m = np.zeros((new, old))
    for i in range(new):
        at = max((i + 0.5) * old / new - 0.5, 0.0)
        low = min(int(at), old - 1)
        m[i, low] += 1.0 - (at - low)
        m[i, min(low + 1, old - 1)] += at - low
    return m


def bilinear(x: Array, height: int, width: int) -> Array:
    """Bilinear resize without aligned corners and without smoothing."""
    return np.einsum("ih,jw,bchw->bcij", _linear_matrix(height, x.shape[2]), _linear_matrix(width, x.shape[3]), x)


def transposed_conv(x: Array, w: Array, b: Array | None = None) -> Array:
    """Stride-1 transposed convolution without padding; w is (in, out, kh, kw), the map grows by k - 1."""
    batch, _, height, width = x.shape
    _, c_out, kh, kw = w.shape
    y = np.zeros((batch, c_out, height + kh - 1, width + kw - 1))
    for i, j in np.ndindex(kh, kw):
        y[:, :, i : i + height, j : j + width] += np.einsum("io,bihw->bohw", w[:, :, i, j], x)
    return y if b is None else y + per_channel(b, 4)


def sample(image: Array, y: Array, x: Array) -> Array:
    """Bilinear values of a (C, H, W) image at real places y, x (h, w); the image is zero outside."""
    _, height, width = image.shape
    low_y, low_x = np.floor(y).astype(int), np.floor(x).astype(int)
    out = np.zeros((image.shape[0], *y.shape))
    for dy, dx in product((0, 1), repeat=2):
        row, column = low_y + dy, low_x + dx
        weight = (1.0 - np.abs(y - row)) * (1.0 - np.abs(x - column))
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        out += image[:, np.where(inside, row, 0), np.where(inside, column, 0)] * (weight * inside)
    return out


def deformable_depthwise(x: Array, offsets: Array, w: Array, *, dilation: int = 1) -> Array:
    """Depthwise convolution, size kept, whose tap t reads at its place plus (offset 2t, offset 2t + 1).

    w: (C, k, k), k odd. offsets: (B, 2 k k, H, W), for each tap in row-major order its (dy, dx).
    """
    batch, _, height, width = x.shape
    k = w.shape[-1]
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    y = np.zeros_like(x)
    for n, i, j in np.ndindex(batch, k, k):
        dy, dx = offsets[n, 2 * (i * k + j) : 2 * (i * k + j) + 2]
        at_y = rows + (i - k // 2) * dilation + dy
        at_x = columns + (j - k // 2) * dilation + dx
        y[n] += w[:, i, j, None, None] * sample(x[n], at_y, at_x)
    return y
