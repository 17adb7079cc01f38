r"""A backward pass in which every contribution is accounted for.

LibraGrad, Mehri et al., CVPR 2025, https://arxiv.org/abs/2411.16760.

Gradients of a transformer are a poor explanation because a few of its operations break the rule that inputs times
gradients add up to the output. Here the forward pass is, to the last bit, that of an ordinary gradient of the image,
and in the backward pass every operation counts as a linear function of what depends on the image, plus a constant:

.. math:: y = \sum_i J_i x_i + b

=====================================  ===============================================================================
attention weights                      constants: the gradient flows through the values alone
norms                                  what they divide by is a constant; centring stays. So is every other divisor
elementwise functions                  :math:`f(x) = f(0) + x\, g(x)` with :math:`g(x) = (f(x) - f(0)) / x` as a
                                       constant: the gate of GELU, SiLU or Hardswish; a sigmoid is one half and a line
products of branches (SwiGLU, SE)      each of n branches receives one n-th of the gradient; so do powers
biases, class tokens, positions        what is added is b
=====================================  ===============================================================================

If that holds for every operation, it holds for the network (the chain rule adds nothing and loses nothing): image
times gradient, plus every :math:`b` times the gradient of the output it was added to, is the explained number.
``tests/test_balanced.py`` checks it to the last digits on every kind of network.

``operators.py`` has what is known of torch functions, ``rules.py`` and ``norms.py`` the rules, ``mode.py`` applies them
to whatever a model calls, by intercepting torch functions as :func:`visattn.capture` does. Whether a tensor depends on
the image is what autograd says, since no parameter asks for a gradient.

Differences from the paper: an activation that is written out (``x * sigmoid(1.702 * x)``) is treated like one that is
not; the gates of convolutional networks, whose sigmoid is no multiple of its input, have a rule too.
"""

from visattn.heatmaps.balanced.mode import Balanced, balanced

__all__ = ["Balanced", "balanced"]
