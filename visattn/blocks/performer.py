r"""Performer: random features whose products approximate the softmax (FAVOR+).

Choromanski et al., *Rethinking Attention with Performers*, ICLR 2021, https://arxiv.org/abs/2009.14794

.. math:: a_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\sum_j \phi(q_i) \cdot \phi(k_j)}, \qquad
          \phi(t)_m = \frac{1}{\sqrt{M}} \big(e^{w_m \cdot t' - |t'|^2/2 - c} + \epsilon\big), \quad t' = t / d^{1/4},
          \qquad y_i = W_o \sum_j a_{ij} v_j

head by head, where q, k, v and W_o are the bias-free 1x1 convolutions ``query``, ``key``, ``value`` and ``out``, and
w_m are the M = ``features`` rows of ``projection``, orthogonal within blocks of d rows and as long as a Gaussian
vector. c keeps the exponential small: for a query its own largest w_m·t', for the keys the largest of all of them; ε =
1e-6. The more features, the closer a is to softmax(q·k / sqrt(d)).

Differences from the paper: none. From the authors' TensorFlow code: the orthogonal vectors come from a QR
decomposition, of which the usual algorithm fixes signs; here they are uniform, without which the mean of many features
is not the softmax. The features are drawn once, from a fixed seed, so that a block is a function of its
``state_dict``, where they are saved; :meth:`redraw` draws others, which the authors' JAX code does in every pass.
ε is that of the TensorFlow code; the JAX code has 1e-4. Eight heads where they divide the channels, else the largest
smaller number that does; the paper's networks differ in this. There is no residual inside. The paper's ImageNet64
figures are those of another kernel, a ReLU.

>>> import torch
>>> performer = Performer(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> performer(x).shape, performer.attention(x).shape
(torch.Size([2, 64, 8, 6]), torch.Size([2, 8, 48, 48]))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from visattn.blocks.base import register_block
from visattn.blocks.feature_maps import FeatureMapAttention, heads_of
from visattn.blocks.widths import fitting_heads
from visattn.core.arguments import Device, DType, positive
from visattn.core.energies import dot
from visattn.core.precision import precise

EPS = 1e-6


def orthogonal_features(number: int, dim: int, generator: torch.Generator) -> Tensor:
    """Random vectors (number, dim) with the lengths of Gaussian ones, orthogonal within every ``dim`` of them."""
    blocks = -(-number // dim)
    gaussian = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without the signs that the algorithm prefers
    directions = q.mT.flatten(0, 1)[:number]
    lengths = torch.randn(number, dim, generator=generator, dtype=torch.float64, device="cpu").norm(dim=1)
    return directions * lengths.unsqueeze(1)


@register_block(
    "performer",
    family="self",
    paper="Choromanski et al., ICLR 2021, arXiv:2009.14794",
    used_in="transformers, as their self-attention",
)
class Performer(FeatureMapAttention):
    """Softmax attention over the whole map, approximated by random features.

    Args:
        channels: C.
        heads: must divide C; at most 8 unless given.
        features: M of a query and a key.
    """

    projection: Tensor

    def __init__(
        self,
        channels: int,
        *,
        heads: int | None = None,
        features: int = 256,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        positive("performer", features=features)
        super().__init__(
            channels,
            heads=fitting_heads("performer", channels, heads),
            key_channels=channels,
            value_channels=channels,
            bias=False,
            out_bias=False,
            device=device,
            dtype=dtype,
        )
        self.register_buffer("projection", torch.empty(features, channels // self.heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's layers, and the features of seed zero."""
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
        self.redraw(0)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draw other features."""
        features, dim = self.projection.shape
        self.projection.copy_(orthogonal_features(features, dim, torch.Generator().manual_seed(seed)))

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Positive random features of queries and keys, (B, heads, N, M)."""
        query, key = (self._projected(heads_of(layer(x), self.heads)) for layer in (self.query, self.key))
        (on_query, half_query), (on_key, half_key) = query, key
        query_shift, key_shift = on_query.amax(-1, keepdim=True), on_key.amax((-2, -1), keepdim=True)
        scale = self.projection.shape[0] ** -0.5
        return (
            scale * (torch.exp(on_query - half_query - query_shift) + EPS),
            scale * (torch.exp(on_key - half_key - key_shift) + EPS),
        )

    def _projected(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """w·t' (B, heads, N, M) and |t'|²/2 (B, heads, N, 1)."""
        tokens = precise(tokens) * tokens.shape[-1] ** -0.25
        return dot(tokens, self.projection), tokens.square().sum(-1, keepdim=True) / 2
