r"""Gated Channel Transformation.

Yang et al., *Gated Channel Transformation for Visual Recognition*, CVPR 2020, https://arxiv.org/abs/1909.11519

.. math:: s_c = \alpha_c \sqrt{\textstyle\sum_{ij} x_{cij}^2 + \epsilon}, \qquad
          \hat s_c = \frac{\gamma_c s_c}{\sqrt{\tfrac1C \sum_k s_k^2 + \epsilon}}, \qquad
          \tilde x_c = x_c \,(1 + \tanh(\hat s_c + \beta_c))

where α, γ, β (C) are ``alpha``, ``gamma``, ``beta`` and ε = 1e-5.

Differences from the authors' code: none (their default, the l2 form). With γ = β = 0 the block starts as the identity.
Not to be confused with the Gaussian Context Transformer of CVPR 2021, which has the same initials.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> torch.equal(GatedChannel(64)(x), x)
True
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise


@register_block("gct", family="channel", paper="Yang et al., CVPR 2020, arXiv:1909.11519")
class GatedChannel(Gate):
    """Channel norms compete or cooperate -> 1 + tanh: three parameters per channel.

    Args:
        channels: C.
        eps: keeps both square roots away from zero.
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        positive("gct", eps=eps)
        self.eps = eps
        self.alpha = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the identity."""
        nn.init.ones_(self.alpha)
        nn.init.zeros_(self.gamma)
        nn.init.zeros_(self.beta)

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1), between 0 and 2."""
        s = self.alpha * (precise(x).square().sum((2, 3)) + self.eps).sqrt()  # (B, C)
        normalised = self.gamma * s * (s.square().mean(1, keepdim=True) + self.eps).rsqrt()
        return (1 + torch.tanh(normalised + self.beta)).to(x.dtype)[..., None, None]
