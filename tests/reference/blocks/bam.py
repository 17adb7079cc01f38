"""Bottleneck Attention Module (Park et al., BMVC 2018, arXiv 1807.06514), as released.

y = x (1 + sigmoid(Mc Ms)) (the paper writes Mc + Ms)
Mc = W2 relu(BN(W1 GAP(x) + b1)) + b2
Ms = 1x1, BN, relu, twice [3x3 dilation 4 padding 4, BN, relu], 1x1 to one channel; all with biases

x: (B, C, H, W). channel: {"w1": (C/r, C), "b1", "bn", "w2": (C, C/r), "b2"}. spatial: {"w0": (C/r, C), "b0",
"bn0", "w1": (C/r, C/r, 3, 3), "b1", "bn1", "w2": (C/r, C/r, 3, 3), "b2", "bn2", "w3": (1, C/r), "b3"}.
"""

from typing import Any

from ._ops import Array, batchnorm, conv2d, global_average, pointwise, relu, sigmoid


def bam(x: Array, channel: dict[str, Any], spatial: dict[str, Any]) -> Array:
    """Gate by the product of a channel and a spatial map."""
    hidden = relu(batchnorm(pointwise(global_average(x), channel["w1"], channel["b1"]), channel["bn"]))
    mc = pointwise(hidden, channel["w2"], channel["b2"])[:, :, None, None]
    y = relu(batchnorm(pointwise(x, spatial["w0"], spatial["b0"]), spatial["bn0"]))
    for n in ("1", "2"):
        y = conv2d(y, spatial["w" + n], spatial["b" + n], padding=4, dilation=4)
        y = relu(batchnorm(y, spatial["bn" + n]))
    ms = pointwise(y, spatial["w3"].reshape(1, -1), spatial["b3"])
    return x * (1.0 + sigmoid(mc * ms))
