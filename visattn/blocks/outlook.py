r"""Outlook attention (VOLO).

Yuan et al., *VOLO: Vision Outlooker for Visual Recognition*, TPAMI 2022, https://arxiv.org/abs/2106.13112

.. math:: A_c = \mathrm{softmax}_t\Big(\frac{(W_a u_c + b_a)_{r,t}}{\sqrt d}\Big), \qquad
          \tilde y_p = \sum_{c,\,r:\ c + \delta_r = p}\ \sum_t A_c[r, t]\, v_{c + \delta_t}, \ \ y = W_p \tilde y + b_p

where c are the centres of windows, every s-th row and column, u (average of s x s pixels) is what a centre knows, δ
are the k² pixels around a centre, v = W_v x is ``value``, W_a is ``energies`` (of shape heads·k⁴, C: no keys are
compared, a centre says by itself how its neighbours mix) and W_p is ``out``. Windows overlap, and what they give a
pixel is added up.

Differences from the paper: none. k = 3, s = 2 and 32 channels per head, as in the published networks; the authors'
class itself defaults to s = 1. Other widths get the largest number of heads that divides them and leaves at least 32
channels to each. Neighbours outside the map have the value zero and keep their share of the softmax, as in the
authors' code, so the rows of :meth:`attention` do not sum to one. Common copies compute the same with s = 1; that in
External-Attention-pytorch has a single head and dropout.

>>> import torch
>>> outlook = Outlook(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> outlook(x).shape, outlook.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 2, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import spread_tiles, start_small
from visattn.blocks.widths import fitting_heads, odd
from visattn.blocks.windows import averages, pixel_numbers
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise


@register_block(
    "outlook", family="self", paper="Yuan et al., TPAMI 2022, arXiv:2106.13112", used_in="the first stage of VOLO"
)
class Outlook(nn.Module):
    """Every second pixel says how the pixels around it mix.

    Args:
        channels: C.
        heads: must divide C; C/32, or fewer, unless given.
        kernel_size: side k of a window; an odd number.
        stride: distance s of two centres.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        kernel_size: int = 3,
        stride: int = 2,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        odd("outlook", most=31, kernel_size=kernel_size)
        positive("outlook", stride=stride)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("outlook", channels, heads, most=max(1, channels // 32))
        self.scale = (channels // self.heads) ** -0.5
        self.kernel_size = kernel_size
        self.stride = stride
        self.value = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.energies = nn.Conv2d(channels, self.heads * kernel_size**4, 1, **factory)
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights."""
        start_small(self)

    def _weights(self, x: Tensor) -> Tensor:
        """A, (B, heads, centres, k², k²)."""
        energies = self.energies(averages(x, self.stride)).flatten(2).mT
        energies = energies.unflatten(2, (self.heads, self.kernel_size**2, -1))
        return F.softmax(energies.transpose(1, 2) * self.scale, dim=-1)

    def attention(self, x: Tensor) -> Tensor:
        """The total weight with which every position (row) reads every other, (B, heads, N, N)."""
        height, width = x.shape[2:]
        size, step, margin = self.kernel_size, self.stride, self.kernel_size // 2
        around = pixel_numbers(x, margin).unfold(2, size, step).unfold(3, size, step)
        around = around.flatten(4).flatten(0, 3)  # (centres, k²)
        return spread_tiles(self._weights(x), around, around, height * width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        window: dict[str, Any] = {
            "kernel_size": self.kernel_size,
            "padding": self.kernel_size // 2,
            "stride": self.stride,
        }
        value = F.unfold(self.value(x), **window).unflatten(1, (self.heads, -1, self.kernel_size**2))
        mixed = self._weights(x) @ value.permute(0, 1, 4, 3, 2)  # (B, heads, centres, k², d)
        mixed = mixed.permute(0, 1, 4, 3, 2).flatten(1, 3)  # (B, C·k², centres)
        y = F.fold(precise(mixed), (x.shape[2], x.shape[3]), **window).to(mixed.dtype)
        return laid_out_like(self.out(y), x)
