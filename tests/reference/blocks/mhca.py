"""Multi-head convolutional attention (Georgescu et al., WACV 2023, arXiv 2204.04218).

y = x * sig(sum over heads k = 1, 3, 5 of deconv_k(relu(conv_k(x)))), conv_k: C -> C/r without padding, so the
map shrinks by k - 1; deconv_k: its transposed shape, C/r -> C, so the map grows back. Biases everywhere.

x: (B, C, H, W). heads: for each k (w (M, C, k, k), b (M,), w' (M, C, k, k), b' (C,)), w' as a transposed
convolution stores it, (in, out, k, k).
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, conv2d, relu, sigmoid
from ._ops_2 import transposed_conv


def mhca_gate(x: Array, heads: Sequence[tuple[Array, Array, Array, Array]]) -> Array:
    """Gate (B, C, H, W)."""
    z = np.zeros_like(x)
    for w, b, up, up_bias in heads:
        z += transposed_conv(relu(conv2d(x, w, b)), up, up_bias)
    return sigmoid(z)


def mhca(x: Array, heads: Sequence[tuple[Array, Array, Array, Array]]) -> Array:
    """Gate every value."""
    return x * mhca_gate(x, heads)
