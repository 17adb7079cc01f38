r"""Dual attention: among places, and among channels.

Fu et al., *Dual Attention Network for Scene Segmentation*, CVPR 2019, https://arxiv.org/abs/1809.02983

.. math:: \tilde x = x + \alpha P + \beta K, \qquad P_i = \sum_j \mathrm{softmax}_j(q_i^\top k_j)\, v_j, \qquad
          K_c = \sum_d \mathrm{softmax}_d(-x_c^\top x_d)\, x_d

where q, k (C/8 features) and v are 1x1 convolutions of the pixels i, j, x_c is a whole channel, and α, β are scalars
(``alpha``, ``beta``) that start at zero, so that the block starts as the identity. Neither energy is scaled.

Differences from the paper: it writes softmax(+x_c'x_d). The authors' code, which produced the published figures,
subtracts the energies from their maximum, so that channels attend to those that are unlike them. There, each attention
stands between convolutions in one branch of a segmentation head, with a shortcut of its own; here both share one
shortcut. The common copy (External-Attention-pytorch) has neither the shortcut nor α and β, scales both energies, lets
channels attend to those that are like them, has queries and keys of C features, and takes only maps of 512 x 7 x 7.

Places run on the fused attention kernel, so no N x N matrix is held unless :meth:`attention` is called; that of the
channels is C x C.

>>> import torch
>>> danet = DualAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> torch.equal(danet(x), x), danet.attention(x).shape, danet.channel_attention(x).shape
(True, torch.Size([2, 1, 48, 48]), torch.Size([2, 1, 64, 64]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.blocks.non_local import tokens
from visattn.core import Attention
from visattn.core.arguments import Device, DType
from visattn.core.energies import dot


@register_block(
    "danet", family="self", paper="Fu et al., CVPR 2019, arXiv:1809.02983", attends="pairs of places and of channels"
)
class DualAttention(nn.Module):
    """Every place collects from all places, and every channel from all channels.

    Args:
        channels: C.
        rd_ratio: width of queries and keys as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 8, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = reduced(channels, rd_ratio)
        self.query = nn.Conv2d(channels, inner, 1, **factory)
        self.key = nn.Conv2d(channels, inner, 1, **factory)
        self.value = nn.Conv2d(channels, channels, 1, **factory)
        self.attend = Attention(inner, score="dot")
        self.alpha = nn.Parameter(torch.empty(1, **factory))
        self.beta = nn.Parameter(torch.empty(1, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the identity."""
        nn.init.zeros_(self.alpha)
        nn.init.zeros_(self.beta)

    def attention(self, x: Tensor) -> Tensor:
        """What every place (row) takes from every other, (B, 1, N, N)."""
        return self.attend.weights(tokens(self.query(x)), tokens(self.key(x)))

    def channel_attention(self, x: Tensor) -> Tensor:
        """What every channel (row) takes from every other, (B, 1, C, C)."""
        channels = x.flatten(2)  # (B, C, N)
        return F.softmax(-dot(channels, channels), dim=-1).to(x.dtype).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what places and channels have collected, (B, C, H, W)."""
        places = self.attend(tokens(self.query(x)), tokens(self.key(x)), tokens(self.value(x))).mT  # (B, C, N)
        channels = self.channel_attention(x).squeeze(1) @ x.flatten(2)
        return laid_out_like(x + (self.alpha * places + self.beta * channels).unflatten(2, x.shape[2:]), x)
