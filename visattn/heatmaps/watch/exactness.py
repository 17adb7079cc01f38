"""Our own arithmetic: exact enough, and in pieces that take no more memory than the model.

A model may run in reduced precision, by its weights or under ``torch.autocast``. What is computed from its numbers runs
in single precision at least, wherever it happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from visattn.core.precision import without_autocast

PIECE = 2**19  # numbers of a map that are computed at once: they stay in a processor's cache


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Without autocast, whatever the caller is in, and without a graph."""
    with torch.no_grad(), without_autocast(device):
        yield


def row_slices(rows: Tensor, columns: int) -> Iterator[slice]:
    """Slices over the rows of maps (..., rows, columns), so that each holds a moderate number of their numbers.

    Args:
        rows: (..., rows, *).
        columns: how many there are.
    """
    number = rows.shape[-2]
    step = max(1, PIECE // max(1, rows.shape[:-2].numel() * columns))
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))
