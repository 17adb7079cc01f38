"""Squeeze-and-Excitation (Hu et al., CVPR 2018, arXiv 1709.01507).

y = x * sigmoid(W2 relu(W1 GAP(x) + b1) + b2)

x: (B, C, H, W). w1: (C/r, C), b1: (C/r,) or None. w2: (C, C/r), b2: (C,) or None.
"""

from ._ops import Array, gate_channels, global_average, pointwise, relu, sigmoid


def squeeze_excite(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Array:
    """Gate every channel by a two-layer network of the pooled vector."""
    hidden = relu(pointwise(global_average(x), w1, b1))
    return gate_channels(x, sigmoid(pointwise(hidden, w2, b2)))
