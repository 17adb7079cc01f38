"""Convolutional Block Attention Module (Woo et al., ECCV 2018, arXiv 1807.06521), as released.

Mc = sigmoid(MLP(avg(x)) + MLP(max(x))), MLP(v) = W2 relu(W1 v + b1) + b2
Ms = sigmoid(BN(conv_kxk([max over C; mean over C]))), no convolution bias, padding k // 2
y = Ms(x') x' with x' = Mc(x) x

x: (B, C, H, W). w1: (C/r, C), b1: (C/r,) or None. w2: (C, C/r), b2: (C,) or None.
w: (1, 2, k, k), the maximum first. bn: (gamma, beta, mean, var) of one channel.
"""

from ._ops import Array, Norm, batchnorm, conv2d, pointwise, relu, sigmoid, z_pool


def channel_gate(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Array:
    """Channel map (B, C, 1, 1)."""
    score = 0.0
    for v in (x.mean(axis=(2, 3)), x.max(axis=(2, 3))):
        score = score + pointwise(relu(pointwise(v, w1, b1)), w2, b2)
    return sigmoid(score)[:, :, None, None]


def spatial_gate(x: Array, w: Array, bn: Norm) -> Array:
    """Spatial map (B, 1, H, W)."""
    return sigmoid(batchnorm(conv2d(z_pool(x), w, padding=w.shape[-1] // 2), bn))


def cbam(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None, w: Array, bn: Norm) -> Array:
    """Channel gate, then spatial gate of the result."""
    y = x * channel_gate(x, w1, b1, w2, b2)
    return y * spatial_gate(y, w, bn)
