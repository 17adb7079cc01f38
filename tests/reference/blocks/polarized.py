"""Polarized Self-Attention (Liu et al., 2021, arXiv 2107.00782), as released, in parallel and in sequence.

channel gate:  A(x) = sigmoid(F(sum_n softmax_n(q x)_n (V x)_n)), a query of one channel, a value of C / 2
spatial gate:  parallel   S(x)_n = sigmoid(softmax_n(GAP(Q x) . (K x)_n))
               sequential S(x)_n = sigmoid(GAP(Q x) . softmax_n(K x)_n), each channel of K x with its own softmax
F:             parallel a matrix (C, C/2); sequential W2 relu(LN(W1 . + b1)) + b2 with C / 8 in between
parallel   y = x A(x) + x S(x)
sequential y = x' S(x'), x' = x A(x)

x: (B, C, H, W). q: (1, C). v, query, key: (C/2, C). up: (C, C/2). w1: (C/8, C/2), b1, gamma, beta: (C/8,),
w2: (C, C/8), b2: (C,).
"""

import numpy as np

from ._ops import Array, flatten, gate_channels, layernorm, pointwise, relu, sigmoid, softmax


def _context(x: Array, q: Array, v: Array) -> Array:
    """The mean of V x over the map, weighted by the softmax of q x: (B, C/2)."""
    weights = softmax(flatten(pointwise(x, q.reshape(1, -1)))[:, 0], axis=1)  # (B, N)
    return np.einsum("bcn,bn->bc", flatten(pointwise(x, v.reshape(-1, x.shape[1]))), weights)


def _query_and_keys(x: Array, query: Array, key: Array) -> tuple[Array, Array]:
    """GAP(Q x): (B, C/2), and K x: (B, C/2, N)."""
    pooled = flatten(pointwise(x, query.reshape(-1, x.shape[1]))).mean(axis=2)
    return pooled, flatten(pointwise(x, key.reshape(-1, x.shape[1])))


def _gate_positions(x: Array, gate: Array) -> Array:
    """Multiply position n of every channel by gate[b, n]."""
    return x * gate.reshape(x.shape[0], 1, *x.shape[2:])


def polarized_parallel(x: Array, q: Array, v: Array, up: Array, query: Array, key: Array) -> Array:
    """The sum of a channel-gated and a position-gated copy."""
    channel = sigmoid(pointwise(_context(x, q, v), up.reshape(x.shape[1], -1)))
    pooled, keys = _query_and_keys(x, query, key)
    spatial = sigmoid(softmax(np.einsum("bc,bcn->bn", pooled, keys), axis=1))
    return gate_channels(x, channel) + _gate_positions(x, spatial)


def polarized_sequential(
    x: Array,
    q: Array,
    v: Array,
    w1: Array,
    b1: Array,
    gamma: Array,
    beta: Array,
    w2: Array,
    b2: Array,
    query: Array,
    key: Array,
) -> Array:
    """A channel gate, then a gate of positions computed from its result."""
    hidden = pointwise(_context(x, q, v), w1.reshape(np.size(b1), -1), b1)
    hidden = relu(layernorm(hidden, np.ravel(gamma), np.ravel(beta)))
    x = gate_channels(x, sigmoid(pointwise(hidden, w2.reshape(x.shape[1], -1), b2)))
    pooled, keys = _query_and_keys(x, query, key)
    return _gate_positions(x, sigmoid(np.einsum("bc,bcn->bn", pooled, softmax(keys, axis=2))))
