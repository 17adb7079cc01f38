r"""Perceiver attention: latents read the map, and the map reads the latents.

Jaegle et al., *Perceiver: General Perception with Iterative Attention*, ICML 2021, https://arxiv.org/abs/2103.03206,
and *Perceiver IO: A General Architecture for Structured Inputs & Outputs*, ICLR 2022,
https://arxiv.org/abs/2107.14795

.. math:: z = \mathrm{cross}_1(Z, x), \qquad y = \mathrm{cross}_2(x, z), \ \  \mathrm{cross}(a, m) = t + \mathrm{MLP}(t)

.. math:: t = a + W_o\, \mathrm{softmax}\big(Q(\mathrm{LN}\, a)\, K(\mathrm{LN}\, m)^\top / \sqrt d\big)\,
          V(\mathrm{LN}\, m) + b_o, \qquad \mathrm{MLP}(t) = W_2\, \mathrm{GELU}(W_1\, \mathrm{LN}\, t + b_1) + b_2

where Z (M, D) are ``latents``, learned and the same for all images, and the two crosses are ``read`` and ``write``. A
map of N pixels costs N·M products instead of N².

Differences from the paper: a cross-attention is the authors' (three norms, biases everywhere, queries as wide as the
keys' input, GELU by its tanh approximation). **Putting two of them together into a block for maps is ours**, and so
are the sizes, M = 64 and D = C: the Perceiver has 512 latents of 1024 channels and 48 layers of self-attention
between them, which are left out here, and reads positions, which this block does not know: it commutes with any
permutation of the pixels. Keeping the input in the second cross (t = a + ...) is an option of Perceiver IO that a
block needs. Weights start normal with the standard deviation of the authors' truncated normal. Norms and residual
connections are inside.

>>> import torch
>>> perceiver = Perceiver(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> perceiver(x).shape, perceiver.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import to_heads
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive


class Cross(nn.Module):
    """Tokens that read other tokens, and then think about it.

    Args:
        width: of the tokens that read.
        other: width of the tokens that are read, and of queries, keys and values.
        heads: must divide the latter.
    """

    def __init__(self, width: int, other: int, *, heads: int, **factory: Any) -> None:
        super().__init__()
        self.norm_query = nn.LayerNorm(width, **factory)
        self.norm_key = nn.LayerNorm(other, **factory)
        self.query = nn.Linear(width, other, **factory)
        self.key_value = nn.Linear(other, 2 * other, **factory)
        self.attend = Attention(other, score="scaled_dot", heads=heads)
        self.out = nn.Linear(other, width, **factory)
        self.norm = nn.LayerNorm(width, **factory)
        self.fc1 = nn.Linear(width, width, **factory)
        self.fc2 = nn.Linear(width, width, **factory)

    def _parts(self, tokens: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N, d), keys and values (B, M, d)."""
        key, value = self.key_value(self.norm_key(others)).chunk(2, dim=-1)
        return self.query(self.norm_query(tokens)), key, value

    def weights(self, tokens: Tensor, others: Tensor) -> Tensor:
        """What each of N tokens takes from each of M others, (B, heads, N, M)."""
        query, key, _ = self._parts(tokens, others)
        return self.attend.weights(query, key)

    def forward(self, tokens: Tensor, others: Tensor) -> Tensor:
        """(B, N, width), (B, M, other) -> (B, N, width)."""
        t = tokens + self.out(self.attend(*self._parts(tokens, others)))
        return t + self.fc2(F.gelu(self.fc1(self.norm(t)), approximate="tanh"))


@register_block("perceiver", family="self", paper="Jaegle et al., ICML 2021, arXiv:2103.03206", used_in="the Perceiver")
class Perceiver(nn.Module):
    """A few learned vectors read the map, and every pixel reads them; linear in the pixels.

    Args:
        channels: C.
        latents: how many there are, M.
        latent_dim: their width D; C unless given.
        heads: must divide C and D.
    """

    def __init__(
        self,
        channels: int,
        *,
        latents: int = 64,
        latent_dim: int | None = None,
        heads: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        width = channels if latent_dim is None else latent_dim
        positive("perceiver", latents=latents, latent_dim=width)
        if heads < 1 or channels % heads or width % heads:
            raise ValueError(
                f"block 'perceiver' has {heads} heads, which do not divide {channels} channels and latents of {width}"
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = heads
        self.latents = nn.Parameter(torch.empty(latents, width, **factory))
        self.read = Cross(width, channels, heads=heads, **factory)
        self.write = Cross(channels, width, heads=heads, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Layers that keep the size of numbers, and small latents."""
        nn.init.trunc_normal_(self.latents, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
                nn.init.zeros_(layer.bias)

    def _latents(self, x: Tensor) -> Tensor:
        return self.latents.expand(x.shape[0], -1, -1)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other through the latents, (B, heads, N, N)."""
        pixels, latents = to_heads(x, 1).squeeze(1), self._latents(x)
        read = self.read.weights(latents, pixels)  # (B, heads, M, N)
        return self.write.weights(pixels, self.read(latents, pixels)) @ read

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        pixels = to_heads(x, 1).squeeze(1)  # (B, N, C)
        y = self.write(pixels, self.read(self._latents(x), pixels))
        return laid_out_like(y.mT.unflatten(2, x.shape[2:]), x)
