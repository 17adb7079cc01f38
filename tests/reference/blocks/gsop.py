"""Global Second-order Pooling block, channel form (Gao et al., CVPR 2019, arXiv 1811.12006).

u = relu(BN(W1 relu(x) + b1))                d channels
S = (1 / N) sum_n (u_n - mean)(u_n - mean)^T (d, d)
r_{4i+k} = sum_j w_{4i+k, j} BN(S)_{ij} + b  the BN has one mean and scale for each row i
y = x * sigmoid(W2 r + b2)

x: (B, C, H, W). reduce: (d, C), reduce_bias: (d,). bn, row_bn: norms of d channels. row: (4 d, d) (each row of S has
four weight vectors), row_bias: (4 d,). expand: (C, 4 d), expand_bias: (C,).
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, flatten, gate_channels, pointwise, relu, sigmoid


def second_order(
    x: Array,
    reduce: Array,
    reduce_bias: Array,
    bn: Norm,
    row_bn: Norm,
    row: Array,
    row_bias: Array,
    expand: Array,
    expand_bias: Array,
) -> Array:
    """Gate the channels by a function of the covariance of a projection of them."""
    dim = reduce.shape[0]
    u = flatten(relu(batchnorm(pointwise(relu(x), reduce.reshape(dim, -1), reduce_bias), bn)))
    centred = u - u.mean(axis=2, keepdims=True)
    covariance = np.einsum("bin,bjn->bij", centred, centred) / u.shape[2]
    rows = np.einsum("ikj,bij->bik", row.reshape(dim, 4, dim), batchnorm(covariance, row_bn))
    hidden = rows.reshape(x.shape[0], 4 * dim) + row_bias
    return gate_channels(x, sigmoid(pointwise(hidden, expand.reshape(-1, 4 * dim), expand_bias)))
