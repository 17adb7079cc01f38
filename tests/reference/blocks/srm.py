"""Style-based Recalibration Module (Lee et al., ICCV 2019, arXiv 1903.10829).

z_c = w[c, 0] mean_c + w[c, 1] std_c, y = x * sigmoid(BN(z)); std = sqrt(unbiased variance + 1e-5)

x: (B, C, H, W). w: (C, 2). bn: (gamma, beta, mean, var). On a 1x1 map the variance is taken as 0.
"""

import numpy as np

from ._ops import Array, Norm, batchnorm, gate_channels, sigmoid


def style_recalibration(x: Array, w: Array, bn: Norm) -> Array:
    """Gate every channel by its own mean and standard deviation."""
    count = x.shape[2] * x.shape[3]
    mean = x.mean(axis=(2, 3))
    squares = ((x - mean[:, :, None, None]) ** 2).sum(axis=(2, 3))
    std = np.sqrt(squares / max(count - 1, 1) + 1e-5)
    w = w.reshape(-1, 2)
    return gate_channels(x, sigmoid(batchnorm(w[:, 0] * mean + w[:, 1] * std, bn)))
