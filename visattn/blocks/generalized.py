r"""Generalized attention: four ways to compare two pixels.

Zhu et al., *An Empirical Study of Spatial Attention Mechanisms in Deep Networks*, ICCV 2019,
https://arxiv.org/abs/1904.05873

.. math:: z_i = x_i + \gamma \Big(W_p \sum_j \mathrm{softmax}_j\big(
          \underbrace{q_i \cdot k_j}_{E_1} + \underbrace{q_i \cdot r_{ij}}_{E_2} +
          \underbrace{u \cdot k_j}_{E_3} + \underbrace{w \cdot r_{ij}}_{E_4}\big)\, v_j + b_p\Big)

.. math:: r_{ij} = \big(W_x\, e(x_i - x_j) + W_y\, e(y_i - y_j)\big) / \sqrt 2, \qquad
          e(t) = [\sin(t / 1000^{4m/C});\ \cos(t / 1000^{4m/C})], \quad 0 \le m < C/4

where q, k, v are ``query``, ``key``, ``value``, W_x and W_y are ``across`` and ``down``, u and w are ``content`` and
``place``, W_p is ``out`` and γ is ``gamma``. Keys and values come from every s-th row and column, s = ``subsample`` =
2. There is no 1/sqrt(d). ``terms`` says which of the four are used, as the paper's tables do: "1111", or "0010" for
the cheapest that is still good.

Differences from the paper: none. γ starts at zero, so that the block starts as the identity, and there are 8 heads as
in the published detectors (at most as many as channels). OpenMMLab's version is the same where E_4 is used; with E_2
but without E_4 it reads the rows of the queries as columns, and this block does not. The channels must be a multiple
of four. Since q·r depends on the row and on the column of a key separately, it is written as H + W more features of
query and key, and the whole runs on the fused kernel without an N x M bias.

>>> import torch
>>> generalized = Generalized(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> torch.equal(generalized(x), x), generalized.attention(x).shape
(True, torch.Size([2, 8, 48, 12]))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import to_heads, to_map
from visattn.blocks.windows import by_column, by_row, with_places
from visattn.core.arguments import Device, DType, positive
from visattn.core.attention import attention_weights, fused_attention
from visattn.core.precision import precise


def waves(distance: Tensor, width: int) -> Tensor:
    """e(t): sines and then cosines of distances, (...) -> (..., width)."""
    exponent = torch.arange(width // 2, device=distance.device, dtype=distance.dtype) / (width / 2)
    angle = distance.unsqueeze(-1) * 1000.0**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


@register_block("generalized", family="self", paper="Zhu et al., ICCV 2019, arXiv:1904.05873")
class Generalized(nn.Module):
    """Attention to what and where: contents and relative positions, each with and without the query.

    Args:
        channels: C, a multiple of four.
        heads: each has C / heads channels, rounded down; 8, but at most C, unless given.
        subsample: keys are every s-th row and column.
        terms: four digits, one for each of E_1 to E_4: 1 if it is used, 0 if not.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        subsample: int = 2,
        terms: str = "1111",
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        if channels % 4:
            raise ValueError(f"block 'generalized' needs a multiple of four channels, got {channels}")
        self.heads = min(8, channels) if heads is None else heads
        positive("generalized", heads=self.heads, subsample=subsample)
        if self.heads > channels:
            raise ValueError(f"block 'generalized' has {self.heads} heads, more than its {channels} channels")
        if not isinstance(terms, str) or len(terms) != 4 or set(terms) - {"0", "1"} or "1" not in terms:
            raise ValueError(f"block 'generalized' needs terms of four digits 0 or 1, not all 0, got {terms!r}")
        self.by_query, self.where_by_query, self.by_content, self.where = (digit == "1" for digit in terms)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.subsample = subsample
        self.head_dim = channels // self.heads
        width = self.heads * self.head_dim
        asks, reads = self.by_query or self.where_by_query, self.by_query or self.by_content
        places = self.where_by_query or self.where
        self.query = nn.Conv2d(channels, width, 1, bias=False, **factory) if asks else None
        self.key = nn.Conv2d(channels, width, 1, bias=False, **factory) if reads else None
        self.value = nn.Conv2d(channels, width, 1, bias=False, **factory)
        self.across = nn.Linear(channels // 2, width, bias=False, **factory) if places else None
        self.down = nn.Linear(channels // 2, width, bias=False, **factory) if places else None
        self.content = nn.Parameter(torch.empty(width, **factory)) if self.by_content else None
        self.place = nn.Parameter(torch.empty(width, **factory)) if self.where else None
        self.out = nn.Conv2d(width, channels, 1, **factory)
        self.gamma = nn.Parameter(torch.empty(1, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The identity at first."""
        for layer in self.children():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, a=1)
        bound = (2 * self.head_dim) ** -0.5
        for vector in (self.content, self.place):
            if vector is not None:
                nn.init.uniform_(vector, -bound, bound)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]  # built with one
        nn.init.zeros_(self.gamma)

    def _table(self, layer: nn.Linear, length: int, query: Tensor) -> Tensor:
        """The embedding of the way to every position of an axis from every key's, (heads, L, L_k, d)."""
        place = torch.arange(length, device=query.device, dtype=precise(layer.weight).dtype)
        way = waves(place[:, None] - place[:: self.subsample], layer.in_features).to(layer.weight.dtype)
        return (layer(way) * 2**-0.5).unflatten(2, (self.heads, -1)).movedim(2, 0).to(query.dtype)

    def _summed(self, query: Tensor | None, vector: Tensor | None, x: Tensor) -> Tensor:
        """A query plus what is asked whatever the query is, (B, heads, H, W, d)."""
        shape = (x.shape[0], self.heads, x.shape[2], x.shape[3], self.head_dim)
        if vector is None:
            return x.new_empty(*shape[:-1], 0) if query is None else query  # asks for nothing
        vector = vector.view(self.heads, 1, 1, self.head_dim)
        return vector.expand(shape) if query is None else query + vector.to(query.dtype)

    def _queries_keys(self, x: Tensor, few: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, heads, N, d') and keys (B, heads, M, d'), whose product is the sum of the terms."""
        asked = None if self.query is None else to_heads(self.query(x), self.heads).unflatten(2, x.shape[2:])
        query = self._summed(asked if self.by_query else None, self.content, x)  # (B, heads, H, W, d)
        few = few.flatten(2).mT.unsqueeze(1)[..., :0] if self.key is None else to_heads(self.key(few), self.heads)
        if self.down is None or self.across is None:
            return query.flatten(2, 3), few
        place = self._summed(asked if self.where_by_query else None, self.place, x)
        along_h = by_row(place, self._table(self.down, x.shape[2], place))
        along_w = by_column(place, self._table(self.across, x.shape[3], place))
        return with_places(query, few.expand(-1, self.heads, -1, -1), along_h, along_w)

    def _few(self, x: Tensor) -> Tensor:
        return x[:, :, :: self.subsample, :: self.subsample]

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every key, (B, heads, N, M)."""
        return attention_weights(*self._queries_keys(x, self._few(x)), scale=1.0).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what each position has collected, (B, C, H, W)."""
        few = self._few(x)
        query, key = self._queries_keys(x, few)
        context = fused_attention(query, key, to_heads(self.value(few), self.heads), scale=1.0)
        return laid_out_like(x + self.gamma * self.out(to_map(context, x.shape[2:])), x)
