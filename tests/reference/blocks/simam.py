"""SimAM (Yang et al., ICML 2021), parameter-free energy attention.

d = (x - mu)^2, v = sum d / (HW - 1), y = x * sigmoid(d / (4 (v + lam)) + 1/2), per channel

x: (B, C, H, W). lam: the regulariser (1e-4 by default in the release). On a 1x1 map v is taken as 0.
"""

from ._ops import Array, sigmoid


def simam(x: Array, lam: float) -> Array:
    """Gate every neuron by its inverse minimal energy."""
    count = x.shape[2] * x.shape[3]
    d = (x - x.mean(axis=(2, 3), keepdims=True)) ** 2
    v = d.sum(axis=(2, 3), keepdims=True) / max(count - 1, 1)
    return x * sigmoid(d / (4.0 * (v + lam)) + 0.5)
