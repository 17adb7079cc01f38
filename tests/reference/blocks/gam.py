"""Global Attention Mechanism (Liu, Shao and Hoffmann, 2021, arXiv 2112.05561).

x' = x * sigmoid(W2 relu(W1 x + b1) + b2) at every position (no pooling)
y = x' * sigmoid(BN(conv7x7(relu(BN(conv7x7(x')))))), C / r channels in between

x: (B, C, H, W). w1: (C/r, C), b1: (C/r,), w2: (C, C/r), b2: (C,). c1: (C/r, C, 7, 7), c2: (C, C/r, 7, 7), with biases
d1, d2. bn1, bn2: norms of C/r and of C channels.
"""

from typing import Any

import numpy as np

from ._ops import Array, batchnorm, conv2d, pointwise, relu, sigmoid


def global_attention(x: Array, channel: dict[str, Array], spatial: dict[str, Any]) -> Array:
    """A gate from the channels at each place, then one from the places around it."""
    hidden = relu(pointwise(x, channel["w1"].reshape(np.size(channel["b1"]), -1), channel["b1"]))
    x = x * sigmoid(pointwise(hidden, channel["w2"].reshape(x.shape[1], -1), channel["b2"]))
    hidden = relu(batchnorm(conv2d(x, spatial["c1"], spatial["d1"], padding=3), spatial["bn1"]))
    return x * sigmoid(batchnorm(conv2d(hidden, spatial["c2"], spatial["d2"], padding=3), spatial["bn2"]))
