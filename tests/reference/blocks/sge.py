"""Spatial Group-wise Enhance (Li et al., 2019, arXiv 1905.09646).

In each of G groups of C / G neighbouring channels, with x_i the vector at position i and g = mean_i x_i:
c_i = g . x_i, c^_i = (c_i - mean(c)) / (std(c) + eps), y_i = x_i sigmoid(w_G c^_i + b_G)

x: (B, C, H, W). w, b: (G,). eps = 1e-5; the deviation is the unbiased one (N - 1), as in the authors' code.
"""

import numpy as np

from ._ops import Array, sigmoid


def spatial_group_enhance(x: Array, w: Array, b: Array) -> Array:
    """Gate the positions of each group by their agreement with the mean of the group."""
    groups = np.size(w)
    parts = x.reshape(x.shape[0], groups, -1, x.shape[2] * x.shape[3])  # (B, G, C/G, N)
    agreement = np.einsum("bgcn,bgc->bgn", parts, parts.mean(axis=3))
    centred = agreement - agreement.mean(axis=2, keepdims=True)
    normed = centred / (centred.std(axis=2, ddof=1, keepdims=True) + 1e-5)
    gate = sigmoid(normed * w.reshape(1, groups, 1) + b.reshape(1, groups, 1))
    return (parts * gate[:, :, None]).reshape(x.shape)
