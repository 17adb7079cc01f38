r"""Class-specific residual attention: a head, which takes the place of global pooling and a classifier.

Zhu & Wu, *Residual Attention: A Simple but Effective Method for Multi-Label Recognition*, ICCV 2021,
https://arxiv.org/abs/2108.02456

.. math:: s_k(i) = \frac{m_k^\top x_i}{\|m_k\|}, \qquad \hat y_k = \frac1N \sum_i s_k(i)
          + \lambda \sum_i \mathrm{softmax}_i(T s_k(i))\, s_k(i)

where m_k (``classifier``, without biases) is the vector of class k, x_i the features of place i, and λ is ``lam``. With
T = ∞ the second sum is the maximum of s_k. Several heads have an m and a T each, and their logits are summed:
T = 1 for one head, then (1, ∞), (1, 2, 4, ∞), (1, ..., 5, ∞) and (1, ..., 7, ∞) for two, four, six and eight.

Differences from the authors' code: none; there T = 99 stands for infinity. The paper's equation has no norm of m_k. It
uses λ = 0.1 for VOC and up to 0.5, with four or six heads, for COCO.

This is not a block: it gives logits (B, K), not a map. In a timm network, pooling and classifier are taken off first:

>>> import timm, torch
>>> model = timm.create_model("test_resnet", num_classes=0, global_pool="")
>>> model = torch.nn.Sequential(model, ClassResidualHead(model.num_features, 20, heads=4, lam=0.4))
>>> model(torch.randn(2, 3, 64, 64)).shape
torch.Size([2, 20])
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import Device, DType, checked, positive
from visattn.core.energies import dot, unit

TEMPERATURES: dict[int, tuple[float, ...]] = {  # by number of heads
    1: (1,),
    2: (1, math.inf),
    4: (1, 2, 4, math.inf),
    6: (1, 2, 3, 4, 5, math.inf),
    8: (1, 2, 3, 4, 5, 6, 7, math.inf),
}


def focus(scores: Tensor, temperature: float) -> Tensor:
    """softmax(T s) over the places; if T is infinite, all weight is on the highest score."""
    if math.isinf(temperature):
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
    return F.softmax(temperature * scores, dim=-1)


class ClassResidualHead(nn.Module):
    """Every class scores every place; its logit is the mean of its scores, plus their attention-weighted mean.

    Args:
        channels: C.
        num_classes: K.
        heads: 1, 2, 4, 6 or 8.
        lam: weight of the attention.
    """

    @checked
    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        heads: int = 1,
        lam: float = 0.1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("ClassResidualHead", channels=channels, num_classes=num_classes)
        if heads not in TEMPERATURES:
            raise ValueError(f"ClassResidualHead needs {', '.join(map(str, TEMPERATURES))} heads, got {heads}")
        if lam < 0:
            raise ValueError(f"ClassResidualHead needs lam of at least zero, got {lam}")
        self.heads = heads
        self.lam = lam
        self.classifier = nn.Linear(channels, heads * num_classes, bias=False, device=device, dtype=dtype)

    def scores(self, x: Tensor) -> Tensor:
        """Score of every class at every place, by every head: (B, C, H, W) -> (B, heads, K, N)."""
        if x.ndim != 4 or x.shape[1] != self.classifier.in_features:
            raise ValueError(
                f"ClassResidualHead was built for maps (B, {self.classifier.in_features}, H, W), "
                f"got a tensor {tuple(x.shape)}"
            )
        return dot(unit(self.classifier.weight), x.flatten(2).mT).unflatten(1, (self.heads, -1))

    def _weights(self, scores: Tensor) -> Tensor:
        """What each place counts, (B, heads, K, N)."""
        of_heads = zip(scores.unbind(1), TEMPERATURES[self.heads], strict=True)
        return torch.stack([focus(each, temperature) for each, temperature in of_heads], dim=1)

    def attention(self, x: Tensor) -> Tensor:
        """Where every class looks, by every head: (B, heads, K, H, W)."""
        return self._weights(self.scores(x)).to(x.dtype).unflatten(3, x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (B, C, H, W) -> (B, K)."""
        scores = self.scores(x)
        attended = (self._weights(scores) * scores).sum(-1)
        return (scores.mean(-1) + self.lam * attended).sum(1).to(x.dtype)
