r"""Non-local blocks: every position attends to every other.

Wang et al., *Non-local Neural Networks*, CVPR 2018, https://arxiv.org/abs/1711.07971

.. math:: y_i = \sum_j a_{ij}\, g(x_j), \qquad z_i = \mathrm{BN}(W y_i) + x_i

=====================  ==============================================================================
``nonlocal``           embedded Gaussian, a = softmax_j(θ(x_i)·φ(x_j) / sqrt(d))
``nonlocal_gaussian``  a = softmax_j(x_i·x_j)
``nonlocal_dot``       a = θ(x_i)·φ(x_j) / N
``nonlocal_concat``    a = ReLU(w_f' [θ(x_i); φ(x_j)]) / N
=====================  ==============================================================================

where θ, φ, g are 1x1 convolutions to d = C/2 channels, W is ``out`` and N the number of keys.

Differences from the paper: the paper's equation of the embedded Gaussian has no 1/sqrt(d); the authors' Caffe2 code,
which produced the published figures, has it. As there, convolutions start with a standard deviation of 0.01 and the
batch norm's scale at zero, so that the block starts as the identity. ``subsample=2`` is the paper's trick of
max-pooling before φ and g (the Kinetics models use it); it is off here, so that the weights are N x N. timm's version
scales by sqrt(C) although its keys have C/8 channels.

None of the four holds an N x N matrix unless :meth:`attention` is called. The first two run on the fused attention
kernel, and the third multiplies φ and g first. In the fourth, a = ReLU(α_i + β_j) / N, with one number for every query
and one for every key: if queries are sorted by α among keys by -β, a query sees the keys before it, and collects
α_i Σ g(x_j) + Σ β_j g(x_j) from them, two sums that run along that order.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> block = NonLocal(64)
>>> torch.equal(block(x), x), block.attention(x).shape
(True, torch.Size([2, 1, 64, 64]))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import laid_out_like, reduced, register_block
from visattn.core import Attention
from visattn.core.arguments import Device, DType
from visattn.core.energies import dot
from visattn.core.precision import precise

PAPER = "Wang et al., CVPR 2018, arXiv:1711.07971"


def tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, N, C): the pixels in row order."""
    return x.flatten(2).mT


class PairwiseBlock(nn.Module, ABC):
    """What the four forms share.

    Args:
        channels: C.
        rd_ratio: width d of the embeddings as a fraction of C.
        subsample: max-pool by this factor before keys and values.
    """

    attend: Attention  # of the two softmax forms

    def __init__(
        self,
        channels: int,
        *,
        rd_ratio: float = 1 / 2,
        subsample: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        if subsample < 1:
            raise ValueError(f"subsample must be 1 (off) or more, got {subsample}")
        self.channels = channels
        self.inner = reduced(channels, rd_ratio)
        self.subsample = subsample
        self.g = nn.Conv2d(channels, self.inner, 1, device=device, dtype=dtype)
        self.out = nn.Conv2d(self.inner, channels, 1, device=device, dtype=dtype)
        self.bn = nn.BatchNorm2d(channels, device=device, dtype=dtype)
        self._build({"device": device, "dtype": dtype})
        self.reset_parameters()

    @abstractmethod
    def _build(self, factory: dict[str, Any]) -> None:
        """Add what this form needs besides."""

    def reset_parameters(self) -> None:
        """Small convolutions, and the identity at first."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # every convolution here has one
        nn.init.zeros_(self.bn.weight)

    def _pooled(self, x: Tensor) -> Tensor:
        return x if self.subsample == 1 else F.max_pool2d(x, self.subsample, ceil_mode=True)

    @abstractmethod
    def _queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, N, d) and keys (B, M, d)."""

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Weights (B, N, M)."""
        return self.attend.weights(query, key).squeeze(1)

    def _context(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Weights times values, (B, N, d), without holding the weights where that is possible."""
        return self.attend(query, key, value)

    def attention(self, x: Tensor) -> Tensor:
        """What every position (row) takes from every other, (B, 1, N, N)."""
        return self._weights(*self._queries_keys(x)).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what each position has collected, (B, C, H, W)."""
        query, key = self._queries_keys(x)
        context = self._context(query, key, tokens(self.g(self._pooled(x))))
        y = laid_out_like(context.mT.unflatten(2, x.shape[2:]), x)  # (B, d, H, W)
        return x + self.bn(self.out(y))


class EmbeddedBlock(PairwiseBlock):
    """The forms that embed queries by θ and keys by φ."""

    def _build(self, factory: dict[str, Any]) -> None:
        self.theta = nn.Conv2d(self.channels, self.inner, 1, **factory)
        self.phi = nn.Conv2d(self.channels, self.inner, 1, **factory)

    def _queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return tokens(self.theta(x)), tokens(self.phi(self._pooled(x)))


@register_block("nonlocal", family="self", paper=PAPER)
class NonLocal(EmbeddedBlock):
    """Embedded Gaussian: scaled dot product and softmax. Arguments: see :class:`PairwiseBlock`."""

    def _build(self, factory: dict[str, Any]) -> None:
        super()._build(factory)
        self.attend = Attention(self.inner, score="scaled_dot")


@register_block("nonlocal_gaussian", family="self", paper=PAPER)
class NonLocalGaussian(PairwiseBlock):
    """Gaussian: the pixels' own features are compared, without embeddings. Arguments: see :class:`PairwiseBlock`."""

    def _build(self, factory: dict[str, Any]) -> None:
        del factory  # nothing to place
        self.attend = Attention(self.channels, score="dot")

    def _queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return tokens(x), tokens(self._pooled(x))


def _shared_out(a: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors divided by sqrt(N), so that a product is divided by N before its sum can grow too large for half."""
    share = keys.shape[1] ** -0.5
    return a * share, keys * share


@register_block("nonlocal_dot", family="self", paper=PAPER)
class NonLocalDot(EmbeddedBlock):
    """Dot product, divided by the number of keys. Arguments: see :class:`PairwiseBlock`."""

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = _shared_out(query, key)
        return dot(query, key).to(query.dtype)

    def _context(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = _shared_out(key, value)
        return query @ (key.mT @ value)


@register_block("nonlocal_concat", family="self", paper=PAPER)
class NonLocalConcat(EmbeddedBlock):
    """Both embeddings, one linear layer, ReLU, divided by the number of keys. See :class:`PairwiseBlock`."""

    def _build(self, factory: dict[str, Any]) -> None:
        super()._build(factory)
        self.w_f = nn.Parameter(torch.empty(2 * self.inner, **factory))

    def reset_parameters(self) -> None:
        """Small convolutions and a small score, and the identity at first."""
        super().reset_parameters()
        nn.init.normal_(self.w_f, std=0.01)

    def _parts(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """α (B, N, 1) and β (B, M, 1), whose sums are the energies."""
        w_query, w_key = self.w_f.unsqueeze(0).split(self.inner, dim=1)
        # One-row matrices, not vectors: onnxruntime 1.31's optimiser gets a transposed matrix times a vector wrong.
        return F.linear(query, w_query), F.linear(key, w_key)

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        alpha, beta = self._parts(query, key)
        return F.relu(alpha + beta.mT) / key.shape[1]

    def _context(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        alpha, beta = (precise(each) for each in self._parts(query, key))
        queries = query.shape[1]
        order = torch.cat([alpha, -beta], dim=1).argsort(1)  # every query comes after the keys that it sees
        value = precise(value) / key.shape[1]
        terms = F.pad(torch.cat([value, beta * value], dim=2), (0, 0, queries, 0))  # zeros of queries, (B, N + M, 2d)
        sums = terms.gather(1, order.expand_as(terms)).cumsum(1)
        place = order.argsort(1)[:, :queries]
        values, weighted = sums.gather(1, place.expand(-1, -1, sums.shape[2])).chunk(2, dim=2)  # (B, N, d) each
        return (alpha * values + weighted).to(query.dtype)
