"""What is measured in every step, without a look at it.

A GPU works through a queue, and the host has to wait for it whenever it wants to know a number. torchmetrics asks in
every update, since it indexes with masks; here sums and counts stay on the device until an epoch ends. The results are
the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from visattn.data.loader import IGNORE


class Mean(Metric):
    """The weighted mean of what are numbers; what is not a number does not count."""

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("weight", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, value: Tensor, weight: Tensor | int) -> None:
        """Take a number into account; it has no shape."""
        value = value.float()
        missing = value.isnan()
        self.total += (value * weight).masked_fill(missing, 0)
        self.weight += (~missing) * weight

    def compute(self) -> Tensor:
        """Of all processes; not a number if there was nothing."""
        return self.total / self.weight


class Accuracy(Metric):
    """The share of images whose label is among the k highest logits.

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
        """Count the right answers of a batch: logits (B, classes), labels (B,)."""
        counted = label != IGNORE
        guesses = logits.argmax(1, keepdim=True) if self.k == 1 else logits.topk(self.k).indices  # (B, k)
        self.right += ((guesses == label[:, None]).any(1) & counted).sum()
        self.counted += counted.sum()

    def compute(self) -> Tensor:
        """Of all processes; zero if there was nothing."""
        return self.right / self.counted.clamp(min=1)


class Confusion(Metric):
    """How often images of each class (rows) were taken for each class (columns).

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
        """(C, C), of all processes."""
        return self.matrix
