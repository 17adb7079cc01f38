r"""Global Context.

Cao et al., *GCNet: Non-local Networks Meet Squeeze-Excitation Networks and Beyond*, ICCV Workshops 2019,
https://arxiv.org/abs/1904.11492

.. math:: z_i = x_i + W_{v2}\, \mathrm{ReLU}\Big(\mathrm{LN}\Big(W_{v1} \sum_j
          \frac{e^{w_k^\top x_j}}{\sum_m e^{w_k^\top x_m}}\, x_j \Big)\Big)

where w_k is ``key`` (1x1 to one channel), W_v1 is ``fc1``, W_v2 is ``fc2`` and the bottleneck is C/16 wide.

Differences from the paper: none; as in the authors' code, all three convolutions have biases and the last one starts
at zero, so that the block starts as the identity. (timm's ``gc`` multiplies instead; its ``gca`` adds.)

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> gc = GlobalContext(64)
>>> torch.equal(gc(x), x), gc.attention(x).shape
(True, torch.Size([2, 1, 8, 8]))
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.blocks.primitives import Pointwise, attention_pool
from visattn.core.arguments import Device, DType


@register_block("gc", family="channel", paper="Cao et al., ICCVW 2019, arXiv:1904.11492", attends="places")
class GlobalContext(nn.Module):
    """Attention pooling with one query for all positions -> bottleneck -> added to every position.

    Args:
        channels: C.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    def __init__(self, channels: int, *, rd_ratio: float = 1 / 16, device: Device = None, dtype: DType = None) -> None:
        super().__init__()
        hidden = reduced(channels, rd_ratio)
        self.key = Pointwise(channels, 1, device=device, dtype=dtype)
        self.fc1 = Pointwise(channels, hidden, device=device, dtype=dtype)
        self.norm = nn.LayerNorm([hidden, 1, 1], device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the identity."""
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)  # type: ignore[arg-type]  # present: the layer is built with a bias

    def attention(self, x: Tensor) -> Tensor:
        """How much each position contributes to the context; (B, 1, H, W), sums to one."""
        return attention_pool(x, self.key)[1]

    def forward(self, x: Tensor) -> Tensor:
        """The input plus its transformed context, (B, C, H, W)."""
        x, _, context = attention_pool(x, self.key)
        return x + self.fc2(F.relu(self.norm(self.fc1(context))))
