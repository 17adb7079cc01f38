"""Multi-head self-attention of BoTNet (Srinivas et al., CVPR 2021, arXiv 2101.11605).

logits_ij = (q_i . k_j + q_i . rel_h[y_j - y_i + H - 1] + q_i . rel_w[x_j - x_i + W - 1]) / sqrt(d)
y_i = sum_j softmax_j(logits_ij) v_j; head n has channels n d .. (n + 1) d - 1, d = C/heads

x: (B, C_in, H, W). wq, wk, wv: (C, C_in), no bias. rel_h: (2H - 1, d), rel_w: (2W - 1, d), for all heads.
"""

import math

import numpy as np

from ._ops import Array, flatten, pointwise, softmax


def _split(x: Array, w: Array, heads: int) -> Array:
    """Project and split into heads: (B, heads, d, N)."""
    y = pointwise(flatten(x), w)
    return y.reshape(y.shape[0], heads, y.shape[1] // heads, y.shape[2])


def bottleneck_mhsa_weights(
    x: Array, wq: Array, wk: Array, wv: Array | None, rel_h: Array, rel_w: Array, heads: int
) -> Array:
    """Softmax weights (B, heads, N, N); wv does not matter."""
    height, width = x.shape[2:]
    assert len(rel_h) == 2 * height - 1 and len(rel_w) == 2 * width - 1
    q, k = _split(x, wq, heads), _split(x, wk, heads)
    batch, _, d, n = q.shape
    logits = np.empty((batch, heads, n, n))
    rows, cols = np.arange(n) // width, np.arange(n) % width
    for i in range(n):
        y_i, x_i = divmod(i, width)
        r = rel_h[rows - y_i + height - 1] + rel_w[cols - x_i + width - 1]
        q_i = q[:, :, :, i]
        content = np.einsum("bnd,bndj->bnj", q_i, k)
        position = np.einsum("bnd,jd->bnj", q_i, r)
        logits[:, :, i] = (content + position) / math.sqrt(d)
    return softmax(logits, axis=3)


def bottleneck_mhsa(x: Array, wq: Array, wk: Array, wv: Array, rel_h: Array, rel_w: Array, heads: int) -> Array:
    """Self-attention over all the positions of a map."""
    a = bottleneck_mhsa_weights(x, wq, wk, wv, rel_h, rel_w, heads)
    y = np.einsum("bnij,bndj->bndi", a, _split(x, wv, heads))
    return y.reshape(x.shape[0], -1, *x.shape[2:])


def resample_offsets(table: Array, size: int) -> Array:
    """Linear resampling of a (2S - 1, d) table to (2 size - 1, d), offset 0 staying at the centre."""
    s = (len(table) + 1) // 2
    out = np.empty((2 * size - 1, table.shape[1]))
    for row, offset in enumerate(range(-(size - 1), size)):
        position = (s - 1) + (offset * (s - 1) / (size - 1) if size > 1 else 0.0)
        low = min(max(math.floor(position), 0), len(table) - 1)
        high = min(low + 1, len(table) - 1)
        fraction = position - low
        out[row] = (1.0 - fraction) * table[low] + fraction * table[high]
    return out
