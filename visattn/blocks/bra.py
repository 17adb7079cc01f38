r"""Bi-level routing attention (BiFormer).

Zhu et al., *BiFormer: Vision Transformer with Bi-Level Routing Attention*, CVPR 2023, https://arxiv.org/abs/2303.08810

.. math:: I_r = \mathrm{topk}_{r'}(\bar q_r \cdot \bar k_{r'}), \qquad
          A_i = \mathrm{softmax}_{j \in I_{r(i)}}\Big(\frac{q_i \cdot k_j}{\sqrt C}\Big), \qquad
          y = W_o (A v + \mathrm{LCE}(v)) + b_o

The map is cut into S x S regions; :math:`\bar q_r` and :math:`\bar k_r` are the means of a region, and a pixel
attends to the pixels of the k = ``topk`` regions that its own region likes best. q, k, v are ``qkv``, LCE is
``local``, a depthwise 5x5 convolution, and W_o is ``out``. Which regions are chosen is the same for all heads and is
not differentiated. The scale has the width C of all heads together, as in the authors' code.

Differences from the paper: none on maps whose sides are multiples of S. Other maps are filled up with zeros below and
to the right before ``qkv``, as in the authors' detection code: what was filled in takes part like any other pixel
(with biases for features), and is cut off at the end. S = 7, 32 channels per head and k = 4 as in the second stage of
the published networks (1, 4 and 16 by stage; their last stage attends to everything); other widths get the largest
number of heads that divides them and leaves at least 32 channels to each. The means are taken of x and projected,
which is the same as means of projections, and is done in single precision, so that half precision chooses the same
regions. Common copies have eight heads and a depthwise 3x3 convolution; their variant that stays in (B, C, H, W) cuts
maps whose sides are no multiples of S into regions of ⌊H/S⌋ x ⌊W/S⌋ pixels, of which there are more than S along a
side.

>>> import torch
>>> bra = BiLevelRouting(64)
>>> x = torch.randn(2, 64, 14, 7)
>>> bra(x).shape, bra.attention(x).shape
(torch.Size([2, 64, 14, 7]), torch.Size([2, 2, 98, 98]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import from_tiles, padded, start_small, tiles, to_heads, to_map
from visattn.blocks.widths import fitting_heads, odd
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import attention_weights, fused_attention
from visattn.core.energies import dot
from visattn.core.precision import precise, without_autocast


@register_block("bra", family="self", paper="Zhu et al., CVPR 2023, arXiv:2303.08810", used_in="the blocks of BiFormer")
class BiLevelRouting(nn.Module):
    """Regions choose regions, and their pixels attend to the pixels of the chosen ones.

    Args:
        channels: C.
        heads: must divide C; C/32, or fewer, unless given.
        regions: S, how many regions there are along each side.
        topk: how many regions a region attends to.
        kernel_size: of the depthwise convolution; an odd number.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        regions: int = 7,
        topk: int = 4,
        kernel_size: int = 5,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("bra", regions=regions, topk=topk)
        odd("bra", kernel_size=kernel_size)
        if topk > regions**2:
            raise ValueError(f"block 'bra' cannot choose {topk} of {regions}x{regions} regions")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("bra", channels, heads, most=max(1, channels // 32))
        self.scale = channels**-0.5
        self.regions = regions
        self.topk = topk
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, **factory)
        self.local = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, **factory)
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights."""
        start_small(self)

    def _chosen(self, x: Tensor) -> Tensor:
        """Which regions every region attends to, (B, S², k), of a map whose sides are multiples of S."""
        size = (x.shape[2] // self.regions, x.shape[3] // self.regions)
        weight, bias = precise(self.qkv.weight.detach()), precise(self.qkv.bias.detach())  # type: ignore[union-attr]  # built with one
        means = tiles(x.detach(), *size).mean((2, 3), dtype=weight.dtype).unflatten(0, (-1, self.regions**2))
        with without_autocast(x.device):
            means = F.linear(means, weight.flatten(1), bias)
        query, key, _ = means.chunk(3, dim=-1)  # (B, S², C)
        return dot(query, key).topk(self.topk, dim=-1).indices

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N); less than one if it saw the filling."""
        full = padded(x, self.regions, self.regions)
        height, width = full.shape[2:]
        query, key, _ = (to_heads(each, self.heads) for each in self.qkv(full).chunk(3, dim=1))
        row, column = (torch.arange(side, device=x.device) * self.regions // side for side in (height, width))
        region = (row[:, None] * self.regions + column).flatten()  # of every pixel
        choice = F.one_hot(self._chosen(full), self.regions**2).sum(2).bool()  # (B, S², S²)
        visible = choice[:, region][:, :, region].unsqueeze(1)
        weights = attention_weights(query, key, scale=self.scale, mask=visible).to(x.dtype)
        weights = weights.unflatten(3, (height, width)).unflatten(2, (height, width))
        inside = weights[:, :, : x.shape[2], : x.shape[3], : x.shape[2], : x.shape[3]]
        return inside.flatten(4).flatten(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        full = padded(x, self.regions, self.regions)
        size = (full.shape[2] // self.regions, full.shape[3] // self.regions)
        qkv = self.qkv(full)
        value_map = qkv.chunk(3, dim=1)[2]
        query, key, value = (to_heads(each, self.heads) for each in tiles(qkv, *size).chunk(3, dim=1))
        chosen = self._chosen(full)  # (B, S², k)
        key, value = (self._gathered(each, chosen) for each in (key, value))
        context = fused_attention(query, key, value, scale=self.scale)  # (B·S², heads, pixels of a region, d)
        context = from_tiles(to_map(context, size), self.regions, self.regions)
        y = self.out(context + self.local(value_map))
        return laid_out_like(y[:, :, : x.shape[2], : x.shape[3]], x)

    def _gathered(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """The tokens (B·S², heads, n, d) of the chosen regions, (B·S², heads, k·n, d)."""
        number = self.regions**2
        start = torch.arange(chosen.shape[0], device=chosen.device)[:, None, None] * number  # of every image
        picked = tokens[(chosen + start).flatten(0, 1)]  # (B·S², k, heads, n, d)
        return picked.transpose(1, 2).flatten(2, 3)
