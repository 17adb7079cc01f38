"""Frequency Channel Attention, FcaNet-TS top16 (Qin et al., ICCV 2021, arXiv 2012.11929).

f_c = sum_{h,w} x[c,h,w] D(u,h) D(v,w), with D(k,t) = s_k cos(pi k (t + 1/2) / N) / sqrt(N), s_0 = 1 and
s_k = sqrt 2 otherwise; channel c uses pair floor(16 c / C) of the 16 published (u, v), scaled by size//7.
y = x * sigmoid(W2 relu(W1 f)), no biases.

x: (B, C, H, W), pooled adaptively to (size, size) first if it has another size.
w1: (C/r, C). w2: (C, C/r). size: side of the frequency grid (7, 14, 28 or 56). u: height, v: width.
"""

import math

import numpy as np

from ._ops import Array, adaptive_average_pool, gate_channels, pointwise, relu, sigmoid

TOP_U = (0, 0, 6, 0, 0, 1, 1, 4, 5, 1, 3, 0, 0, 0, 3, 2)
TOP_V = (0, 1, 0, 5, 2, 0, 2, 0, 0, 6, 0, 4, 6, 3, 5, 2)


def dct_basis(k: int, n: int) -> Array:
    """Orthonormal DCT-II vector of frequency k on n samples."""
    scale = 1.0 if k == 0 else math.sqrt(2.0)
    return np.array([scale * math.cos(math.pi * k * (t + 0.5) / n) / math.sqrt(n) for t in range(n)])


def fca(x: Array, w1: Array, w2: Array, size: int) -> Array:
    """SE with one DCT coefficient per channel in place of the average."""
    batch, channels, height, width = x.shape
    pooled = x if (height, width) == (size, size) else adaptive_average_pool(x, size)
    f = np.zeros((batch, channels))
    for c in range(channels):
        pair = c * 16 // channels
        u, v = TOP_U[pair] * (size // 7), TOP_V[pair] * (size // 7)
        f[:, c] = np.einsum("bhw,h,w->b", pooled[:, c], dct_basis(u, size), dct_basis(v, size))
    return gate_channels(x, sigmoid(pointwise(relu(pointwise(f, w1)), w2)))
