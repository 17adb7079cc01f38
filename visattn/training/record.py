"""What is left of every epoch: a row of numbers and a checkpoint."""

from __future__ import annotations

import csv
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from visattn.files import replacing
from visattn.training.runs import Run

METRICS = ("train_loss", "train_top1", "val_loss", "val_top1", "val_top5")
COLUMNS = ("epoch", "step", *METRICS, "lr", "images_per_second", "seconds")
MONITOR = "val_top1"


class Record(Checkpoint):
    """Writes ``metrics.csv``, ``confusion.csv``, ``checkpoints/last.ckpt`` and ``checkpoints/best.ckpt``.

    Best is the first epoch with the highest validation accuracy. Each file is replaced at once, and the rows are part
    of the checkpoint, so that whenever a run is killed it goes on from the end of an epoch as if nothing had happened.

    Args:
        run: where to write.
        tell: called on the first process with an epoch's row, the number of epochs, and whether it is the best so far.
    """

    def __init__(self, run: Run, tell: Callable[[dict[str, Any], int | None, bool], None]) -> None:
        super().__init__()
        self.run = run
        self.tell = tell
        self.rows: list[dict[str, Any]] = []
        self.best = -1.0

    def state_dict(self) -> dict[str, Any]:
        """Rows so far."""
        return {"rows": self.rows, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after these."""
        self.rows, self.best = state_dict["rows"], state_dict["best"]

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; a run resumed within an epoch does not start that epoch."""
        self._start_clock()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start_clock()

    def _start_clock(self) -> None:
        self._began, self._images = time.perf_counter(), 0
        self._trained: float | None = None

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count images."""
        self._images += len(batch["image"]) * trainer.world_size

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock of training."""
        self._trained = time.perf_counter()
        pl_module.confusion.reset()  # type: ignore[operator, union-attr]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write everything."""
        now = time.perf_counter()
        metrics = trainer.callback_metrics
        self.rows.append(
            {
                "epoch": trainer.current_epoch + 1,
                "step": trainer.global_step,
                **{name: float(metrics[name]) if name in metrics else None for name in METRICS},
                "lr": max(group["lr"] for group in trainer.optimizers[0].param_groups),
                "images_per_second": self._images / ((self._trained or now) - self._began),
                "seconds": now - self._began,
            }
        )
        score = self.rows[-1][MONITOR]
        validated = score is not None
        improved = score > self.best if validated else self.best < 0  # the last one, as long as none is validated
        if improved and validated:
            self.best = score
        matrix = pl_module.confusion.compute() if validated else None  # type: ignore[operator, union-attr]
        trainer.save_checkpoint(self.run.best if improved else self.run.last)
        if trainer.is_global_zero:
            if improved:
                _duplicate(self.run.best, self.run.last)
                if matrix is not None:
                    _write_rows(self.run.folder / "confusion.csv", matrix.tolist())
            _write_rows(
                self.run.folder / "metrics.csv", [COLUMNS, *([row[key] for key in COLUMNS] for row in self.rows)]
            )
            self.tell(self.rows[-1], trainer.max_epochs, improved)
        trainer.strategy.barrier()


def read_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of ``metrics.csv``."""
    with (run.folder / "metrics.csv").open(newline="") as stream:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(stream)]


def _number(text: str) -> float | None:
    return None if not text else int(text) if text.isdigit() else float(text)


def _duplicate(source: Path, target: Path) -> None:
    """A second name for a file where the file system knows such a thing, or else a copy."""
    with replacing(target) as partial:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)


def _write_rows(path: Path, rows: list[Any]) -> None:
    with replacing(path) as partial, partial.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
