r"""Multi-scale convolutional attention.

Guo et al., *SegNeXt: Rethinking Convolutional Attention Design for Semantic Segmentation*, NeurIPS 2022,
https://arxiv.org/abs/2209.08575

.. math:: \tilde x = x \cdot \mathrm{conv}_{1\times1}\Big(e + \sum_{k \in \{7, 11, 21\}}
          \mathrm{dw}_{k\times1}(\mathrm{dw}_{1\times k}(e))\Big), \qquad e = \mathrm{dw}_{5\times5}(x)

where the sum is ``strips``, the 1x1 convolution ``mix``, and there is no sigmoid.

Differences from the paper: none. SegNeXt wraps this core in two more 1x1 convolutions, a GELU and a shortcut, and draws
the weights of the whole network from normal distributions; here they start as PyTorch's do, like those of ``lka``.
Common copies compute the same.

>>> import torch
>>> MultiScaleConvolution(64)(torch.randn(2, 64, 8, 8)).shape
torch.Size([2, 64, 8, 8])
"""

from __future__ import annotations

from torch import Tensor, nn

from visattn.blocks.base import Gate, register_block
from visattn.blocks.strips import Strips
from visattn.core.arguments import Device, DType


@register_block(
    "msca",
    family="spatial",
    paper="Guo et al., NeurIPS 2022, arXiv:2209.08575",
    attends="channels and places",
    used_in="the blocks of SegNeXt",
)
class MultiScaleConvolution(Gate):
    """Strips of several lengths, summed up, as the gate.

    Args:
        channels: C.
    """

    def __init__(self, channels: int, *, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        self.strips = Strips(channels, device=device, dtype=dtype)
        self.mix = nn.Conv2d(channels, channels, 1, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W), of either sign."""
        return self.mix(self.strips(x))
