"""Arithmetic on the numbers of a model: precise enough, and in slices that take no more memory than the model.

A model may run in reduced precision, by its weights or under ``torch.autocast``. What is computed from its numbers runs
in single precision at least, wherever it happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from visattn.core.precision import without_autocast

PIECE = 2**19  # elements of a map that are computed at once: they fit a processor's cache


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute without autocast, whatever the caller uses, and without recording a graph."""
    with torch.no_grad(), without_autocast(device):
        yield


def row_slices(rows: Tensor, columns: int) -> Iterator[slice]:
    """Slices over the rows of maps (..., rows, columns), each with a moderate number of elements.

    Args:
        rows: (..., rows, *).
        columns: how many there are.
    """
    number = rows.shape[-2]
    step = max(1, PIECE // max(1, rows.shape[:-2].numel() * columns))
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))
