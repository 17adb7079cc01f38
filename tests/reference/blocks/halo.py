"""Blocked local self-attention with haloing (Vaswani et al., HaloNet, CVPR 2021, arXiv 2103.12731).

The map is cut into b x b blocks from the top left. A query attends to its whole block and h pixels around it:
a_ij = softmax_j(scale q_i . (k_j + rel_h[y_j - y_i] + rel_w[x_j - x_i])), y_i = sum_j a_ij v_j, head by head
Pixels outside the map have k = v = 0 but keep their place in the softmax. The paper's equation has scale = 1.

x: (B, C_in, H, W). wq, wk: (heads d, C_in), wv: (C, C_in), no bias. rel_h, rel_w: (2 (b + h) - 1, d) for all heads,
row offset + b + h - 1. stride t: queries only at rows and columns 0, t, 2t, ... of the map, t a divisor of b.
"""

import numpy as np

from ._ops import Array, softmax
from ._ops_heads import heads_of


def _padded(x: Array, w: Array, heads: int, block: int, halo: int) -> Array:
    """Maps (B, heads, d, H', W') with zeros around them: halo before, and whole blocks and halo after."""
    height, width = x.shape[2:]
    after = [-length % block + halo for length in (height, width)]
    maps = heads_of(x, (w, None), heads).reshape(len(x), heads, -1, height, width)
    return np.pad(maps, ((0, 0), (0, 0), (0, 0), (halo, after[0]), (halo, after[1])))


def halo_weights(
    x: Array,
    wq: Array,
    wk: Array,
    wv: Array | None,
    rel_h: Array,
    rel_w: Array,
    heads: int,
    *,
    block: int,
    halo: int,
    scale: float = 1.0,
    stride: int = 1,
) -> Array:
    """Weights (B, heads, H/t, W/t, (b + 2h)^2) over the window of the block of each query, row by row."""
    height, width = x.shape[2:]
    queries = heads_of(x, (wq, None), heads).reshape(len(x), heads, -1, height, width)
    keys = _padded(x, wk, heads, block, halo)
    window = block + 2 * halo
    rows, columns = range(0, height, stride), range(0, width, stride)
    a = np.empty((len(x), heads, len(rows), len(columns), window * window))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            top, left = row // block * block, column // block * block  # in padded coordinates: halo pixels before
            offsets = np.arange(window) - halo + block + halo - 1
            r = rel_h[offsets + top - row][:, None] + rel_w[offsets + left - column][None, :]  # (window, window, d)
            k = keys[..., top : top + window, left : left + window] + r.transpose(2, 0, 1)
            logits = scale * np.einsum("bnd,bndyx->bnyx", queries[..., row, column], k)
            a[:, :, i, j] = softmax(logits.reshape(len(x), heads, -1), axis=2)
    return a


def halo(
    x: Array,
    wq: Array,
    wk: Array,
    wv: Array,
    rel_h: Array,
    rel_w: Array,
    heads: int,
    *,
    block: int,
    halo: int,
    scale: float = 1.0,
    stride: int = 1,
) -> Array:
    """Blocked local self-attention in place of a convolution."""
    a = halo_weights(x, wq, wk, wv, rel_h, rel_w, heads, block=block, halo=halo, scale=scale, stride=stride)
    values = _padded(x, wv, heads, block, halo)
    window = block + 2 * halo
    y = np.empty((len(x), heads, values.shape[2], *a.shape[2:4]))
    for i, j in np.ndindex(*a.shape[2:4]):
        top, left = i * stride // block * block, j * stride // block * block
        v = values[..., top : top + window, left : left + window]
        y[..., i, j] = np.einsum("bnt,bndt->bnd", a[:, :, i, j], v.reshape(*v.shape[:3], -1))
    return y.reshape(len(x), -1, *a.shape[2:4])
