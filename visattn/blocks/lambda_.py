r"""Lambda layer: every query is multiplied by a matrix made of its surroundings.

Bello, *LambdaNetworks: Modeling Long-Range Interactions Without Attention*, ICLR 2021, https://arxiv.org/abs/2102.08602

.. math:: \lambda^c = \sum_m \mathrm{softmax}_m(K)_m V_m^\top, \qquad
          \lambda^p_n = \sum_{m \in r \times r(n)} E_{m-n} V_m^\top, \qquad
          y^h_n = (\lambda^c + \lambda^p_n)^\top q^h_n

where q (``query``, with a norm) has k = ``key_channels`` = 16 channels for each head h, and K (``key``) and V
(``value``, with a norm) are shared by the heads. λ^c, a k x C/heads matrix, is of the whole map; λ^p_n is of the r x r
window around pixel n (``kernel_size`` = 23), with E = ``embedding``, a convolution of every channel of V, zeros
outside the map.

Differences from the paper: none in the equation, which is that of its listing; other code was announced and cannot be
found, so the initialisation is ours (that of timm). Four heads where they divide the channels, else the largest smaller
number that does. How the paper strides is not certain: here the output is averaged over stride x stride pixels.
``groups`` are ours: those of V, what a convolution would sum up; queries and keys, which say where, are made of all
channels. timm's ``LambdaLayer`` is the same with a bias on E; copies take the softmax over the k channels, but it is
over positions.

There are no attention weights in this layer; :meth:`attention` returns the equivalent linear ones, q_n·(K_m + E_{m-n}).

>>> import torch
>>> layer = LambdaLayer(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> layer(x).shape, layer.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 4, 48, 48]))
>>> LambdaLayer(64, out_channels=32, stride=2)(x).shape
torch.Size([2, 32, 4, 3])
"""

from __future__ import annotations

from typing import Any

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.primitives import Pointwise, convolve
from visattn.blocks.widths import fitting_heads, odd, output_width
from visattn.blocks.windows import averages, neighbours, spread
from visattn.core.arguments import Device, DType, positive


@register_block("lambda", family="self", paper="Bello, ICLR 2021, arXiv:2102.08602")
class LambdaLayer(nn.Module):
    """Content and position summarised in a linear map for every query, in the place of a convolution.

    Args:
        channels: C of the input.
        out_channels: of the output; as many as of the input unless given.
        stride: the output is averaged over stride x stride pixels.
        key_channels: k of a query and a key.
        kernel_size: side r of the window of the positions; an odd number.
        heads: queries for every pixel; must divide the channels of the output; at most 4 unless given.
        groups: of the convolution that makes the values; must divide those of a head.
    """

    def __init__(
        self,
        channels: int,
        *,
        out_channels: int | None = None,
        stride: int = 1,
        key_channels: int = 16,
        kernel_size: int = 23,
        heads: int | None = None,
        groups: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = output_width("lambda", channels, out_channels, stride, groups)
        positive("lambda", key_channels=key_channels)
        odd("lambda", kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("lambda", width, heads, most=4, parts=groups)
        self.stride = stride
        self.query = Pointwise(channels, self.heads * key_channels, bias=False, **factory)
        self.bn_query = nn.BatchNorm1d(self.heads * key_channels, **factory)
        self.key = Pointwise(channels, key_channels, bias=False, **factory)
        self.value = Pointwise(channels, width // self.heads, bias=False, groups=groups, **factory)
        self.bn_value = nn.BatchNorm2d(width // self.heads, **factory)
        self.embedding = nn.Conv2d(1, key_channels, kernel_size, padding=kernel_size // 2, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections that keep the size of numbers, position embeddings of unit length on average."""
        for layer in (self.query, self.key, self.value):
            nn.init.trunc_normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
        nn.init.trunc_normal_(self.embedding.weight, std=self.embedding.out_channels**-0.5)

    def _queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, heads, k, N) and keys (B, k, N) whose weights of the positions sum to one."""
        # Flat: torch 2.15 gets the gradient of a 2-D batch norm wrong in the layout that the product below gives it.
        query = self.bn_query(self.query(x).flatten(2)).unflatten(1, (self.heads, -1))
        return query, F.softmax(self.key(x).flatten(2), dim=-1)

    def attention(self, x: Tensor) -> Tensor:
        """The linear weights of every position (row) for the values of every other, (B, heads, N, N)."""
        query, key = self._queries_keys(x)
        window = query.mT @ self.embedding.weight.flatten(1)  # (B, heads, N, r²)
        position = spread(window, neighbours(x, self.embedding.kernel_size[0]), key.shape[-1])
        return query.mT @ key.unsqueeze(1) + position

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        query, key = self._queries_keys(x)
        value = self.bn_value(self.value(x))  # (B, v, H, W)
        content = key @ value.flatten(2).mT  # (B, k, v)
        position = convolve_within(value.flatten(0, 1).unsqueeze(1), self.embedding.weight)  # (B·v, k, H, W)
        position = position.flatten(2).unflatten(0, value.shape[:2]).permute(0, 3, 2, 1)  # (B, N, k, v)
        y = query.permute(0, 3, 1, 2) @ (content.unsqueeze(1) + position)  # (B, N, heads, v)
        y = y.flatten(2).mT.unflatten(2, x.shape[2:])
        return laid_out_like(averages(y, self.stride), x)


def convolve_within(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve maps, zeros outside, with the part of a kernel that reaches from one pixel of the map to another.

    Of 23 x 23 weights, a map of 7 x 7 pixels meets only the inner 13 x 13.
    """
    # The strides of an axis of length one say "channels last", which is twice as slow for maps of one channel.
    weight = weight.squeeze(1).unsqueeze(1)
    rows, columns = weight.shape[2] // 2, weight.shape[3] // 2
    up, left = min(rows, x.shape[2] - 1), min(columns, x.shape[3] - 1)
    inner = weight.narrow(2, rows - up, 2 * up + 1).narrow(3, columns - left, 2 * left + 1)
    return convolve(F.pad(x, (left, left, up, up)), inner)  # ONNX has no padding by a number that it does not know


torch.fx.wrap("convolve_within")  # one step for torch.fx: it decides by the shape of real tensors
