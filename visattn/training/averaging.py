"""An exponential moving average of the weights that does not wait for the device in every step."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override


class Averaging(WeightAveraging):
    """Callback that validates and saves the average.

    Args:
        decay: fraction of the average that is kept in every optimiser step.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start from a copy of the model."""
        if stage == "fit":
            self._average_model = Average(pl_module, pl_module.device, self.decay)


class Average(AveragedModel):
    """Average of a model's parameters and buffers.

    torch's own version reads its counter from the device in every step, to see whether it is the first.
    """

    def __init__(self, model: nn.Module, device: torch.device, decay: float) -> None:
        super().__init__(model, device, use_buffers=True)
        self.decay = decay
        self._begun: bool | None = None  # unknown until a checkpoint has had its chance to load

    @override
    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Update the average after a step; the first step is copied."""
        if self._begun is None:
            self._begun = bool(self.n_averaged > 0)
        averages = [*self.module.parameters(), *self.module.buffers()]
        for average, new in zip(averages, [*model.parameters(), *model.buffers()], strict=True):
            average.copy_(self.decay * average + (1 - self.decay) * new if self._begun else new)
        self._begun = True
        self.n_averaged += 1
