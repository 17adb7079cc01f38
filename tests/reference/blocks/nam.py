"""Normalization-based Attention Module, channel part (Liu et al., NeurIPS workshop 2021, arXiv 2111.12419).

y = x * sigmoid(w BN(x)), w_c = |gamma_c| / sum_j |gamma_j|, gamma the scales of that batch norm

x: (B, C, H, W). bn: the norm (gamma, beta, mean, var) of C channels.
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, per_channel, sigmoid


def normalization_based(x: Array, bn: Norm) -> Array:
    """Gate every number by its normalised value, weighted by the share of its channel in the scales."""
    share = np.abs(bn[0]) / np.abs(bn[0]).sum()
    return x * sigmoid(per_channel(share, 4) * batchnorm(x, bn))
