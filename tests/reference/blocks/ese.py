"""Effective Squeeze-and-Excitation (Lee and Park, CenterMask, CVPR 2020, arXiv 1911.06667).

y = x * hsigmoid(W GAP(x) + b), hsigmoid(v) = relu6(v + 3) / 6

x: (B, C, H, W). w: (C, C), no reduction. b: (C,) or None.
"""

from ._ops import Array, gate_channels, global_average, hard_sigmoid, pointwise


def effective_squeeze_excite(x: Array, w: Array, b: Array | None) -> Array:
    """Gate every channel by one square layer of the pooled vector."""
    return gate_channels(x, hard_sigmoid(pointwise(global_average(x), w, b)))
