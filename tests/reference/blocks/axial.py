"""Position-sensitive axial attention (Wang et al., Axial-DeepLab, ECCV 2020, arXiv 2003.07853): columns, then rows.

along one axis, o the query and p the key position, head by head, no 1/sqrt(d):
a_op = softmax_p(BN(q_o . k_p) + BN(q_o . rq[p - o]) + BN(k_p . rk[p - o]))
y_o = BN(sum_p a_op v_p) + BN(sum_p a_op rv[p - o])

x: (B, C_in, H, W). One layer is the dict
  w: (2 C, C_in), no bias; head n has rows 2 n d .. 2 (n + 1) d - 1: d/2 of q, d/2 of k, d of v, d = C/heads
  bn_qkv: norm of those 2 C channels
  bn_similarity: norm of 3 heads channels: q.k of every head, then q.rq, then k.rk
  bn_output: norm of 2 C channels: c-th channel of sum a v at 2c, of sum a rv at 2c + 1
  rq, rk: (d/2, 2K - 1), rv: (d, 2K - 1), column p - o + K - 1, for all heads; the axis is at most K long
Norms are (gamma, beta, mean, var). stride s: s x s averages of the output of the second layer.
"""

from typing import Any

import numpy as np

from ._ops import Array, batchnorm, pointwise, softmax
from ._ops_heads import average_pool_whole

Layer = dict[str, Any]


def _qkv(x: Array, layer: Layer, heads: int) -> tuple[Array, Array, Array]:
    """Queries, keys (S, heads, d/2, L) and values (S, heads, d, L) of sequences x (S, C_in, L)."""
    y = batchnorm(pointwise(x, layer["w"]), layer["bn_qkv"])
    y = y.reshape(y.shape[0], heads, -1, y.shape[2])
    half = y.shape[2] // 4
    return y[:, :, :half], y[:, :, half : 2 * half], y[:, :, 2 * half :]


def _relative(table: Array, length: int) -> Array:
    """(d, 2K - 1) table as r[:, o, p] = table[:, p - o + K - 1]."""
    centre = table.shape[1] // 2
    offsets = np.arange(length)[None, :] - np.arange(length)[:, None]
    return table[:, offsets + centre]


def _weights(x: Array, layer: Layer, heads: int) -> Array:
    q, k, _ = _qkv(x, layer, heads)
    length = x.shape[2]
    qk = np.einsum("sndo,sndp->snop", q, k)
    qr = np.einsum("sndo,dop->snop", q, _relative(layer["rq"], length))
    kr = np.einsum("sndp,dop->snop", k, _relative(layer["rk"], length))
    terms = batchnorm(np.concatenate([qk, qr, kr], axis=1), layer["bn_similarity"])
    return softmax(terms.reshape(terms.shape[0], 3, heads, length, length).sum(axis=1), axis=3)


def _attend(x: Array, layer: Layer, heads: int) -> Array:
    """Attention within the sequences x (S, C_in, L) -> (S, C, L)."""
    a = _weights(x, layer, heads)
    v = _qkv(x, layer, heads)[2]
    content = np.einsum("snop,sndp->sndo", a, v)
    position = np.einsum("snop,dop->sndo", a, _relative(layer["rv"], x.shape[2]))
    both = np.stack([content, position], axis=3)  # (S, heads, d, 2, L)
    both = batchnorm(both.reshape(x.shape[0], -1, x.shape[2]), layer["bn_output"])
    return both.reshape(x.shape[0], -1, 2, x.shape[2]).sum(axis=2)


def _columns(x: Array) -> Array:
    """(B, C, H, W) -> (B W, C, H)."""
    return x.transpose(0, 3, 1, 2).reshape(-1, x.shape[1], x.shape[2])


def _along_height(x: Array, layer: Layer, heads: int) -> Array:
    y = _attend(_columns(x), layer, heads)
    return y.reshape(x.shape[0], x.shape[3], -1, x.shape[2]).transpose(0, 2, 3, 1)


def axial(x: Array, height: Layer, width: Layer, heads: int, *, stride: int = 1) -> Array:
    """Attention within every column, then within every row."""
    y = _along_height(x, height, heads)
    y = _along_height(y.transpose(0, 1, 3, 2), width, heads).transpose(0, 1, 3, 2)
    return average_pool_whole(y, stride)


def axial_weights(x: Array, height: Layer, width: Layer, heads: int) -> tuple[Array, Array]:
    """Weights within columns (B, W, heads, H, H) and, in the second layer, within rows (B, H, heads, W, W)."""
    batch, _, rows, columns = x.shape
    first = _weights(_columns(x), height, heads).reshape(batch, columns, heads, rows, rows)
    y = _along_height(x, height, heads).transpose(0, 1, 3, 2)
    return first, _weights(_columns(y), width, heads).reshape(batch, rows, heads, columns, columns)
