"""Stand-alone self-attention (Ramachandran et al., NeurIPS 2019, arXiv 1906.05909) in the window s x s around a pixel.

a_ij = softmax_j(scale q_i . (k_j + [rel_h[y_j - y_i]; rel_w[x_j - x_i]])), y_i = sum_j a_ij v_j, head by head
Pixels outside the map have k = v = 0 but keep their place in the softmax. The paper's equation has scale = 1.

x: (B, C_in, H, W). wq, wk, wv: (C, C_in), no bias. rel_h, rel_w: (s, d/2), d = C/heads, for all heads, s odd.
stride t: t x t averages of the output.
"""

import numpy as np

from ._ops import Array, flatten, softmax
from ._ops_heads import average_pool_whole, heads_of, neighbours


def _windows(x: Array, w: Array, heads: int, size: int) -> Array:
    """(B, heads, d, s^2, N)."""
    maps = heads_of(x, (w, None), heads).reshape(len(x), -1, *x.shape[2:])
    return neighbours(maps, size).reshape(len(x), heads, -1, size * size, flatten(x).shape[2])


def stand_alone_weights(
    x: Array, wq: Array, wk: Array, wv: Array | None, rel_h: Array, rel_w: Array, heads: int, *, scale: float = 1.0
) -> Array:
    """Weights (B, heads, N, s^2) over the window, row by row."""
    size = len(rel_h)
    relative = np.concatenate([np.repeat(rel_h, size, axis=0), np.tile(rel_w, (size, 1))], axis=1)  # (s^2, d)
    keys = _windows(x, wk, heads, size) + relative.T[None, None, :, :, None]
    logits = scale * np.einsum("bndi,bndji->bnij", heads_of(x, (wq, None), heads), keys)
    return softmax(logits, axis=3)


def stand_alone(
    x: Array,
    wq: Array,
    wk: Array,
    wv: Array,
    rel_h: Array,
    rel_w: Array,
    heads: int,
    *,
    scale: float = 1.0,
    stride: int = 1,
) -> Array:
    """Local self-attention in place of a convolution."""
    a = stand_alone_weights(x, wq, wk, wv, rel_h, rel_w, heads, scale=scale)
    y = np.einsum("bnij,bndji->bndi", a, _windows(x, wv, heads, len(rel_h)))
    return average_pool_whole(y.reshape(len(x), -1, *x.shape[2:]), stride)
