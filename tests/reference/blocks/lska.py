"""Large separable kernel attention (Lau et al., Expert Systems with Applications 236, 2024, arXiv 2309.01439).

y = x * W1 (v_d * (h_d * (v * (h * x)))) + bias in every layer, no sigmoid. h, v: depthwise 1 x s and s x 1,
h_d, v_d: depthwise 1 x l and l x 1 with dilation d; s = 2 d - 1, l = floor(k / d).

x: (B, C, H, W). h, v: (C, s); h_d, v_d: (C, l); w1: (C, C); each bias (C,).
"""

from ._ops import Array, pointwise
from ._ops_2 import same_depthwise

Layer = tuple[Array, Array]


def lska(x: Array, h: Layer, v: Layer, h_d: Layer, v_d: Layer, last: Layer, *, dilation: int = 3) -> Array:
    """Gate the input by a separable large-kernel convolution; each layer is (weight, bias)."""
    a = same_depthwise(x, h[0][:, None, :], h[1])
    a = same_depthwise(a, v[0][:, :, None], v[1])
    a = same_depthwise(a, h_d[0][:, None, :], h_d[1], dilation=dilation)
    a = same_depthwise(a, v_d[0][:, :, None], v_d[1], dilation=dilation)
    return x * pointwise(a, *last)
