"""ACmix (Pan et al., CVPR 2022, arXiv 2111.14556), the form used in ResNets.

y = rate1 attention + rate2 convolution, both from the same q, k, v = three 1x1 convolutions of x
attention, head by head over the ka x ka window of i, the map continued by reflection:
  a_ij = softmax_j((q_i / sqrt(d)) . (k_j + e_i - e_j)), e = conv1x1 of the coordinates (x, y), each from -1 to 1
convolution: fc mixes the 3 heads maps [q; k; v] of each channel of a head into 9, then a grouped 3x3 convolution

x: (B, C_in, H, W). q, k, v: pairs (weight (C, C_in), bias (C,)). position: pair (weight (d, 2), bias (d,)),
d = C/heads, for all heads. fc: (9, 3 heads), no bias. shift: (C, 9, 3, 3), d groups, no bias. rates: two scalars.
stride s: queries at rows and columns 0, s, 2s, ...; the 3x3 convolution has stride s.
"""

import math

import numpy as np

from ._ops import Array, conv2d, pointwise, softmax
from ._ops_heads import Linear, heads_of, neighbours


def _coordinates(height: int, width: int) -> Array:
    """(1, 2, H, W): x along the width, then y along the height; -1 where the axis has one pixel."""
    rows, columns = np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width)
    return np.stack(np.meshgrid(columns, rows))[None]


def _windows(t: Array, size: int, stride: int) -> Array:
    """(B, heads, d, H, W) -> (B, heads, d, size^2, positions)."""
    y = neighbours(t.reshape(t.shape[0], -1, *t.shape[3:]), size, mode="reflect")[..., ::stride, ::stride]
    return y.reshape(*t.shape[:3], size * size, -1)


def acmix_weights(
    x: Array, q: Linear, k: Linear, position: Linear, heads: int, *, kernel: int = 7, stride: int = 1
) -> Array:
    """Weights (B, heads, N, kernel^2) over the window, row by row."""
    height, width = x.shape[2:]
    queries, keys = (heads_of(x, w, heads).reshape(len(x), heads, -1, height, width) for w in (q, k))
    e = pointwise(_coordinates(height, width), *position)
    own = e[:, :, None, ::stride, ::stride].reshape(1, 1, e.shape[1], 1, -1)
    queries = queries[..., ::stride, ::stride].reshape(*queries.shape[:3], -1) / math.sqrt(queries.shape[2])
    others = _windows(keys, kernel, stride) + own - _windows(e[:, None], kernel, stride)
    return softmax(np.einsum("bndi,bndji->bnij", queries, others), axis=3)


def acmix(
    x: Array,
    q: Linear,
    k: Linear,
    v: Linear,
    position: Linear,
    fc: Array,
    shift: Array,
    rates: tuple[float, float],
    heads: int,
    *,
    kernel: int = 7,
    stride: int = 1,
) -> Array:
    """Self-attention and convolution sharing their projections."""
    height, width = x.shape[2:]
    a = acmix_weights(x, q, k, position, heads, kernel=kernel, stride=stride)
    maps = [heads_of(x, w, heads).reshape(len(x), heads, -1, height, width) for w in (q, k, v)]
    attended = np.einsum("bnij,bndji->bndi", a, _windows(maps[2], kernel, stride))
    mixed = np.einsum("om,bmdhw->bdohw", fc, np.concatenate(maps, axis=1))
    mixed = mixed.reshape(len(x), -1, height, width)
    convolved = conv2d(mixed, shift, padding=1, stride=stride, groups=mixed.shape[1] // 9)
    return rates[0] * attended.reshape(convolved.shape) + rates[1] * convolved
