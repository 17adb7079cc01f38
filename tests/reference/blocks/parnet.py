"""ParNet block with skip-squeeze-excitation (Goyal et al., NeurIPS 2022, arXiv 2110.07641), stride 1.

z = BN(x); y = silu(BN(conv3x3 x) + BN(conv1x1 x) + z sigmoid(W GAP(z))), no biases

x: (B, C, H, W). w3: (C, C, 3, 3), w1: (C, C), w_gate: (C, C). bn3, bn1, bn_skip: norms of C channels.
"""

from ._ops import Array, Norm, batchnorm, conv2d, gate_channels, global_average, pointwise, sigmoid
from ._ops_1 import silu


def parnet(x: Array, w3: Array, bn3: Norm, w1: Array, bn1: Norm, w_gate: Array, bn_skip: Norm) -> Array:
    """Two convolutions beside a normalised skip whose channels are gated."""
    channels = x.shape[1]
    skip = batchnorm(x, bn_skip)
    skip = gate_channels(skip, sigmoid(pointwise(global_average(skip), w_gate.reshape(channels, channels))))
    wide = batchnorm(conv2d(x, w3, padding=1), bn3)
    narrow = batchnorm(pointwise(x, w1.reshape(channels, channels)), bn1)
    return silu(wide + narrow + skip)
