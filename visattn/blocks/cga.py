r"""Cascaded group attention (EfficientViT).

Liu et al., *EfficientViT: Memory Efficient Vision Transformer with Cascaded Group Attention*, CVPR 2023,
https://arxiv.org/abs/2305.07027

.. math:: u_n = x_n + y_{n-1}, \qquad (q, k, v) = \mathrm{BN}(W_n u_n), \quad q \leftarrow \mathrm{BN}(\mathrm{DW}_n(q))

.. math:: y_n = \sum_j \mathrm{softmax}_j\Big(\frac{q_i \cdot k_j}{\sqrt{d_k}} + b_n[|\Delta y|, |\Delta x|]\Big)\, v_j,
          \qquad y = \mathrm{BN}(W_p\, \mathrm{ReLU}([y_0; y_1; \dots]))

Head n sees its own share x_n of the channels and what the head before has made of its share. W_n is ``qkv``, DW_n
``depthwise`` and b_n ``position`` (one number for every distance in rows and columns) of ``cascade[n]``; W_p is
``out``.

Differences from the paper: none from the authors' code. Maps of at most 7x7 pixels are one window; larger ones are
filled up with zeros to multiples of 7 and cut into windows, each of which goes through the block by itself (at its
edges the depthwise convolutions see zeros, and what was filled in takes part). The authors' code runs on small maps
only if they are as large as the table of distances; here any H x W uses the top left corner of the table. Four heads
with keys of 16 channels and 5x5 convolutions, as in EfficientViT-M0 and M3; fewer heads where four do not divide the
channels. The batch norm of W_p starts at zero, so this block, to which a network adds its input, is zero at first.
Common copies compute the same; those without windows are bound to one square map and have keys of C/16 channels.

>>> import torch
>>> cga = CascadedGroup(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> cga(x).shape, cga.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import from_tiles, padded, spread_tiles, tiles, to_heads, to_map
from visattn.blocks.widths import fitting_heads, odd
from visattn.blocks.windows import pixel_numbers
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive


class Head(nn.Module):
    """One head: attention within a window.

    Args:
        width: of its share of the channels, and of its values.
        key_dim: of its queries and keys.
        kernel_size: of the depthwise convolution; an odd number.
        window: largest height and width that distances are stored for.
    """

    def __init__(self, width: int, *, key_dim: int, kernel_size: int, window: int, **factory: Any) -> None:
        super().__init__()
        self.widths = [key_dim, key_dim, width]
        self.qkv = nn.Conv2d(width, sum(self.widths), 1, bias=False, **factory)
        self.bn = nn.BatchNorm2d(sum(self.widths), **factory)
        depthwise: dict[str, Any] = {"padding": kernel_size // 2, "groups": key_dim, "bias": False}
        self.depthwise = nn.Conv2d(key_dim, key_dim, kernel_size, **depthwise, **factory)
        self.bn_query = nn.BatchNorm2d(key_dim, **factory)
        self.position = nn.Parameter(torch.zeros(window, window, **factory))
        self.attend = Attention(key_dim, score="scaled_dot")

    def _parts(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values (B, 1, n, d) and the bias (n, n)."""
        query, key, value = self.bn(self.qkv(u)).split(self.widths, dim=1)
        query, key, value = (to_heads(each, 1) for each in (self.bn_query(self.depthwise(query)), key, value))
        row, column = (torch.arange(length, device=u.device) for length in u.shape[2:])
        down, across = (row[:, None] - row).abs(), (column[:, None] - column).abs()
        bias = self.position[down[:, None, :, None], across[None, :, None, :]]  # (h, w, h, w)
        return query, key, value, bias.flatten(2).flatten(0, 1)

    def weights(self, u: Tensor) -> Tensor:
        """(B, 1, n, n)."""
        query, key, _, bias = self._parts(u)
        return self.attend.head_weights(query, key, bias)

    def forward(self, u: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, width, h, w)."""
        query, key, value, bias = self._parts(u)
        return to_map(self.attend.head_context(query, key, value, bias.to(query.dtype)), u.shape[2:])


@register_block(
    "cga", family="self", paper="Liu et al., CVPR 2023, arXiv:2305.07027", used_in="the blocks of EfficientViT"
)
class CascadedGroup(nn.Module):
    """Heads on shares of the channels, one after the other, in windows.

    Args:
        channels: C.
        heads: must divide C; 4, or fewer, unless given.
        key_dim: channels of a query and of a key.
        kernel_size: of the depthwise convolutions of the queries, odd; one number, or one for every head.
        window: side of a window.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        key_dim: int = 16,
        kernel_size: int | tuple[int, ...] = 5,
        window: int = 7,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("cga", key_dim=key_dim, window=window)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        number = fitting_heads("cga", channels, heads, most=4)
        kernels = (kernel_size,) * number if isinstance(kernel_size, int) else kernel_size
        if len(kernels) != number:
            raise ValueError(f"block 'cga' has {number} heads, but kernel_size {kernel_size}")
        for each in kernels:
            odd("cga", kernel_size=each)
        self.window = window
        self.cascade = nn.ModuleList(
            Head(channels // number, key_dim=key_dim, kernel_size=each, window=window, **factory) for each in kernels
        )
        self.out = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.bn = nn.BatchNorm2d(channels, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Nothing at first."""
        nn.init.zeros_(self.bn.weight)

    def _size(self, x: Tensor) -> tuple[int, int]:
        """Of a window: the whole map, if it is small enough."""
        height, width = x.shape[2:]
        return (height, width) if max(height, width) <= self.window else (self.window, self.window)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other of its window, (B, heads, N, N)."""
        size, pixels = self._size(x), x.shape[2] * x.shape[3]
        of_pixels = padded(pixel_numbers(x), *size, value=pixels)
        inside = tiles(of_pixels, *size).flatten(1)  # (windows, n)
        shares = tiles(padded(x, *size), *size).chunk(len(self.cascade), dim=1)
        y = torch.zeros_like(shares[0])
        weights = []
        for head, share in zip(self.cascade, shares, strict=True):
            weights.append(head.weights(share + y))  # type: ignore[operator]
            y = head(share + y)
        every = torch.cat(weights, dim=1).unflatten(0, (x.shape[0], -1)).transpose(1, 2)  # (B, heads, windows, n, n)
        return spread_tiles(every, inside, inside, pixels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        size = self._size(x)
        full = padded(x, *size)
        shares = tiles(full, *size).chunk(len(self.cascade), dim=1)
        y = torch.zeros_like(shares[0])
        collected = []
        for head, share in zip(self.cascade, shares, strict=True):
            y = head(share + y)
            collected.append(y)
        heads = from_tiles(torch.cat(collected, dim=1), full.shape[2] // size[0], full.shape[3] // size[1])
        y = self.bn(self.out(F.relu(heads)))
        return laid_out_like(y[:, :, : x.shape[2], : x.shape[3]], x)
