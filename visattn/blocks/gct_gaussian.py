r"""Gaussian Context Transformer.

Ruan et al., *Gaussian Context Transformer*, CVPR 2021,
https://openaccess.thecvf.com/content/CVPR2021/papers/Ruan_Gaussian_Context_Transformer_CVPR_2021_paper.pdf

.. math:: \tilde x_c = x_c \cdot \exp\Big(-\frac{\hat z_c^2}{2 s^2}\Big), \qquad
          \hat z_c = \frac{z_c - \mu}{\sigma + \epsilon}, \qquad z = \mathrm{GAP}(x)

where μ and σ are mean and (biased) standard deviation of z over the channels, s is ``width`` and ε = 1e-5: a channel
whose mean is far from that of the others is damped. This is the paper's GCT-B0, without parameters; s = 2.

Differences from the paper: none known. **Not established**: the authors' code was never released, and we know the
equations from a transcription, with ε outside the root; its value is a guess. Common copies square wrongly: they
compute exp(-s·z²/2), which for s = 2 is a Gaussian of width 0.71. GCT-B1, where s is learned, is not part of this
block. Not to be confused with :mod:`visattn.blocks.gct`, which has the same initials.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> weights = GaussianContext(64).attention(x)
>>> weights.shape, bool((weights <= 1).all())
(torch.Size([2, 64, 1, 1]), True)
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.primitives import mean_places
from visattn.core.arguments import Device, DType, positive
from visattn.core.precision import precise


@register_block("gct_gaussian", family="channel", paper="Ruan et al., CVPR 2021")
class GaussianContext(Gate):
    """Global average -> distance from the mean of all channels -> Gaussian.

    Args:
        channels: C; the only channel of a map has no others to be far from, and is not changed.
        width: of the Gaussian, in standard deviations of the channel means.
    """

    def __init__(self, channels: int, *, width: float = 2.0, device: Device = None, dtype: DType = None) -> None:
        del device, dtype  # nothing to place
        super().__init__()
        positive("gct_gaussian", width=width)
        self.channels = channels
        self.width = width

    def attention(self, x: Tensor) -> Tensor:
        """Channel gate (B, C, 1, 1), one at the mean of all channels."""
        z = mean_places(precise(x))  # (B, C, 1, 1)
        centred = z - z.mean(1, keepdim=True)
        # Where all channels are equal the root has no derivative.
        deviation = centred.square().mean(1, keepdim=True).clamp(min=1e-30).sqrt() + 1e-5
        return torch.exp(-(centred / deviation).square() / (2 * self.width**2)).to(x.dtype)

    def extra_repr(self) -> str:
        """Arguments, for print(model)."""
        return f"{self.channels}, width={self.width}"
