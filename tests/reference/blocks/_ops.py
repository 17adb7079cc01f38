"""Slow shared primitives in NumPy float64: convolution, pooling, normalisation, activations.

Arrays are (B, C, H, W) or (B, C). A batch norm is the tuple ``bn = (gamma, beta, mean, var)``, used in
evaluation mode. 1x1 convolutions take a (out, in) matrix and an optional bias (out,).
"""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Norm = tuple[Array, Array, Array, Array]


def per_channel(v: Array, ndim: int) -> Array:
    """View a (C,) vector as (1, C, 1, ..., 1) with ``ndim`` axes."""
    return np.reshape(v, (1, -1) + (1,) * (ndim - 2))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written with tanh so that it never overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def hard_sigmoid(x: Array) -> Array:
    """relu6(x + 3) / 6."""
    return np.clip(x + 3.0, 0.0, 6.0) / 6.0


def hard_swish(x: Array) -> Array:
    """x * relu6(x + 3) / 6."""
    return x * hard_sigmoid(x)


def softmax(x: Array, axis: int) -> Array:
    """exp(x) / sum exp(x) along one axis."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def batchnorm(x: Array, bn: Norm, eps: float = 1e-5) -> Array:
    """Evaluation-mode batch norm of a (B, C, ...) array."""
    gamma, beta, mean, var = (per_channel(p, x.ndim) for p in bn)
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


def layernorm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    """Layer norm over the last axis, with the biased variance."""
    centred = x - x.mean(axis=-1, keepdims=True)
    var = (centred**2).mean(axis=-1, keepdims=True)
    return gamma * centred / np.sqrt(var + eps) + beta


def pointwise(x: Array, w: Array, b: Array | None = None) -> Array:
    """1x1 convolution (or linear layer) of a (B, C, ...) array by a (out, C) matrix."""
    y = np.einsum("oc,bc...->bo...", w, x)
    return y if b is None else y + per_channel(b, y.ndim)


def conv2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation with zero padding; w is (out, in/groups, kh, kw). A sum over the kernel taps."""
    batch, c_in, height, width = x.shape
    c_out, c_group, kh, kw = w.shape
    assert c_group * groups == c_in and c_out % groups == 0
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    h_out = (height + 2 * padding - dilation * (kh - 1) - 1) // stride + 1
    w_out = (width + 2 * padding - dilation * (kw - 1) - 1) // stride + 1
    taps = w.reshape(groups, c_out // groups, c_group, kh, kw)
    y = np.zeros((batch, groups, c_out // groups, h_out, w_out))
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation, j * dilation
            part = padded[:, :, top : top + stride * h_out : stride, left : left + stride * w_out : stride]
            part = part[:, :, :h_out, :w_out].reshape(batch, groups, c_group, h_out, w_out)
            y += np.einsum("goi,bgihw->bgohw", taps[..., i, j], part)
    y = y.reshape(batch, c_out, h_out, w_out)
    return y if b is None else y + per_channel(b, 4)


def depthwise(
    x: Array, w: Array, b: Array | None = None, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Array:
    """Depthwise convolution; w is (C, kh, kw) or (C, 1, kh, kw)."""
    channels = x.shape[1]
    kernel = w.reshape(channels, 1, *w.shape[-2:])
    return conv2d(x, kernel, b, stride=stride, padding=padding, dilation=dilation, groups=channels)


def global_average(x: Array) -> Array:
    """Mean over the map: (B, C, H, W) -> (B, C)."""
    return x.mean(axis=(2, 3))


def gate_channels(x: Array, g: Array) -> Array:
    """Multiply channel c of every map by g[b, c]."""
    return x * g[:, :, None, None]


def _pool(x: Array, rows: list[slice], columns: list[slice], reduce: Callable[..., Array]) -> Array:
    """One number for every window, the part of the map in these rows and columns."""
    y = np.empty((*x.shape[:2], len(rows), len(columns)))
    for i, j in np.ndindex(len(rows), len(columns)):
        y[:, :, i, j] = reduce(x[:, :, rows[i], columns[j]], axis=(2, 3))
    return y


def _windows(length: int, kernel: int, stride: int, padding: int, up: int = 0) -> list[slice]:
    """The part inside the map of each of the floor((H + 2p - k) / s) + 1 windows along an axis."""
    starts = [i * stride - padding for i in range((length + 2 * padding - kernel + up) // stride + 1)]
    return [slice(max(start, 0), min(start + kernel, length)) for start in starts]


def average_pool(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """Average pooling; the padded zeros are not counted."""
    rows, columns = (_windows(length, kernel, stride, padding) for length in x.shape[2:])
    return _pool(x, rows, columns, np.mean)


def adaptive_average_pool(x: Array, size: int) -> Array:
    """Average pooling to (size, size): window i covers floor(i H / size) .. ceil((i + 1) H / size)."""
    rows, columns = (
        [slice(i * length // size, -(-(i + 1) * length // size)) for i in range(size)] for length in x.shape[2:]
    )
    return _pool(x, rows, columns, np.mean)


def max_pool(x: Array, kernel: int, stride: int, padding: int = 0, *, ceil_mode: bool = False) -> Array:
    """Max pooling over the part of each window inside the map; ceil_mode keeps partial last windows."""
    up = stride - 1 if ceil_mode else 0
    rows, columns = (_windows(length, kernel, stride, padding, up) for length in x.shape[2:])
    return _pool(x, rows, columns, np.max)


def nearest(x: Array, height: int, width: int) -> Array:
    """Nearest-neighbour resize: output row i reads row floor(i h / H)."""
    rows = np.arange(height) * x.shape[2] // height
    cols = np.arange(width) * x.shape[3] // width
    return x[:, :, rows][:, :, :, cols]


def z_pool(x: Array) -> Array:
    """[max; mean] over axis 1: (B, D, P, Q) -> (B, 2, P, Q)."""
    return np.stack([x.max(axis=1), x.mean(axis=1)], axis=1)


def flatten(x: Array) -> Array:
    """(B, C, H, W) -> (B, C, N), positions in row-major order."""
    return x.reshape(x.shape[0], x.shape[1], -1)
