"""Deformable large kernel attention, 2d (Azad et al., WACV 2024, arXiv 2309.00121).

y = x * (W1 D_7(D_5(x)) + b1), where D_k(x) = depthwise k x k convolution of x (no bias) whose taps are moved by
the offsets of an ordinary k x k convolution of the same x, size and dilation; dilation 1 for 5 and 3 for 7.

x: (B, C, H, W). w5: (C, 5, 5), offset5: ((50, C, 5, 5), (50,)). w7: (C, 7, 7), offset7: ((98, C, 7, 7), (98,)).
w1: (C, C), b1: (C,). Offset channels: (dy, dx) of each tap in row-major order.
"""

from ._ops import Array, conv2d, pointwise
from ._ops_2 import deformable_depthwise

Layer = tuple[Array, Array]


def _deformed(x: Array, w: Array, offset: Layer, dilation: int) -> Array:
    moved = conv2d(x, *offset, padding=dilation * (w.shape[-1] // 2), dilation=dilation)
    return deformable_depthwise(x, moved, w, dilation=dilation)


def deformable_lka(x: Array, w5: Array, offset5: Layer, w7: Array, offset7: Layer, w1: Array, b1: Array) -> Array:
    """Gate the input by a deformable large-kernel convolution."""
    local = _deformed(x, w5, offset5, 1)
    return x * pointwise(_deformed(local, w7, offset7, 3), w1, b1)
