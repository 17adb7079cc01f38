r"""External attention: the keys and values are a learned memory.

Guo et al., *Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks*, TPAMI 2022,
https://arxiv.org/abs/2105.02358

.. math:: \hat a_{is} = \mathrm{softmax}_i\big((W_1 x_i + b_1) \cdot m^k_s\big), \qquad
          a_{is} = \frac{\hat a_{is}}{10^{-9} + \sum_s \hat a_{is}}, \qquad
          y_i = \mathrm{ReLU}\Big(x_i + \mathrm{BN}\Big(W_2 \sum_s a_{is}\, m^v_s\Big)\Big)

where W_1 is ``query``, W_2 is ``out``, and m^k, m^v (S, C) are the S = ``slots`` = 64 keys and values of the memory,
``memory_key`` and ``memory_value``. The weights are normalised twice: a softmax over the positions i, then a division
by their sum over the slots s.

Differences from the paper: none from the authors' code of its segmentation network, of which this is the block. As
there, the memories start as the same matrix but are two parameters; that code ties them only until the module is moved.
Widely copied versions leave out the two convolutions, the norm and the residual.

>>> import torch
>>> external = ExternalAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> external(x).shape, external.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 64]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import MEMORY, laid_out_like, register_block
from visattn.blocks.feature_maps import heads_of
from visattn.blocks.primitives import Pointwise
from visattn.core.arguments import Device, DType, positive
from visattn.core.energies import dot


@register_block("external", family="self", paper="Guo et al., TPAMI 2022, arXiv:2105.02358", attends=MEMORY)
class ExternalAttention(nn.Module):
    """Every position attends to the slots of a memory that all images share.

    Args:
        channels: C.
        slots: S of the memory.
    """

    def __init__(self, channels: int, *, slots: int = 64, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        positive("external", slots=slots)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query = Pointwise(channels, channels, **factory)
        self.memory_key = nn.Parameter(torch.empty(slots, channels, **factory))
        self.memory_value = nn.Parameter(torch.empty(slots, channels, **factory))
        self.out = Pointwise(channels, channels, bias=False, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He's layers, and one matrix for both memories."""
        std = (2 / self.query.out_channels) ** 0.5
        for weight in (self.query.weight, self.out.weight, self.memory_value):
            nn.init.normal_(weight, std=std)
        with torch.no_grad():
            self.memory_key.copy_(self.memory_value)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every slot of the memory, (B, 1, N, S)."""
        energies = dot(heads_of(self.query(x), 1), self.memory_key)  # (B, 1, N, S)
        over_positions = F.softmax(energies, dim=-2)
        return (over_positions / (1e-9 + over_positions.sum(-1, keepdim=True))).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what each position found in the memory, rectified, (B, C, H, W)."""
        found = (self.attention(x) @ self.memory_value).squeeze(1).mT  # (B, C, N)
        return laid_out_like(F.relu(x + self.bn(self.out(found.unflatten(2, x.shape[2:])))), x)
