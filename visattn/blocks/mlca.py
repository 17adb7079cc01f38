r"""Mixed local channel attention.

Wan et al., *Mixed local channel attention for object detection*, Engineering Applications of Artificial Intelligence
123, 2023, https://doi.org/10.1016/j.engappai.2023.106442

.. math:: p = \mathrm{pool}_{S\times S}(x), \qquad a^g = \sigma(\mathrm{conv1d}_k(\mathrm{mean}_{uv}\, p_{cuv})), \qquad
          a^l = \sigma(\mathrm{conv1d}'_k(\ell)), \quad \ell_{(uS + v)C + c} = p_{cuv}

.. math:: \tilde x = x \cdot U\big((1 - m)\, a^g + m\, a^l\big)

where the map is averaged to S x S cells (S = 5, ``size``), the two convolutions run along the channels, ``overall``
over the mean of the cells and ``local`` over all cells in one line, k is that of ECA, m = 1/2 is ``local_weight`` and U
resizes the cells to the map by adaptive averaging.

Differences from the authors' code: none. The article is not open; the equation above is what their code computes, with
which this was compared. In the line, the last channel of a cell is a neighbour of the first channel of the next. The
mean of the cells is that of the map only where S divides its sides. An earlier line of that code, since corrected but
still in many copies, takes the images of a batch for rows of cells, so that they share one overall gate, made of all of
them.

>>> import torch
>>> mlca = MixedLocalChannel(64)
>>> x = torch.randn(2, 64, 8, 6)
>>> mlca(x).shape, sum(p.numel() for p in mlca.parameters())
(torch.Size([2, 64, 8, 6]), 6)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from visattn.blocks.base import Gate, register_block
from visattn.blocks.eca import eca_kernel_size
from visattn.blocks.pooling import average_cells
from visattn.blocks.primitives import AcrossChannels, by_image
from visattn.core.arguments import Device, DType, positive


@register_block(
    "mlca",
    family="mixed",
    paper="Wan et al., EAAI 2023, doi:10.1016/j.engappai.2023.106442",
    used_in="object detectors",
)
class MixedLocalChannel(Gate):
    """ECA over the whole map and over a few cells of it, half and half.

    Args:
        channels: C.
        size: cells along each side.
        local_weight: share m of the gate that cells have of their own, from 0 to 1.
    """

    def __init__(
        self,
        channels: int,
        *,
        size: int = 5,
        local_weight: float = 0.5,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        positive("mlca", size=size)
        if not 0 <= local_weight <= 1:
            raise ValueError(f"mlca needs local_weight between 0 and 1, got {local_weight}")
        kernel_size = eca_kernel_size(channels)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.size = size
        self.local_weight = local_weight
        self.overall = AcrossChannels(1, 1, kernel_size, **factory)
        self.local = AcrossChannels(1, 1, kernel_size, **factory)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, H, W)."""
        return average_cells(self._cells(x), x.shape[2], x.shape[3])

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        gates = self._cells(x)
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return by_image(gate_cells, x, gates)
        return gate_cells(x, gates)

    def _cells(self, x: Tensor) -> Tensor:
        """Gates of the cells, (B, C, S, S)."""
        size = self.size
        cells = average_cells(x, size, size).flatten(2).mT  # (B, S², C)
        overall = torch.sigmoid(self.overall(cells.mean(1, keepdim=True)))  # (B, 1, C)
        local = torch.sigmoid(self.local(cells.flatten(1).unsqueeze(1))).view(cells.shape)  # (B, S², C)
        mixed = (1 - self.local_weight) * overall + self.local_weight * local
        return mixed.mT.unflatten(2, (size, size))


def gate_cells(x: Tensor, gates: Tensor) -> Tensor:
    """Multiply a map by the gates of the cells that its pixels meet."""
    return x * average_cells(gates, x.shape[2], x.shape[3])
