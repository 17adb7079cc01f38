"""Multi-scale convolutional attention (Guo et al., SegNeXt, NeurIPS 2022, arXiv 2209.08575).

e = dw5x5(x), y = x * (W (e + sum over k = 7, 11, 21 of dw_{k x 1}(dw_{1 x k}(e))) + b), no sigmoid

x: (B, C, H, W). dw5: ((C, 5, 5), (C,)). strips: for each k the pair (row (C, k), bias), (column (C, k), bias).
last: ((C, C), (C,)).
"""

from collections.abc import Sequence

from ._ops import Array, pointwise
from ._ops_2 import same_depthwise

Layer = tuple[Array, Array]


def msca(x: Array, dw5: Layer, strips: Sequence[tuple[Layer, Layer]], last: Layer) -> Array:
    """Gate the input by a sum of strips of several lengths; each layer is (weight, bias)."""
    e = same_depthwise(x, *dw5)
    a = e.copy()
    for (row, row_bias), (column, column_bias) in strips:
        a += same_depthwise(same_depthwise(e, row[:, None, :], row_bias), column[:, :, None], column_bias)
    return x * pointwise(a, *last)
