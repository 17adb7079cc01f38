"""Efficient Local Attention (Xu and Wan, 2024, arXiv 2403.01123).

z^h = mean over the columns (B, C, H), z^w = mean over the rows (B, C, W)
y = x * sigmoid(GN(conv1d_h z^h)) * sigmoid(GN(conv1d_w z^w)), zero padded, no bias

x: (B, C, H, W). w_h, w_w: (C, C/g, k), k odd, g the groups of the convolution. norm_h, norm_w: (gamma, beta) of C
channels; norm_groups: the groups of the norm, eps 1e-5. One weight for both axes: give it twice.
"""

from ._ops import Array, sigmoid
from ._ops_1 import conv1d, groupnorm

Affine = tuple[Array, Array]


def efficient_local(x: Array, w_h: Array, norm_h: Affine, w_w: Array, norm_w: Affine, norm_groups: int) -> Array:
    """The product of a gate for each row and a gate for each column of every channel."""
    rows = conv1d(x.mean(axis=3), w_h, groups=x.shape[1] // w_h.shape[1])
    columns = conv1d(x.mean(axis=2), w_w, groups=x.shape[1] // w_w.shape[1])
    gate_h = sigmoid(groupnorm(rows, norm_groups, *norm_h))
    gate_w = sigmoid(groupnorm(columns, norm_groups, *norm_w))
    return x * gate_h[:, :, :, None] * gate_w[:, :, None, :]
