"""Channel prior convolutional attention (Huang et al., Computers in Biology and Medicine 2024, arXiv 2306.05196).

u = gelu(W x + b), g = sig(mlp(avg u)) + sig(mlp(max u)), f = u g, with mlp(t) = W2 relu(W1 t + b1) + b2
e = dw5x5(f), s = e + sum over k = 7, 11, 21 of dw_{k x 1}(dw_{1 x k}(e))
y = W ((W s + b) f) + b: the same 1x1 convolution (W, b) three times

x: (B, C, H, W). w: (C, C), b: (C,). w1: (M, C), b1: (M,), w2: (C, M), b2: (C,). dw5: ((C, 5, 5), (C,)).
strips: for each k the pair (row (C, k), bias), (column (C, k), bias).
"""

from collections.abc import Sequence

from ._ops import Array, gate_channels, global_average, pointwise, relu, sigmoid
from ._ops_2 import gelu, same_depthwise

Layer = tuple[Array, Array]


def cpca(
    x: Array,
    w: Array,
    b: Array,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array,
    dw5: Layer,
    strips: Sequence[tuple[Layer, Layer]],
) -> Array:
    """Channel gate, then a convolutional gate of the gated features."""

    def gate(t: Array) -> Array:
        return sigmoid(pointwise(relu(pointwise(t, w1, b1)), w2, b2))

    u = gelu(pointwise(x, w, b))
    f = gate_channels(u, gate(global_average(u)) + gate(u.max(axis=(2, 3))))
    e = same_depthwise(f, *dw5)
    s = e.copy()
    for (row, row_bias), (column, column_bias) in strips:
        s += same_depthwise(same_depthwise(e, row[:, None, :], row_bias), column[:, :, None], column_bias)
    return pointwise(pointwise(s, w, b) * f, w, b)
