r"""Agent attention.

Han et al., *Agent Attention: On the Integration of Softmax and Linear Attention*, ECCV 2024,
https://arxiv.org/abs/2312.08874

.. math:: a = \mathrm{pool}_{p \times p}(q), \qquad
          y = \mathrm{softmax}_a(q a^\top / \sqrt d + B_2)\; \mathrm{softmax}_j(a k^\top / \sqrt d + B_1)\, v

.. math:: \mathrm{out} = W_p (y + \mathrm{DW}_{3 \times 3}(v)) + b_p

A few agents a, averages of the queries, collect from all pixels and hand out to all pixels, so this is linear in the
pixels. q is ``query``, k and v are ``key_value``, DW is ``local`` and W_p is ``out``. Both biases are sums of a
coarse table (7x7, resized to the map), a table of rows and a table of columns (resized from side S = ``size``), one
of each for every head and agent: ``gather`` makes up B_1 and ``hand_out`` B_2.

Differences from the paper: none from the authors' code on maps of side S. Their classification networks are bound to
that side; resizing the tables to any map is how their detection code does it. 49 agents and 64 channels per head as
in their PVT (9 to 49 by stage), S = 14; other widths get the largest number of heads that divides them and leaves at
least 64 channels to each. The spatial reduction of PVT is left out, as in their networks with agents. Common copies are
bound to a map of given size; one that takes (B, C, H, W) flattens it without moving the channels to the end, which
mixes pixels and channels.

>>> import torch
>>> agent = Agent(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> agent(x).shape, agent.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.tokens import start_small, to_heads, to_map
from visattn.blocks.widths import fitting_heads
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise, without_autocast

COARSE = 7  # side of the coarse tables


def averaging(length: int, cells: int, *, device: Device = None, dtype: DType = None) -> Tensor:
    """Adaptive average pooling of one axis as a matrix (cells, length), which all exporters know.

    >>> averaging(3, 2)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    """
    cell, place = torch.arange(cells, device=device).unsqueeze(1), torch.arange(length, device=device)
    first, end = cell * length // cells, -(-(cell + 1) * length // cells)
    inside = ((place >= first) & (place < end)).to(dtype or torch.get_default_dtype())
    return inside / inside.sum(1, keepdim=True)


@register_block(
    "agent",
    family="self",
    paper="Han et al., ECCV 2024, arXiv:2312.08874",
    used_in="transformers, as their self-attention",
)
class Agent(nn.Module):
    """A few agents attend to the map, and the map attends to them; linear in the pixels.

    Args:
        channels: C.
        heads: must divide C; C/64, or fewer, unless given.
        agents: how many there are; a square number.
        size: side S of the map that the tables of rows and columns are stored for.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        agents: int = 49,
        size: int = 14,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("agent", agents=agents, size=size)
        self.side = math.isqrt(agents)
        if self.side**2 != agents:
            raise ValueError(f"block 'agent' needs a square number of agents, got {agents}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("agent", channels, heads, most=max(1, channels // 64))
        self.query = nn.Conv2d(channels, channels, 1, **factory)
        self.key_value = nn.Conv2d(channels, 2 * channels, 1, **factory)
        self.local = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, **factory)
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.attend = Attention(channels // self.heads, score="scaled_dot")
        sides = {"coarse": (COARSE, COARSE), "rows": (size, 1), "columns": (1, size)}
        tables = {name: (self.heads, agents, *side) for name, side in sides.items()}
        self.gather = nn.ParameterDict({name: torch.empty(shape, **factory) for name, shape in tables.items()})
        self.hand_out = nn.ParameterDict({name: torch.empty(shape, **factory) for name, shape in tables.items()})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights."""
        start_small(self)
        for table in (*self.gather.values(), *self.hand_out.values()):
            nn.init.trunc_normal_(table, std=0.02)

    def _bias(self, tables: nn.ParameterDict, size: tuple[int, int]) -> Tensor:
        """(heads, agents, N), in single precision at least."""
        coarse, fine = precise(tables["coarse"]), precise(tables["rows"]) + precise(tables["columns"])
        return sum(F.interpolate(table, size, mode="bilinear") for table in (coarse, fine)).flatten(2)  # type: ignore[union-attr]  # not of nothing

    def _agents(self, query: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, heads, agents, d)."""
        exact = precise(query)
        down, across = (
            averaging(length, self.side, device=exact.device, dtype=exact.dtype) for length in exact.shape[2:]
        )
        with without_autocast(query.device):
            return to_heads((down @ exact @ across.mT).to(query.dtype), self.heads)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other through the agents, (B, heads, N, N)."""
        query_map = self.query(x)
        size = (x.shape[2], x.shape[3])
        query, agents = to_heads(query_map, self.heads), self._agents(query_map)
        key = to_heads(self.key_value(x).chunk(2, dim=1)[0], self.heads)
        gathered = self.attend.head_weights(agents, key, self._bias(self.gather, size))
        handed_out = self.attend.head_weights(query, agents, self._bias(self.hand_out, size).mT)
        return handed_out @ gathered

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query_map = self.query(x)
        size = (x.shape[2], x.shape[3])
        query, agents = to_heads(query_map, self.heads), self._agents(query_map)
        key_map, value_map = self.key_value(x).chunk(2, dim=1)
        key, value = to_heads(key_map, self.heads), to_heads(value_map, self.heads)
        gather, hand_out = (self._bias(each, size).to(query.dtype) for each in (self.gather, self.hand_out))
        gathered = self.attend.head_context(agents, key, value, gather)  # (B, heads, agents, d)
        context = self.attend.head_context(query, agents, gathered, hand_out.mT)
        return laid_out_like(self.out(to_map(context, size) + self.local(value_map)), x)
