"""Attention a few queries at a time, where the fused kernel cannot compute it.

The weights of a few queries are computed, used and forgotten, in training too: the backward pass computes them again.
So there are never weights for all pairs of queries and keys, and memory grows with the map, not with its square.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from visattn.blocks.primitives import runs_plainly

PAIRS = 2**17  # of a query and a key that are looked at together, in every head of every image


def in_chunks(function: Callable[..., Tensor], *rows: Tensor, keys: int) -> Tensor:
    """What a function makes of rows (..., N, d) of queries, each of which it treats by itself: (..., N, d').

    Compilers, exporters, ``torch.func`` and code that watches torch functions see all rows at once.

    Args:
        function: what is called with some rows of each of the tensors.
        rows: one or more tensors with as many rows, (..., N, d).
        keys: how many numbers it computes for a row, in every head of every image.
    """
    step = max(1, PAIRS // keys)
    if not runs_plainly(rows[0]) or rows[0].shape[-2] <= step:
        return function(*rows)
    chunks = zip(*(each.split(step, dim=-2) for each in rows), strict=True)
    return torch.cat(
        [checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks], dim=-2
    )
