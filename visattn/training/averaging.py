"""An exponential average of the weights, without a look at the device in every step."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override


class Averaging(WeightAveraging):
    """Validates and saves the average.

    Args:
        decay: how much of the average stays in every optimiser step.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start with a copy of the model."""
        if stage == "fit":
            self._average_model = Average(pl_module, pl_module.device, self.decay)


class Average(AveragedModel):
    """The average of a model's parameters and buffers.

    torch's own asks its counter, which is on the device, in every step whether it is the first.
    """

    def __init__(self, model: nn.Module, device: torch.device, decay: float) -> None:
        super().__init__(model, device, use_buffers=True)
        self.decay = decay
        self._begun: bool | None = None  # not known, as long as a checkpoint may be loaded

    @override
    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take a step into account; the first one is taken as it is."""
        if self._begun is None:
            self._begun = bool(self.n_averaged > 0)
        averages = [*self.module.parameters(), *self.module.buffers()]
        for average, new in zip(averages, [*model.parameters(), *model.buffers()], strict=True):
            average.copy_(self.decay * average + (1 - self.decay) * new if self._begun else new)
        self._begun = True
        self.n_averaged += 1
