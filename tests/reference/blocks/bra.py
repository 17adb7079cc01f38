"""Bi-level routing attention of BiFormer (Zhu et al., CVPR 2023, arXiv 2303.08810).

The map (zeros added below and to the right) is cut into S x S regions of equal size. Region means of queries and
keys give the affinities; region r keeps the k regions with the largest ones, for all its heads. A query attends to
the positions of the kept regions: A = softmax_j(q_i . k_j / sqrt(C)), note C and not C/heads.
y = wo (A v + depthwise conv of v) + bo

x: (B, C, H, W). wqkv: (3C, C), bqkv: (3C,). wl: (C, kl, kl), bl: (C,). wo: (C, C), bo: (C,).
The added zeros are projected like any other position, take part in the means and can be attended to.
"""

import math

import numpy as np

from ._ops import Array, depthwise, flatten, pointwise, softmax
from ._ops_group4 import mix, pad_to_multiple, split_heads


def _regions(height: int, width: int, side: int) -> Array:
    """(N,) the region of each position."""
    rows, columns = np.divmod(np.arange(height * width), width)
    return rows // (height // side) * side + columns // (width // side)


def _attend(qkv: Array, heads: int, side: int, keep: int) -> Array:
    """(B, heads, N, N) on the padded map, zero outside the kept regions."""
    channels = qkv.shape[1] // 3
    region = _regions(*qkv.shape[2:], side)
    q, k = flatten(qkv[:, :channels]), flatten(qkv[:, channels : 2 * channels])
    mean_q = np.stack([q[:, :, region == r].mean(axis=2) for r in range(side * side)], axis=2)
    mean_k = np.stack([k[:, :, region == r].mean(axis=2) for r in range(side * side)], axis=2)
    affinity = np.einsum("bcr,bcs->brs", mean_q, mean_k)
    kept = np.zeros(affinity.shape, dtype=bool)
    np.put_along_axis(kept, np.argsort(-affinity, axis=2)[:, :, :keep], True, axis=2)
    logits = np.einsum("bndi,bndj->bnij", split_heads(q, heads), split_heads(k, heads)) / math.sqrt(channels)
    allowed = kept[:, region][:, :, region][:, None]
    return softmax(np.where(allowed, logits, -np.inf), axis=-1)


def _inside(x: Array, padded: Array) -> Array:
    """Indices in the padded map of the positions of the map."""
    rows, columns = np.divmod(np.arange(x.shape[2] * x.shape[3]), x.shape[3])
    return rows * padded.shape[3] + columns


def routing_weights(x: Array, wqkv: Array, bqkv: Array, heads: int, side: int = 7, keep: int = 4) -> Array:
    """(B, heads, N, N); rows sum to one, or to less where added zeros were attended to."""
    padded = pad_to_multiple(x, side, side)
    inside = _inside(x, padded)
    return _attend(pointwise(padded, wqkv, bqkv), heads, side, keep)[:, :, inside][:, :, :, inside]


def routing(
    x: Array,
    wqkv: Array,
    bqkv: Array,
    wl: Array,
    bl: Array,
    wo: Array,
    bo: Array,
    heads: int,
    side: int = 7,
    keep: int = 4,
) -> Array:
    """Bi-level routing attention, without the residual."""
    padded = pad_to_multiple(x, side, side)
    qkv = pointwise(padded, wqkv, bqkv)
    v = qkv[:, 2 * x.shape[1] :]
    y = mix(_attend(qkv, heads, side, keep), split_heads(flatten(v), heads)).reshape(v.shape)
    y = pointwise(y + depthwise(v, wl, bl, padding=wl.shape[-1] // 2), wo, bo)
    return y[:, :, : x.shape[2], : x.shape[3]]
