"""Ctrl-C: finish the step, save, stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from visattn.training.runs import Run


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """The run was stopped by Ctrl-C and its state is saved."""


class Interruption(Callback):
    """Saves ``last.ckpt`` between two steps and ends the run; a second Ctrl-C ends it at once.

    With several processes they agree on the step, since a signal does not reach them all in the same one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.asked = False
        self._before: Any = None

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked = True
        signal.signal(signal.SIGINT, self._before)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen."""
        if threading.current_thread() is threading.main_thread():  # elsewhere Python does not deliver signals
            self._before = signal.signal(signal.SIGINT, self._ask)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Listen no more."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _agreed(self, trainer: Trainer) -> bool:
        return trainer.strategy.reduce_boolean_decision(self.asked, all=False)

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop after an optimiser step; the last one of an epoch has validation and saving behind it anyway."""
        if trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self._agreed(trainer):
            trainer.save_checkpoint(self.run.last)
            raise Interrupted(self.run.folder)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop between two epochs: the one before has been saved."""
        if trainer.current_epoch > 0 and self._agreed(trainer):
            raise Interrupted(self.run.folder)
