"""An exponential moving average of the weights that does not wait for the device in every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from visattn.files import printable


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


def what_changes(state: Mapping[str, Any], callbacks: Iterable[Callback]) -> Iterator[str]:
    """What a run that is resumed with these callbacks does unlike before; raises if it would lose its weights."""
    now = {_kind(each.state_key) for each in callbacks}
    gone = [_named(key) for key in map(str, state["callbacks"]) if _kind(key) not in now]
    averaging = [each.state_key for each in callbacks if isinstance(each, WeightAveraging)]
    averaged = "current_model_state" in state  # Lightning's name for the weights that are trained
    if averaged and not any(key in state["callbacks"] for key in averaging):
        raise ValueError(
            f"the checkpoint has the average of the run's weights ({', '.join(gone)}), and beside it those that are "
            "trained, which would be lost: resume it as it started, with the same average"
        )
    if averaging and not averaged:
        yield "note: the run had no average of its weights so far: it begins here"
    if gone:
        yield f"note: the run goes on without {', '.join(gone)}, whose state is in the checkpoint"


def _kind(key: str) -> str:
    """A callback by the key of its state, which may have its arguments behind its name."""
    return key.partition("{")[0]


def _named(key: str) -> str:
    return "--ema" if key == Averaging.__qualname__ else printable(_kind(key))[:80]


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
