"""Grid attention gate (Oktay et al., Attention U-Net, MIDL 2018, arXiv 1804.03999).

f = relu(theta(x) + resize(phi(g))), a = resize(sig(psi(f))), y = BN(W (a x) + b)
theta: 2x2, stride 2, no bias; phi, psi: 1x1 with bias; resize: bilinear, to the grid of theta(x) and back to x

x: (B, C, H, W), g: (B, G, H', W'), the gating signal of any size. theta: (M, C, 2, 2). phi: ((M, G), (M,)).
psi: ((1, M), (1,)). w: (C, C), b: (C,), bn over C.
"""

from ._ops import Array, Norm, batchnorm, conv2d, pointwise, relu, sigmoid
from ._ops_2 import bilinear

Layer = tuple[Array, Array]


def attention_gate_map(x: Array, g: Array, theta: Array, phi: Layer, psi: Layer) -> Array:
    """Map (B, 1, H, W)."""
    t = conv2d(x, theta, stride=theta.shape[-1])
    f = relu(t + bilinear(pointwise(g, *phi), *t.shape[2:]))
    return bilinear(sigmoid(pointwise(f, *psi)), *x.shape[2:])


def attention_gate(x: Array, g: Array, theta: Array, phi: Layer, psi: Layer, w: Array, b: Array, bn: Norm) -> Array:
    """Gate the places of x by what g says, then transform."""
    return batchnorm(pointwise(attention_gate_map(x, g, theta, phi, psi) * x, w, b), bn)
