r"""Global Second-order Pooling, the channel form.

Gao et al., *Global Second-order Pooling Convolutional Networks*, CVPR 2019, https://arxiv.org/abs/1811.12006

.. math:: u = \mathrm{ReLU}(\mathrm{BN}(W_1\,\mathrm{ReLU}(x))), \qquad
          \Sigma = \frac1N \sum_n (u_n - \bar u)(u_n - \bar u)^\top, \qquad
          r_{4i+k} = \sum_j w_{4i+k,j}\, \mathrm{BN}(\Sigma)_{ij}, \qquad \tilde x = x \cdot \sigma(W_2 r)

where W_1 (d, C) is ``reduce``, w is ``rows`` (each row of the covariance has four weight vectors, k = 0..3), W_2 (C,
4d) is ``expand``, all with biases, and the second batch norm has a mean and a scale for each row i.

Differences from the paper: it has a non-linearity behind the convolution over rows; the authors' code, and so this
block, has none. In their ResNet-50, ``reduce`` has stride 2 in the first stage, to save time; here it has none. They
put the block into the last unit of every stage. The convolutions start as PyTorch's do; the authors' network draws
those of all its layers anew.

>>> import torch
>>> SecondOrder(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import Pointwise
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise, without_autocast


def normalised(norm: Any, x: Tensor) -> Tensor:
    """What a batch norm, or what it was converted to, makes of numbers that may be too large for its precision."""
    own = norm.weight.dtype
    if norm.training or x.dtype == own:
        return norm(x.to(own))
    mean, variance, weight, bias = map(precise, (norm.running_mean, norm.running_var, norm.weight, norm.bias))
    return F.batch_norm(x, mean, variance, weight, bias, eps=norm.eps)


@register_block("gsop", family="channel", paper="Gao et al., CVPR 2019, arXiv:1811.12006")
class SecondOrder(Gate):
    """Covariance of a projection -> one description per row -> sigmoid.

    Args:
        channels: C.
        dim: d, channels of the projection; may be more than C.
    """

    def __init__(self, channels: int, *, dim: int = 128, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        positive("gsop", dim=dim)
        if dim > 4096:  # the weights of the rows grow with the square
            raise ValueError(f"gsop needs dim to be at most 4096, got {dim}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.reduce = Pointwise(channels, dim, **factory)
        self.bn = nn.BatchNorm2d(dim, **factory)
        self.row_bn = nn.BatchNorm2d(dim, **factory)
        self.rows = nn.Conv2d(dim, 4 * dim, (dim, 1), groups=dim, **factory)
        self.expand = Pointwise(4 * dim, channels, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        u = precise(F.relu(self.bn(self.reduce(F.relu(x))))).flatten(2)  # (B, d, N)
        u = (u - u.mean(2, keepdim=True)) * u.shape[2] ** -0.5
        with without_autocast(x.device):
            covariance = (u @ u.mT).unsqueeze(-1)  # (B, d, d, 1)
            weight, bias = map(precise, self.rows.parameters())
            r = F.conv2d(normalised(self.row_bn, covariance), weight, bias, groups=self.rows.groups)
        return torch.sigmoid(self.expand(r.to(x.dtype)))
