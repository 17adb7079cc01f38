r"""AFT-conv, of the attention free transformer.

Zhai et al., *An Attention Free Transformer*, 2021, https://arxiv.org/abs/2105.14103

.. math:: Y_t = \sigma(Q_t) \odot \frac{\sum_s \exp(K_s + w_{s-t})\, V_s}{\sum_s \exp(K_s + w_{s-t})}, \qquad
          w = \gamma\, \frac{r - \mathrm{mean}(r)}{\mathrm{std}(r)} + \beta

of every head, followed by a 1x1 convolution ``out``. Q and V have C channels and K one per head (``qkv``); r (S, S) is
``position``, and w is zero outside of this kernel. Since exp(w) is then one nearly everywhere, both sums are those over
the whole map plus a depthwise convolution with exp(w) - 1, which is how they are computed: nothing here is N x N.

Differences from the paper: of the paper's variants this is the one for maps of any size, with S = 11 and a head per
channel as in its ImageNet models. The authors published no code, and this much is **not established**: that the
standard deviation is the biased one with 1e-5 under the root, and that the 1x1 convolutions have biases. That γ and β
start at zero (so that all positions are alike at first) and r with a standard deviation of 0.1 is from secondary
accounts. Copies mostly implement AFT-full, which is bound to one number of pixels.

>>> import torch
>>> aft = AttentionFree(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> aft(x).shape, aft.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 1, 48, 48]))
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, register_block
from visattn.blocks.widths import fitting_heads, odd
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise, without_autocast


@register_block(
    "aft", family="self", paper="Zhai et al., 2021, arXiv:2105.14103", used_in="transformers, as their self-attention"
)
class AttentionFree(nn.Module):
    """A weighted average of the map for every position, whose weights are a key plus a kernel; linear in the pixels.

    Args:
        channels: C.
        heads: channels that share a key and a kernel; must divide C; C unless given.
        kernel_size: side S of the kernel; an odd number.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        kernel_size: int = 11,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        odd("aft", kernel_size=kernel_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.channels = channels
        self.heads = fitting_heads("aft", channels, heads, most=channels)
        self.kernel_size = kernel_size
        self.qkv = nn.Conv2d(channels, 2 * channels + self.heads, 1, **factory)
        self.position = nn.Parameter(torch.empty(self.heads, kernel_size, kernel_size, **factory))
        self.gamma = nn.Parameter(torch.empty(self.heads, **factory))
        self.beta = nn.Parameter(torch.empty(self.heads, **factory))
        self.out = nn.Conv2d(channels, channels, 1, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All positions alike."""
        nn.init.normal_(self.position, std=0.1)
        nn.init.zeros_(self.gamma)
        nn.init.zeros_(self.beta)

    def _kernels(self) -> Tensor:
        """w (heads, S, S), in single precision at least."""
        shape = self.position.shape[1:]
        normalised = F.layer_norm(precise(self.position), shape)
        return normalised * precise(self.gamma)[:, None, None] + precise(self.beta)[:, None, None]

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.qkv(x).split([self.channels, self.heads, self.channels], dim=1)
        key = precise(key)
        return (
            query,
            key - key.detach().amax((2, 3), keepdim=True),
            value,
        )  # a constant cancels, and exp cannot overflow

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other before σ(Q), on average over the heads, (B, 1, N, N).

        The heads may be as many as the channels, so they are averaged one by one and never held together.
        """
        _, key, _ = self._queries_keys_values(x)
        height, width = x.shape[2:]
        reach = self.kernel_size // 2
        offsets = []
        for length in (height, width):
            position = torch.arange(length, device=x.device)
            offsets.append(position - position[:, None] + reach)  # of a key (column) from a query
        rows, columns = offsets[0][:, None, :, None], offsets[1][None, :, None, :]
        inside = (rows >= 0) & (rows < self.kernel_size) & (columns >= 0) & (columns < self.kernel_size)
        index = torch.where(inside, rows * self.kernel_size + columns, self.kernel_size**2)
        index = index.flatten(2).flatten(0, 1)  # (N, N)
        table = F.pad(self._kernels().flatten(1), (0, 1))  # with a zero for everything outside
        total = torch.zeros((), device=x.device, dtype=key.dtype)
        for head in range(self.heads):
            energies = key[:, head].flatten(1).unsqueeze(1) + table[head][index]
            total = total + F.softmax(energies, dim=-1) / self.heads
        return total.unsqueeze(1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        query, key, value = self._queries_keys_values(x)
        shared = self.channels // self.heads
        with without_autocast(x.device):
            extra = torch.expm1(self._kernels()).unsqueeze(1)  # (heads, 1, S, S)
            weight = key.exp()
            total = weight.sum((2, 3), keepdim=True)
            total = total + F.conv2d(weight, extra, padding=self.kernel_size // 2, groups=self.heads)
            weighted = weight.repeat_interleave(shared, 1) * value
            extra = extra.repeat_interleave(shared, 0)
            collected = weighted.sum((2, 3), keepdim=True)
            collected = collected + F.conv2d(weighted, extra, padding=self.kernel_size // 2, groups=self.channels)
            average = collected / total.repeat_interleave(shared, 1)
        y = torch.sigmoid(query) * average.to(query.dtype)
        return laid_out_like(self.out(y), x)
