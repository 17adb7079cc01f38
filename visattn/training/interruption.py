"""On Ctrl-C or SIGTERM: finish the step, save, stop."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from typing_extensions import override

from visattn.training import slurm
from visattn.training.agreement import Agreement
from visattn.training.runs import Run
from visattn.training.signals import Interrupted, On, Signals


class Interruption(Callback):
    """After a signal, save ``last.ckpt`` between two steps and end the run.

    Several processes agree on the step, since a signal may reach them in different steps, or only some of them: each
    reports after a step what it has received, and all of them act on it one step later.
    """

    def __init__(self, run: Run, signals: Signals) -> None:
        self.run, self.signals = run, signals

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set up the agreement."""
        self.agreement = Agreement()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop before the first step, when there is nothing new to save."""
        self.signals.first = On.NOTE
        self._stop(self.agreement.now(self.signals.number))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop after an optimiser step, except the last of an epoch or of the run, after which the run saves anyway."""
        last = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if last or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        number = self.agreement.exchange(self.signals.number)
        if number:
            trainer.save_checkpoint(self.run.last)
            self._stop(number)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop between two epochs, when the previous one has been saved."""
        if trainer.current_epoch > 0:
            self._stop(self.agreement.now(self.signals.number))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for pending communication."""
        self.agreement.result()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Training is done: let what remains finish despite a signal."""
        self.signals.first = On.NOTE

    def _stop(self, number: int) -> None:
        if not number:
            return
        if self.signals.launcher is not None:
            # Lightning watches these processes, and kills this one when it sees one of them end.
            self.signals.launcher.procs.clear()
        raise Interrupted(number, self.run.folder if self.run.last.is_file() else None)


def take_over(trainer: Trainer, signals: Signals) -> None:
    """Take over signal handling from Lightning until the end of training.

    Lightning's own handlers write a checkpoint in the middle of a step, or wait for other processes wherever a signal
    happens to arrive, and its loop makes all devices wait for the first process before every step.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
        signals.launcher = trainer.strategy.launcher
    signals.first = On.LEAVE if trainer.world_size > 1 else On.NOTE
    signals.requeue = slurm.requeue_signal(trainer)
    if signals.requeue is not None:
        signals.listen(signals.requeue)
