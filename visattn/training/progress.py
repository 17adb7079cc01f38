"""The progress bar and the line per epoch of a training run."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from typing_extensions import override

from visattn.training.classifier import Classifier

SMOOTHING = 0.9  # of loss and speed, per reading
READ_EVERY = 5  # steps; reading the loss makes a GPU wait


class TrainingProgress(ProgressBar):
    """One bar for the whole run, with loss, accuracy, images per second and time left, and a line per epoch.

    Without a terminal (in a log file or on a cluster) there are only the lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(highlight=False)
        self.enabled = True
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._smooth: dict[str, float] = {}
        self._images, self._before = 0, 0.0

    def disable(self) -> None:
        """Turn the bar off; called on all processes but the first."""
        self.enabled = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar."""
        self._images, self._before = 0, time.perf_counter()
        if not self.enabled or not self.console.is_terminal:
            return
        batches = int(trainer.num_training_batches) if trainer.num_training_batches != float("inf") else 0
        total = (trainer.max_epochs or 0) * batches
        done = trainer.current_epoch * batches + trainer.fit_loop.epoch_loop.batch_progress.current.completed
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[status]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            expand=True,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total or None, completed=done, epoch=_epoch(trainer), status="")
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by a batch."""
        if self._bar is None:
            return
        self._images += len(batch["image"]) * trainer.world_size
        self._bar.update(self._task, advance=1, epoch=_epoch(trainer))
        if (batch_idx + 1) % READ_EVERY == 0:
            now = time.perf_counter()
            loss = self._smoothed("loss", float(outputs["loss"]))
            speed = self._smoothed("speed", self._images / (now - self._before))
            self._images, self._before = 0, now
            assert isinstance(pl_module, Classifier)
            status = f"loss {loss:.3f}  accuracy {pl_module.running_accuracy():.1%}  {speed:,.0f} images/s "
            self._bar.update(self._task, status=status)

    def _smoothed(self, name: str, value: float) -> float:
        before = self._smooth.get(name, value)
        self._smooth[name] = SMOOTHING * before + (1 - SMOOTHING) * value
        return self._smooth[name]

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show that validation is running, while the bar stands still."""
        if self._bar is not None:
            self._bar.update(self._task, status="validating ")

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude validation from the speed."""
        self._images, self._before = 0, time.perf_counter()

    def finish_epoch(self, row: dict[str, Any], epochs: int | None, best: bool) -> None:
        """Print the line of an epoch."""
        parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['train_loss']:.3f}", f"accuracy {row['train_top1']:.1%}"]
        if row["val_top1"] is not None:
            parts += [f"val loss {row['val_loss']:.3f}", f"val accuracy {row['val_top1']:.1%}"]
        parts += [f"{row['images_per_second']:,.0f} images/s", "*" if best else ""]
        self.console.print("  ".join(parts), soft_wrap=True)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the bar away."""
        self._stop()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the bar away."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _epoch(trainer: Trainer) -> str:
    return f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
