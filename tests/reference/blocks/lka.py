"""Large Kernel Attention (Guo et al., Visual Attention Network, CVMJ 2023, arXiv 2202.09741).

y = x * conv1x1(dw7x7, dilation 3, padding 9 (dw5x5, padding 2 (x))), with biases and no sigmoid

x: (B, C, H, W). w5: (C, 5, 5), b5: (C,). w7: (C, 7, 7), b7: (C,). w1: (C, C), b1: (C,).
"""

from ._ops import Array, depthwise, pointwise


def large_kernel(
    x: Array, w5: Array, b5: Array | None, w7: Array, b7: Array | None, w1: Array, b1: Array | None
) -> Array:
    """Gate the input by a decomposed large-kernel convolution."""
    local = depthwise(x, w5, b5, padding=2)
    distant = depthwise(local, w7, b7, padding=9, dilation=3)
    return x * pointwise(distant, w1, b1)
