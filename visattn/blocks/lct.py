r"""Linear Context Transform.

Ruan et al., *Linear Context Transform Block*, AAAI 2020, https://arxiv.org/abs/1909.03834

.. math:: \tilde x_c = x_c \cdot \sigma(w_c \hat z_c + b_c), \qquad
          \hat z_c = \frac{z_c - \mu_S}{\sqrt{\sigma_S^2 + \epsilon}}, \qquad z = \mathrm{GAP}(x)

where μ_S and σ_S² are mean and variance of z over the group S of neighbouring channels that c belongs to, w and b (C)
are ``weight`` and ``bias``, and ε = 1e-5: a group norm of the channel means.

Differences from the paper: none known in the equation. **Not established**: no code of the authors is public, so the
number of groups, ε and the initialisation are not certain. 64 groups are what we believe ResNet-50 was trained with;
a group needs several channels (of one, nothing is left once its mean is subtracted), so that narrow maps get the
largest number up to 64, a power of two, that leaves four channels a group. w = 0 and b = 1 follow a copy, and the
related SGE; other copies start with w = 1 and b = 0.

>>> import torch
>>> lct = LinearContext(64)
>>> lct.groups, lct(torch.randn(2, 64, 8, 8)).shape
(16, torch.Size([2, 64, 8, 8]))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import mean_places
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise


def groups_of_four(channels: int) -> int:
    """The largest power of two up to 64 that divides the channels into groups of at least four."""
    return next((g for g in (64, 32, 16, 8, 4, 2) if channels % g == 0 and channels >= 4 * g), 1)


@register_block("lct", family="channel", paper="Ruan et al., AAAI 2020, arXiv:1909.03834")
class LinearContext(Gate):
    """Global average, normalised within groups of channels -> one line per channel -> sigmoid.

    Args:
        channels: C.
        groups: of channels that are normalised together; 64, or fewer for narrow maps, unless given.
    """

    def __init__(self, channels: int, *, groups: int | None = None, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.groups = groups_of_four(channels) if groups is None else groups
        if self.groups < 1 or channels % self.groups:
            raise ValueError(f"lct: {self.groups} groups do not divide {channels} channels")
        if self.groups == channels > 1:
            raise ValueError(f"lct: {channels} groups leave one channel each, which has no variance")
        self.weight = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every channel starts with the same gate, 0.73."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1)."""
        z = mean_places(precise(x)).flatten(1).unflatten(1, (self.groups, -1))  # (B, G, C/G)
        centred = z - z.mean(-1, keepdim=True)
        z = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return torch.sigmoid(self.weight * z.flatten(1) + self.bias).to(x.dtype)[..., None, None]
