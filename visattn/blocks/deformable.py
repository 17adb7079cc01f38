r"""Deformable attention (DAT).

Xia et al., *Vision Transformer with Deformable Attention*, CVPR 2022, https://arxiv.org/abs/2201.00520

.. math:: p = p_0 + s \tanh(\theta(q)) / (H_k, W_k), \qquad \tilde x = \phi(x; p), \qquad k = W_k \tilde x,
          \quad v = W_v \tilde x

.. math:: y_i = b_o +
          W_o \sum_j \mathrm{softmax}_j\Big(\frac{q_i \cdot k_j}{\sqrt d} + \phi(\hat B; (r_i - p_j) / 2)\Big)\, v_j

Queries move a grid of points: :math:`p_0` are the centres of the cells of an H_k x W_k grid over [-1, 1]², θ is
``offset`` (depthwise convolution, layer norm, GELU, 1x1 convolution to y and x; shared by the groups of channels,
each of which has points of its own), s = ``reach``, and φ reads a map between its pixels, with zeros outside.
:math:`\hat B` is ``position``, a table per head of relative positions, :math:`r_i` the centre of pixel i. W_k and W_v
are ``key_value``.

Differences from the paper: none from the authors' code of the CVPR release, whose quirk is kept since the published
weights were trained with it: points are centres of cells, but are read as if -1 and 1 were the centres of the
outermost pixels. The table is stored for one side S = ``size`` of the map, as in the paper, and since it is read at
relative distances it serves maps of every size. Settings are those of the third stage (kernel 5, reach 2, S = 14, 32
channels per head, 128 per group); other widths get the largest numbers of heads and groups that divide them and leave
each at least that many. The authors' later code (DAT++) differs, and divides by zero on maps one pixel wide. The bias
of all pairs would be N x M: it is read, and used, for a few queries at a time. Common copies take the later code with
the table switched off: a depthwise 3x3 convolution of the queries is added to the output instead. They have four
groups, a kernel of 3 and a reach of 4.

>>> import torch
>>> deformable = Deformable(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> deformable(x).shape, deformable.attention(x).shape, deformable.points(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 2, 48, 48]), torch.Size([2, 1, 48, 2]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.chunks import in_chunks
from visattn.blocks.tokens import largest_divisor, norm_channels, to_heads, to_map
from visattn.blocks.widths import fitting_heads, odd
from visattn.core import Attention
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise


def centres(height: int, width: int, *, device: Device = None, dtype: DType = None) -> Tensor:
    """The centres (y, x) of the cells of a grid over [-1, 1]², (H, W, 2)."""
    y, x = ((2 * torch.arange(n, device=device, dtype=dtype) + 1) / n - 1 for n in (height, width))
    return torch.stack([y[:, None].expand(height, width), x.expand(height, width)], dim=-1)


def read(x: Tensor, points: Tensor) -> Tensor:
    """Maps (B, C, H, W), read at points (y, x) between -1 and 1, (B, h, w, 2): (B, C, h, w), in single precision."""
    return F.grid_sample(precise(x), points.flip(-1), padding_mode="zeros", align_corners=True)


class Offset(nn.Module):
    """θ: which way every point goes.

    Args:
        channels: of a group.
        kernel_size: an odd number.
        stride: how many pixels there are to a point.
    """

    def __init__(self, channels: int, *, kernel_size: int, stride: int, **factory: Any) -> None:
        super().__init__()
        size: dict[str, Any] = {"padding": kernel_size // 2, "stride": stride, "groups": channels}
        self.conv = nn.Conv2d(channels, channels, kernel_size, **size, **factory)
        self.norm = nn.LayerNorm(channels, **factory)
        self.out = nn.Conv2d(channels, 2, 1, bias=False, **factory)

    def forward(self, query: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H_k, W_k, 2), between -1 and 1, in single precision at least."""
        return torch.tanh(precise(self.out(F.gelu(norm_channels(self.norm, self.conv(query)))))).movedim(1, -1)


@register_block(
    "deformable", family="self", paper="Xia et al., CVPR 2022, arXiv:2201.00520", used_in="the last two stages of DAT"
)
class Deformable(nn.Module):
    """Attention to points of the map that the queries have moved.

    Args:
        channels: C.
        heads: must divide C; C/32, or fewer, unless given.
        groups: channels that share their points; must divide the heads; C/128, or fewer, unless given.
        kernel_size: of the network that moves the points; an odd number.
        stride: how many rows and columns there are to a row and a column of points.
        reach: how many cells of the grid a point can move.
        size: side S of the map that the table of positions is stored for.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        groups: int | None = None,
        kernel_size: int = 5,
        stride: int = 1,
        reach: float = 2.0,
        size: int = 14,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        odd("deformable", kernel_size=kernel_size)
        positive("deformable", stride=stride, reach=reach, size=size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = fitting_heads("deformable", channels, heads, most=max(1, channels // 32))
        self.groups = largest_divisor(self.heads, channels // 128) if groups is None else groups
        if self.groups < 1 or self.heads % self.groups:
            raise ValueError(f"block 'deformable' has {self.groups} groups, which do not divide {self.heads} heads")
        self.reach = reach
        self.query = nn.Conv2d(channels, channels, 1, **factory)
        self.offset = Offset(channels // self.groups, kernel_size=kernel_size, stride=stride, **factory)
        self.key_value = nn.Conv2d(channels, 2 * channels, 1, **factory)
        self.position = nn.Parameter(torch.empty(self.heads, 2 * size - 1, 2 * size - 1, **factory))
        self.attend = Attention(channels // self.heads, score="scaled_dot")
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A small table of positions."""
        nn.init.trunc_normal_(self.position, std=0.01)

    def points(self, x: Tensor) -> Tensor:
        """Where the keys are read, (y, x) between -1 and 1, (B, groups, M, 2)."""
        return self._points(self.query(x)).flatten(1, 2).unflatten(0, (-1, self.groups))

    def _points(self, query: Tensor) -> Tensor:
        """The points of every image and group, (B·groups, H_k, W_k, 2)."""
        moved = self.offset(query.unflatten(1, (self.groups, -1)).flatten(0, 1)) * self.reach
        height, width = moved.shape[1:3]
        grid = centres(height, width, device=query.device, dtype=moved.dtype)
        return grid + torch.stack([moved[..., 0] / height, moved[..., 1] / width], dim=-1)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries (B, heads, N, d), keys and values (B, heads, M, d), pixels (N, 2) and points (B·groups, M, 2)."""
        query = self.query(x)
        points = self._points(query)
        sampled = read(x.unflatten(1, (self.groups, -1)).flatten(0, 1), points)
        sampled = sampled.unflatten(0, (-1, self.groups)).flatten(1, 2).to(x.dtype)  # (B, C, H_k, W_k)
        key, value = (to_heads(each, self.heads) for each in self.key_value(sampled).chunk(2, dim=1))
        pixels = centres(x.shape[2], x.shape[3], device=x.device, dtype=points.dtype).flatten(0, 1)
        return to_heads(query, self.heads), key, value, pixels, points.flatten(1, 2)

    def _bias(self, pixels: Tensor, points: Tensor) -> Tensor:
        """What the table says of pixels (n, 2) and points (B·groups, M, 2), (B, heads, n, M)."""
        distance = (pixels[:, None] - points.unsqueeze(1)) / 2  # (B·groups, n, M, 2)
        table = self.position.unflatten(0, (self.groups, -1)).repeat(points.shape[0] // self.groups, 1, 1, 1)
        return read(table, distance).unflatten(0, (-1, self.groups)).flatten(1, 2)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every point, (B, heads, N, M); :meth:`points` says where they are."""
        query, key, _, pixels, points = self._parts(x)
        return self.attend.head_weights(query, key, self._bias(pixels, points))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query, key, value, pixels, points = self._parts(x)

        def collected(query: Tensor, pixels: Tensor) -> Tensor:
            return self.attend.head_context(query, key, value, self._bias(pixels, points).to(query.dtype))

        context = in_chunks(collected, query, pixels, keys=key.shape[2])
        return laid_out_like(self.out(to_map(context, x.shape[2:])), x)
