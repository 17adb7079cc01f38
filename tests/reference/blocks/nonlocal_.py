"""Non-local block (Wang et al., CVPR 2018, arXiv 1711.07971): z_i = BN(W y_i) + x_i, y_i = sum_j a_ij g_j.

embedded Gaussian: a = softmax_j(theta_i . phi_j / sqrt(d))     Gaussian: a = softmax_j(x_i . x_j)
dot: a = theta_i . phi_j / N                                    concat: a = relu(wf . [theta_i; phi_j]) / N

x: (B, C, H, W), positions in row-major order. theta, phi, g: pairs (weight (d, C), bias (d,) or None);
w: pair (weight (C, d), bias (C,) or None). bn: (gamma, beta, mean, var). wf: (2d,).
subsample = s > 1: x is max-pooled (kernel s, stride s, partial windows kept) before phi and g; N is then
the number of keys. The ``*_weights`` functions return a, (B, positions, keys), from the same arguments.
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, flatten, max_pool, pointwise, relu, softmax

Linear = tuple[Array, Array | None]


def _keys(x: Array, subsample: int) -> Array:
    """(B, C, N) positions that are attended to."""
    return flatten(max_pool(x, subsample, subsample, ceil_mode=True) if subsample > 1 else x)


def _output(x: Array, a: Array, g: Linear, w: Linear, bn: Norm, subsample: int) -> Array:
    values = pointwise(_keys(x, subsample), *g)
    y = np.einsum("bij,bdj->bdi", a, values)
    return batchnorm(pointwise(y, *w), bn).reshape(x.shape) + x


def embedded_gaussian_weights(
    x: Array,
    theta: Linear,
    phi: Linear,
    g: Linear | None = None,
    w: Linear | None = None,
    bn: Norm | None = None,
    *,
    subsample: int = 1,
) -> Array:
    """softmax_j(theta_i . phi_j / sqrt(d))."""
    q, k = pointwise(flatten(x), *theta), pointwise(_keys(x, subsample), *phi)
    return softmax(np.einsum("bdi,bdj->bij", q, k) / np.sqrt(q.shape[1]), axis=2)


def embedded_gaussian(
    x: Array, theta: Linear, phi: Linear, g: Linear, w: Linear, bn: Norm, *, subsample: int = 1
) -> Array:
    """Non-local block, embedded Gaussian."""
    a = embedded_gaussian_weights(x, theta, phi, subsample=subsample)
    return _output(x, a, g, w, bn, subsample)


def gaussian_weights(
    x: Array, g: Linear | None = None, w: Linear | None = None, bn: Norm | None = None, *, subsample: int = 1
) -> Array:
    """softmax_j(x_i . x_j)."""
    return softmax(np.einsum("bci,bcj->bij", flatten(x), _keys(x, subsample)), axis=2)


def gaussian(x: Array, g: Linear, w: Linear, bn: Norm, *, subsample: int = 1) -> Array:
    """Non-local block, Gaussian."""
    return _output(x, gaussian_weights(x, subsample=subsample), g, w, bn, subsample)


def dot_weights(
    x: Array,
    theta: Linear,
    phi: Linear,
    g: Linear | None = None,
    w: Linear | None = None,
    bn: Norm | None = None,
    *,
    subsample: int = 1,
) -> Array:
    """theta_i . phi_j / N."""
    q, k = pointwise(flatten(x), *theta), pointwise(_keys(x, subsample), *phi)
    return np.einsum("bdi,bdj->bij", q, k) / k.shape[2]


def dot(x: Array, theta: Linear, phi: Linear, g: Linear, w: Linear, bn: Norm, *, subsample: int = 1) -> Array:
    """Non-local block, dot product."""
    return _output(x, dot_weights(x, theta, phi, subsample=subsample), g, w, bn, subsample)


def concat_weights(
    x: Array,
    theta: Linear,
    phi: Linear,
    g: Linear | None,
    w: Linear | None,
    bn: Norm | None,
    wf: Array,
    *,
    subsample: int = 1,
) -> Array:
    """relu(wf . [theta_i; phi_j]) / N."""
    q, k = pointwise(flatten(x), *theta), pointwise(_keys(x, subsample), *phi)
    batch, n_q, n_k = q.shape[0], q.shape[2], k.shape[2]
    a = np.empty((batch, n_q, n_k))
    for i in range(n_q):
        pair = np.concatenate([np.repeat(q[:, :, i : i + 1], n_k, axis=2), k], axis=1)
        a[:, i] = relu(np.einsum("c,bcj->bj", np.ravel(wf), pair)) / n_k
    return a


def concat(
    x: Array, theta: Linear, phi: Linear, g: Linear, w: Linear, bn: Norm, wf: Array, *, subsample: int = 1
) -> Array:
    """Non-local block, concatenation."""
    return _output(x, concat_weights(x, theta, phi, g, w, bn, wf, subsample=subsample), g, w, bn, subsample)
