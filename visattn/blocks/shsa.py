r"""Single-head self-attention (SHViT).

Yun and Ro, *SHViT: Single-Head Vision Transformer with Memory Efficient Macro Design*, CVPR 2024,
https://arxiv.org/abs/2401.16456

.. math:: (q, k, v) = \mathrm{BN}(W\, \mathrm{GN}(x_1)), \qquad
          y_1 = \sum_j \mathrm{softmax}_j\Big(\frac{q_i \cdot k_j}{\sqrt{d_k}}\Big)\, v_j, \qquad
          y = \mathrm{BN}(W_p\, \mathrm{ReLU}([y_1; x_2]))

where x_1 are the first P channels, about 1/4.67 of all, and x_2 the others, which take no part in the attention. GN
(``norm``) is a group norm with one group, W is ``qkv`` and W_p ``out``, both without biases; d_k = 16.

Differences from the paper: none from the authors' code. P is 3C/14, rounded down, which gives the number of channels
in every stage of the published networks (at least one here, so that narrow maps work). The batch norm of W_p starts
at zero, so this block, to which a network adds its input, is zero at first. Note that the ReLU also acts on x_2. Common
copies default to P = 32, whatever the width.

>>> import torch
>>> shsa = SingleHead(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> shsa(x).shape, shsa.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.group_norm import GroupNorm
from visattn.blocks.tokens import to_heads, to_map
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive


@register_block("shsa", family="self", paper="Yun and Ro, CVPR 2024, arXiv:2401.16456", used_in="the blocks of SHViT")
class SingleHead(nn.Module):
    """One head on a fifth of the channels; a projection mixes what it found with the others.

    Args:
        channels: C.
        attending: number of channels P that attend, at most C; 3C/14 unless given.
        key_dim: channels of a query and of a key.
    """

    def __init__(
        self,
        channels: int,
        *,
        attending: int | None = None,
        key_dim: int = 16,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = max(1, 3 * channels // 14) if attending is None else attending
        positive("shsa", attending=width, key_dim=key_dim)
        if width > channels:
            raise ValueError(f"block 'shsa' has {channels} channels, so {width} cannot attend")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.shares = [width, channels - width]
        self.widths = [key_dim, key_dim, width]
        self.norm = GroupNorm(1, width, **factory)
        self.qkv = nn.Conv2d(width, sum(self.widths), 1, bias=False, **factory)
        self.bn_qkv = nn.BatchNorm2d(sum(self.widths), **factory)
        self.attend = Attention(key_dim, score="scaled_dot")
        self.out = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Nothing at first."""
        nn.init.zeros_(self.bn.weight)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, 1, N, d)."""
        query, key, value = self.bn_qkv(self.qkv(self.norm(x))).split(self.widths, dim=1)
        return to_heads(query, 1), to_heads(key, 1), to_heads(value, 1)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, 1, N, N)."""
        query, key, _ = self._parts(x.split(self.shares, dim=1)[0])
        return self.attend.head_weights(query, key)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        first, rest = x.split(self.shares, dim=1)
        found = to_map(self.attend.head_context(*self._parts(first)), x.shape[2:])
        return laid_out_like(self.bn(self.out(F.relu(torch.cat([found, rest], dim=1)))), x)
