r"""Multi-scale dilated attention (DilateFormer).

Jiao et al., *DilateFormer: Multi-Scale Dilated Transformer for Visual Recognition*, IEEE Transactions on Multimedia
2023, https://arxiv.org/abs/2302.01791

.. math:: a_{i,t} = \mathrm{softmax}_{t \in [-1, 1]^2}\Big(\frac{q_i \cdot k_{i + r t}}{\sqrt d}\Big), \qquad
          y_i = W_p \Big[\sum_t a_{i,t}\, v_{i + r t}\Big]_{\text{heads}} + b_p

where q, k, v are ``qkv`` and W_p is ``out``. Every pixel looks at 3x3 pixels, r apart; the heads are shared out
evenly, in order, among the dilations r.

Differences from the paper: the paper has dilations 1, 2 and 3, for which the number of heads, and so the channels,
must be a multiple of three. That is what you get wherever it is one: three heads, or a multiple with at least 24
channels each (72 channels have 3 heads, 192 have 6, as in the published networks). Otherwise there are the dilations
1 to D with D the first of 4, 2, 1 that divides the heads, and the heads, if not given, are D times as many as leave
24 channels to each, but at least D. This is our choice; the papers' networks have no such widths. As in the authors'
code, keys and values outside of the map are zero and keep their share of the softmax, so rows of :meth:`attention`
sum to less than one at the border. The authors' code also overwrites its input; this does not. Many copies have eight
heads with the dilations 2 and 3; that in Plug-play-modules reads (B, H, W, C) where its example says (B, C, H, W).

>>> import torch
>>> dilated = Dilated(72)
>>> x = torch.randn(2, 72, 8, 6)
>>> dilated(x).shape, dilated.attention(x).shape, dilated.dilations, Dilated(64).dilations
(torch.Size([2, 72, 8, 6]), torch.Size([2, 3, 48, 48]), (1, 2, 3), (1, 2, 3, 4))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import largest_divisor
from visattn.blocks.widths import fitting_heads, odd
from visattn.blocks.windows import pixel_numbers, spread
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise

NUMBERS = (3, 4, 2, 1)  # of dilations, the best first
WIDTH = 24  # of a head, at least


@register_block(
    "dilated",
    family="self",
    paper="Jiao et al., TMM 2023, arXiv:2302.01791",
    used_in="the first two stages of DilateFormer",
)
class Dilated(nn.Module):
    """Every pixel attends to the nine around it, near in some heads and further apart in others.

    Args:
        channels: C.
        heads: must divide C; see above for what it is unless given.
        dilations: a distance r for every group of heads; their number must divide the heads; 1, 2, 3 if that fits.
        kernel_size: side of the neighbourhood; an odd number.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        dilations: int | tuple[int, ...] | None = None,
        kernel_size: int = 3,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        odd("dilated", kernel_size=kernel_size)
        given = (dilations,) if isinstance(dilations, int) else dilations
        if given is not None and (not given or min(given) < 1):
            raise ValueError(f"block 'dilated' needs dilations from one up, got {dilations}")
        if heads is None:
            number = len(given) if given is not None else next(n for n in NUMBERS if channels % n == 0)
            heads = number * largest_divisor(channels // number, channels // number // WIDTH)
        self.heads = fitting_heads("dilated", channels, heads, most=heads)
        best = next(number for number in NUMBERS if self.heads % number == 0)
        self.dilations = tuple(range(1, best + 1)) if given is None else tuple(given)
        if self.heads % len(self.dilations):
            raise ValueError(f"block 'dilated' has {self.heads} heads for {len(self.dilations)} dilations")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.scale = (channels // self.heads) ** -0.5
        self.kernel_size = kernel_size
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, **factory)
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A small projection."""
        nn.init.trunc_normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]  # built with one

    def _shares(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values (B, C/D, H, W) of every dilation."""
        query, key, value = (each.chunk(len(self.dilations), dim=1) for each in self.qkv(x).chunk(3, dim=1))
        return list(zip(query, key, value, strict=True))

    def _around(self, x: Tensor, dilation: int) -> Tensor:
        """The neighbours of every pixel, (B, C/D, H, W) -> (B, heads/D, d, k², N)."""
        margin = dilation * (self.kernel_size // 2)
        near = F.unfold(x, self.kernel_size, dilation=dilation, padding=margin)
        return near.unflatten(1, (self.heads // len(self.dilations), -1, self.kernel_size**2))

    def _weights(self, query: Tensor, key: Tensor, dilation: int) -> Tensor:
        """(B, heads/D, k², N), in single precision at least."""
        query = query.flatten(2).unflatten(1, (self.heads // len(self.dilations), -1)).unsqueeze(3)
        energies = (precise(query) * precise(self._around(key, dilation))).sum(2)
        return F.softmax(energies * self.scale, dim=2)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N)."""
        weights = []
        for (query, key, _), dilation in zip(self._shares(x), self.dilations, strict=True):
            margin = dilation * (self.kernel_size // 2)
            near = pixel_numbers(x, margin).unfold(2, 2 * margin + 1, 1).unfold(3, 2 * margin + 1, 1)
            near = near[..., ::dilation, ::dilation].flatten(4).flatten(0, 3)  # (N, k²)
            weights.append(spread(self._weights(query, key, dilation).mT, near, x.shape[2] * x.shape[3]))
        return torch.cat(weights, dim=1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        contexts = []
        for (query, key, value), dilation in zip(self._shares(x), self.dilations, strict=True):
            weights = self._weights(query, key, dilation).unsqueeze(2)
            context = (weights * precise(self._around(value, dilation))).sum(3)  # (B, heads/D, d, N)
            contexts.append(context.flatten(1, 2).to(value.dtype))
        joined = torch.cat(contexts, dim=1).unflatten(2, x.shape[2:])
        return laid_out_like(self.out(joined), x)
