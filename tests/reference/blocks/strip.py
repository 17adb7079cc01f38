"""Strip block (Yuan et al., Strip R-CNN, 2025, arXiv 2501.03775).

y = x * (W dw_{k x 1}(dw_{1 x k}(dw5x5(x))) + b), bias in every layer, no sigmoid; k = 19

x: (B, C, H, W). dw5: ((C, 5, 5), (C,)). row, column: ((C, k), (C,)). last: ((C, C), (C,)).
"""

from ._ops import Array, pointwise
from ._ops_2 import same_depthwise

Layer = tuple[Array, Array]


def strip(x: Array, dw5: Layer, row: Layer, column: Layer, last: Layer) -> Array:
    """Gate the input by a long row and a long column; each layer is (weight, bias)."""
    a = same_depthwise(x, *dw5)
    a = same_depthwise(a, row[0][:, None, :], row[1])
    a = same_depthwise(a, column[0][:, :, None], column[1])
    return x * pointwise(a, *last)
