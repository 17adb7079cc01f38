r"""Focused linear attention (FLatten Transformer).

Han et al., *FLatten Transformer: Vision Transformer using Focused Linear Attention*, ICCV 2023,
https://arxiv.org/abs/2308.00442

.. math:: a_{ij} = \frac{\phi(q_i) \cdot \phi(k_j + e_j)}{\sum_j \phi(q_i) \cdot \phi(k_j + e_j) + 10^{-6} N}, \qquad
          y = W_o \Big(\sum_j a_{ij} v_j + \mathrm{DWC}(v)\Big)

.. math:: \phi(u) = \frac{|t|}{|t^p|}\, t^p, \qquad
          t = \frac{\mathrm{ReLU}(u) + 10^{-6}}{\mathrm{softplus}(s)}

head by head, where q, k, v and W_o are the 1x1 convolutions ``query``, ``key``, ``value`` and ``out``, with biases, s
(C) is ``scale``, e (C, S, S) is ``position``, p = ``power`` = 3 (elementwise), and DWC is ``local``, a depthwise 5x5
convolution whose kernels serve every head. The power sharpens directions and keeps lengths.

Differences from the paper: it writes the lengths for one head; in the authors' code, which is followed here, they are
over all C channels. There e is bound to one map size; here it is stored for S x S pixels (``size``) and resampled
bilinearly for other maps. There is no residual inside. Eight heads where they divide the channels, else the largest
smaller number that does; the authors' networks have one for every 32 or 64 channels. The keys and values are those of
the whole map (``sr_ratio`` 1 there). Copies in YOLO forks are bound to one square map; some leave out W_o and the
biases of q, k and v, and add a depthwise 3x3 convolution of v.

>>> import torch
>>> focused = FocusedLinearAttention(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> focused(x).shape, focused.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.feature_maps import FeatureMapAttention, heads_of
from visattn.blocks.widths import fitting_heads, odd
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise

EPS = 1e-6


def focus(t: Tensor, power: int) -> Tensor:
    """|t| t^p / |t^p| of vectors along the channels of a map (B, C, H, W), all of them above zero."""
    peaked = (t / t.detach().amax(1, keepdim=True)) ** power  # the largest is one: neither overflows nor underflows
    return peaked * (t.norm(dim=1, keepdim=True) / peaked.norm(dim=1, keepdim=True))


@register_block(
    "focused_linear",
    family="self",
    paper="Han et al., ICCV 2023, arXiv:2308.00442",
    used_in="transformers, as their self-attention",
)
class FocusedLinearAttention(FeatureMapAttention):
    """Linear attention with features that point where their largest channels do, and a convolution of the values.

    Args:
        channels: C.
        heads: must divide C; at most 8 unless given.
        power: p of the features.
        kernel_size: of the depthwise convolution; an odd number.
        size: side S of the map that the position embeddings are stored for.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        power: int = 3,
        kernel_size: int = 5,
        size: int = 14,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        positive("focused_linear", power=power, size=size)
        odd("focused_linear", kernel_size=kernel_size)
        super().__init__(
            channels,
            heads=fitting_heads("focused_linear", channels, heads),
            key_channels=channels,
            value_channels=channels,
            device=device,
            dtype=dtype,
        )
        self.power = power
        self.scale = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.position = nn.Parameter(torch.empty(channels, size, size, device=device, dtype=dtype))
        dim = channels // self.heads
        self.local = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small layers, no positions, and one scale for all channels."""
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # every layer here has one
        nn.init.zeros_(self.scale)
        nn.init.zeros_(self.position)

    def eps(self, pixels: int) -> float:
        """1e-6 of the mean weight."""
        return EPS * pixels

    def _places(self, height: int, width: int) -> Tensor:
        place = self.position.unsqueeze(0)
        if place.shape[2:] == (height, width):
            return place
        return F.interpolate(place, (height, width), mode="bilinear", align_corners=False)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Focused queries and keys, (B, heads, N, d)."""
        query, key = precise(self.query(x)), precise(self.key(x) + self._places(x.shape[2], x.shape[3]))
        scale = F.softplus(precise(self.scale)).view(-1, 1, 1)
        query, key = (focus((F.relu(each) + EPS) / scale, self.power) for each in (query, key))
        return heads_of(query, self.heads), heads_of(key, self.heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        value = self.value(x)
        local = self.local(value.unflatten(1, (self.heads, -1)).flatten(0, 1))  # (B·heads, d, H, W)
        collected = self.collect(x, value) + local.unflatten(0, (-1, self.heads)).flatten(1, 2)
        return laid_out_like(self.out(collected), x)
