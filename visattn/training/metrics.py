"""Metrics that are updated in every step without waiting for the device.

A GPU works through a queue, and the host has to wait whenever it reads a value back. torchmetrics does that in every
update, since it indexes with masks; here sums and counts stay on the device until an epoch ends. The results are the
same.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from visattn.data.loader import IGNORE

SUMS_KEY = "sums"  # where a checkpoint keeps the sums of an epoch that was interrupted
SUMS = {"train_loss": ("total", "weight"), "train_top1": ("right", "counted")}
MOST_COUNTED = 2**53  # images: beyond, floats skip numbers


def are_sums(saved: Any) -> bool:
    """Whether these are the sums of an epoch, in a checkpoint that anybody may have written."""
    return (
        isinstance(saved, dict)
        and saved.keys() == SUMS.keys()
        and all(isinstance(saved[name], dict) and saved[name].keys() == set(sums) for name, sums in SUMS.items())
        and all(_is_sum(each, key) for sums in saved.values() for key, each in sums.items())
    )


def _is_sum(value: Any, key: str) -> bool:
    """Whether a metric can hold a sum; that of losses is infinite if a step in 16 bits was skipped for it."""
    most = torch.finfo(torch.float32).max if key == "total" else MOST_COUNTED
    return type(value) in (int, float) and (0 <= value <= most or (key == "total" and value == inf))


class Mean(Metric):
    """Weighted mean, ignoring NaN."""

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("weight", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value: Tensor, weight: Tensor | int) -> None:
        """Add a scalar."""
        value = value.float()
        missing = value.isnan()
        self.total += (value * weight).masked_fill(missing, 0)
        self.weight += (~missing) * weight

    def compute(self) -> Tensor:
        """Mean over all processes; NaN if nothing was added."""
        return self.total / self.weight


class Accuracy(Metric):
    """Fraction of images whose label is among the k highest logits.

    Args:
        k: 1 for the highest.
    """

    full_state_update = False
    right: Tensor
    counted: Tensor

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = k
        for name in ("right", "counted"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Count the correct answers of a batch: logits (B, classes), labels (B,)."""
        counted = label != IGNORE
        guesses = logits.argmax(1, keepdim=True) if self.k == 1 else logits.topk(self.k).indices  # (B, k)
        self.right += ((guesses == label[:, None]).any(1) & counted).sum()
        self.counted += counted.sum()

    def compute(self) -> Tensor:
        """Accuracy over all processes; zero if nothing was counted."""
        return self.right / self.counted.clamp(min=1)


class Confusion(Metric):
    """Confusion matrix: true classes in rows, predicted classes in columns.

    Args:
        num_classes: C.
    """

    full_state_update = False
    matrix: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.add_state("matrix", torch.zeros(num_classes, num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Count the answers of a batch: logits (B, classes), labels (B,)."""
        counted = label != IGNORE
        cell = label.clamp(min=0) * logits.shape[1] + logits.argmax(1)
        self.matrix.view(-1).index_add_(0, cell, counted.long())

    def compute(self) -> Tensor:
        """Matrix (C, C) over all processes."""
        return self.matrix
