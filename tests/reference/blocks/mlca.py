"""Mixed local channel attention (Wan et al., Engineering Applications of AI 123, 2023).

p = adaptive average pool of x to S x S, g = mean of p over its S S cells
a_g[c] = sig(conv1d_k(g))[c], along the channels
a_l = sig(conv1d_k(p laid out as one line: cell by cell, and in each cell channel by channel))
y = x * resize(m a_l + (1 - m) a_g) back to H x W by adaptive average pooling

x: (B, C, H, W). w_global, w_local: (k,), no bias. size: S. local_weight: m.
"""

from ._ops import Array, sigmoid
from ._ops_2 import adaptive_average, same_conv1d


def mlca_gate(x: Array, w_global: Array, w_local: Array, *, size: int = 5, local_weight: float = 0.5) -> Array:
    """Gate (B, C, H, W)."""
    batch, channels, height, width = x.shape
    p = adaptive_average(x, size, size)
    g = p.mean(axis=(2, 3))
    a_g = sigmoid(same_conv1d(g[:, None, :], w_global[None]))[:, 0, :, None, None]
    line = p.transpose(0, 2, 3, 1).reshape(batch, 1, size * size * channels)
    a_l = sigmoid(same_conv1d(line, w_local[None])).reshape(batch, size, size, channels).transpose(0, 3, 1, 2)
    return adaptive_average(local_weight * a_l + (1.0 - local_weight) * a_g, height, width)


def mlca(x: Array, w_global: Array, w_local: Array, *, size: int = 5, local_weight: float = 0.5) -> Array:
    """Gate channels by a coarse map."""
    return x * mlca_gate(x, w_global, w_local, size=size, local_weight=local_weight)
