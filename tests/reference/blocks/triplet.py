"""Triplet Attention (Misra et al., Rotate to Attend, WACV 2021, arXiv 2010.03045).

gate(t) = sigmoid(BN(conv7x7([max; mean] over axis 1 of t))), padding 3, no bias
y = x * (g_cw + g_hc + g_hw) / 3, each map broadcast along the axis it was pooled over

x: (B, C, H, W). gates: three (w (1, 2, 7, 7), bn): [0] plane rows C, columns W (pooled over H);
[1] plane rows H, columns C (pooled over W); [2] plane rows H, columns W (pooled over C).
"""

from collections.abc import Sequence

import numpy as np

from ._ops import Array, Norm, batchnorm, conv2d, sigmoid


def _plane_gate(x: Array, axis: int, w: Array, bn: Norm, swap: bool) -> Array:
    """Map (B, rows, columns) of x pooled over an axis; ``swap`` exchanges the two remaining axes."""
    pooled = np.stack([x.max(axis=axis), x.mean(axis=axis)], axis=1)
    if swap:
        pooled = pooled.transpose(0, 1, 3, 2)
    return sigmoid(batchnorm(conv2d(pooled, w, padding=w.shape[-1] // 2), bn))[:, 0]


def triplet(x: Array, gates: Sequence[tuple[Array, Norm]]) -> Array:
    """Average of three plane gates."""
    cw = _plane_gate(x, 2, *gates[0], swap=False)
    hc = _plane_gate(x, 3, *gates[1], swap=True)
    hw = _plane_gate(x, 1, *gates[2], swap=False)
    maps = cw[:, :, None, :] + hc.transpose(0, 2, 1)[:, :, :, None] + hw[:, None, :, :]
    return x * maps / 3.0
