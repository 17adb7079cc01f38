"""What every patch attends to, in each attention layer between patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from visattn.heatmaps.propagation import fuse_heads
from visattn.heatmaps.request import Request
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer

MOST_PAIRS = 4_000_000  # queries times keys, beyond which nobody wants to see all of them


@dataclass(frozen=True)
class Affinities:
    """What every query place takes from every key place, heads averaged.

    Args:
        weights: (B, queries, keys), both in row order.
        query_grid, key_grid: height and width.
    """

    weights: Tensor
    query_grid: tuple[int, int]
    key_grid: tuple[int, int]


def affinities(request: Request) -> dict[str, Affinities]:
    """What every patch attends to in each attention layer between patches, by name; very large ones are left out."""
    found = geometry(request.model, request.images)
    related: dict[str, Affinities] = {}

    def note(layer: Layer, call: Call) -> None:
        queries, keys = layer.queries, layer.keys
        if queries.grid is None or keys.grid is None:
            return
        sizes = [grid.size[0] * grid.size[1] for grid in (queries.grid, keys.grid)]
        if sizes[0] * sizes[1] <= MOST_PAIRS:
            fused = torch.cat([fuse_heads(each) for each in layer.weights_in_pieces(call)], 2)
            related[layer.name] = Affinities(_unwindowed(fused, layer, *sizes), queries.grid.size, keys.grid.size)

    with torch.no_grad():
        request.run(reporting_layers(request.model, found, note))
    return related


def _unwindowed(fused: Tensor, layer: Layer, queries: int, keys: int) -> Tensor:
    """(B, queries, keys) over the whole grids, the mean where windows overlap."""
    whole = fused.new_zeros(len(fused), queries * keys)
    rows, columns = layer.queries.index.to(fused.device), layer.keys.index.to(fused.device)
    patches = (rows >= 0)[:, :, None] & (columns >= 0)[:, None]  # (windows, Nq, Nk)
    position = (rows[:, :, None] * keys + columns[:, None])[patches]
    whole.index_add_(1, position, fused[:, patches])
    asked = torch.bincount(rows[rows >= 0], minlength=queries).clamp(min=1)
    return whole.unflatten(1, (queries, keys)) / asked[:, None]
