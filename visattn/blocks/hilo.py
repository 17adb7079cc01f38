r"""HiLo attention (LITv2).

Pan et al., *Fast Vision Transformers with HiLo Attention*, NeurIPS 2022, https://arxiv.org/abs/2205.13213

.. math:: y = [\, W_h\, \mathrm{attend}(q, k, v \text{ of a window}) + b_h\ ;\
                  W_l\, \mathrm{attend}(q, W_{kv}\, \mathrm{AvgPool}_s(x)) + b_l \,], \qquad
          \mathrm{attend}(q, k, v) = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt d)\, v_j

High frequencies live within s x s tiles, low ones in their averages: the first heads (Hi-Fi, ``high``) attend within
a tile, the others (Lo-Fi, ``low``) from every pixel to the averages of all tiles. Both see all channels; W_h and W_l
are their ``out``. Of all heads the share α = ``alpha``, rounded down, is Lo-Fi. With s = ``window`` = 1 all are,
which is plain self-attention.

Differences from the paper: none on maps whose sides are multiples of s. Others are filled up with zeros below and to
the right, which take part and are cut off at the end, as in the authors' detection code. s = 2, α = 0.9 and biases as
in the published networks, with 32 channels per head. Other widths get the largest number of heads that divides them
and leaves at least 32 channels to each, but two heads where possible, since one would be Hi-Fi alone.
:meth:`attention` shares what an average receives evenly among its pixels, which is exact. Common copies have eight
heads, half of them Lo-Fi, no biases for q, k and v, and take only maps whose sides are multiples of s.

>>> import torch
>>> hilo = HiLo(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> hilo(x).shape, hilo.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 2, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import (
    from_tiles,
    padded,
    spread_tiles,
    start_small,
    tiles,
    to_heads,
    to_map,
)
from visattn.blocks.widths import fitting_heads
from visattn.blocks.windows import pixel_numbers
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive


class HiFi(nn.Module):
    """Attention within tiles.

    Args:
        channels: of the input.
        heads: of this half.
        width: of a head.
        window: side of a tile.
    """

    def __init__(self, channels: int, *, heads: int, width: int, window: int, **factory: Any) -> None:
        super().__init__()
        self.heads = heads
        self.window = window
        self.qkv = nn.Conv2d(channels, 3 * heads * width, 1, **factory)
        self.attend = Attention(width, score="scaled_dot")
        self.out = nn.Conv2d(heads * width, heads * width, 1, **factory)

    def _parts(self, full: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of every tile, (B·tiles, heads, window², d)."""
        of_tiles = tiles(self.qkv(full), self.window, self.window).chunk(3, dim=1)
        return tuple(to_heads(each, self.heads) for each in of_tiles)

    def weights(self, full: Tensor, numbers: Tensor, pixels: int) -> Tensor:
        """(B, heads, N, N), given the number of every pixel of the map, filling included."""
        query, key, _ = self._parts(full)
        inside = tiles(numbers, self.window, self.window).flatten(1)  # (tiles, window²)
        weights = self.attend.head_weights(query, key).unflatten(0, (full.shape[0], -1)).transpose(1, 2)
        return spread_tiles(weights, inside, inside, pixels)

    def forward(self, full: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, heads·d, H, W), of a map made of whole tiles."""
        context = to_map(self.attend.head_context(*self._parts(full)), (self.window, self.window))
        return self.out(from_tiles(context, full.shape[2] // self.window, full.shape[3] // self.window))


class LoFi(nn.Module):
    """Attention to the averages of tiles. Arguments: see :class:`HiFi`."""

    def __init__(self, channels: int, *, heads: int, width: int, window: int, **factory: Any) -> None:
        super().__init__()
        self.heads = heads
        self.window = window
        self.query = nn.Conv2d(channels, heads * width, 1, **factory)
        self.key_value = nn.Conv2d(channels, 2 * heads * width, 1, **factory)
        self.attend = Attention(width, score="scaled_dot")
        self.out = nn.Conv2d(heads * width, heads * width, 1, **factory)

    def _parts(self, full: Tensor) -> tuple[Tensor, ...]:
        """Queries (B, heads, N, d), and keys and values (B, heads, M, d)."""
        average = F.avg_pool2d(full, self.window) if self.window > 1 else full
        each = (self.query(full), *self.key_value(average).chunk(2, dim=1))
        return tuple(to_heads(part, self.heads) for part in each)

    def weights(self, full: Tensor, numbers: Tensor, pixels: int) -> Tensor:
        """(B, heads, N, N), given the number of every pixel of the map, filling included."""
        query, key, _ = self._parts(full)
        weights = self.attend.head_weights(query, key) / self.window**2
        weights = weights.repeat_interleave(self.window**2, dim=3).unsqueeze(2)  # to every pixel of a tile
        averaged = tiles(numbers, self.window, self.window)
        return spread_tiles(weights, numbers.reshape(1, -1), averaged.reshape(1, -1), pixels)

    def forward(self, full: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, heads·d, H, W), of a map made of whole tiles."""
        return self.out(to_map(self.attend.head_context(*self._parts(full)), full.shape[2:]))


@register_block(
    "hilo", family="self", paper="Pan et al., NeurIPS 2022, arXiv:2205.13213", used_in="the blocks of LITv2"
)
class HiLo(nn.Module):
    """Some heads attend within small tiles, the others to the averages of tiles.

    Args:
        channels: C.
        heads: must divide C; C/32, or fewer, but two if possible, unless given.
        window: side s of a tile.
        alpha: share of the heads that attend to averages.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        window: int = 2,
        alpha: float = 0.9,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("hilo", window=window)
        if not 0 <= alpha <= 1:
            raise ValueError(f"block 'hilo' needs alpha between zero and one, got {alpha}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("hilo", channels, heads, most=max(2, channels // 32))
        self.window = window
        low = self.heads if window == 1 else int(self.heads * alpha)
        size: dict[str, Any] = {"width": channels // self.heads, "window": window}
        self.high = HiFi(channels, heads=self.heads - low, **size, **factory) if low < self.heads else None
        self.low = LoFi(channels, heads=low, **size, **factory) if low else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights."""
        start_small(self)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, heads, N, N); less than one if it saw the filling."""
        pixels = x.shape[2] * x.shape[3]
        numbers = padded(pixel_numbers(x), self.window, self.window, value=pixels)
        full = padded(x, self.window, self.window)
        halves = [half.weights(full, numbers, pixels) for half in (self.high, self.low) if half is not None]
        return torch.cat(halves, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        full = padded(x, self.window, self.window)
        y = torch.cat([half(full) for half in (self.high, self.low) if half is not None], dim=1)
        return laid_out_like(y[:, :, : x.shape[2], : x.shape[3]], x)
