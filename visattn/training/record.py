"""What every epoch leaves behind: a row of metrics and a checkpoint."""

from __future__ import annotations

import csv
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from visattn.files import replacing
from visattn.training.runs import Run

METRICS = ("train_loss", "train_top1", "val_loss", "val_top1", "val_top5")
COLUMNS = ("epoch", "step", *METRICS, "lr", "images_per_second", "seconds")


class Record(Checkpoint):
    """Write ``metrics.csv``, ``confusion.csv``, ``checkpoints/last.ckpt`` and ``checkpoints/best.ckpt``.

    The best epoch has the highest validation accuracy; ties go to the lowest loss, then to the last epoch. Each file is
    replaced atomically, and the rows are part of the checkpoint, so a run that is killed at any moment resumes from the
    end of an epoch as if nothing had happened.

    Args:
        run: where to write.
        tell: called on the first process with an epoch's row, the number of epochs, and whether it is the best so far.
        patience: end the run after this many epochs without improvement.
    """

    def __init__(
        self, run: Run, tell: Callable[[dict[str, Any], int | None, bool], None], patience: int | None = None
    ) -> None:
        super().__init__()
        self.run = run
        self.tell = tell
        self.patience = patience
        self.rows: list[dict[str, Any]] = []
        self._best: dict[str, Any] | None = None  # the row of best.ckpt

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the saved rows."""
        self.rows = recorded({Record.__qualname__: state_dict})

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, also for a run resumed within an epoch."""
        self._best = next((row for row in self.rows if row["epoch"] == self.run.best_epoch), None)
        self._start_clock()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock of the epoch."""
        self._start_clock()

    def _start_clock(self) -> None:
        self._began, self._images = time.perf_counter(), 0
        self._trained: float | None = None

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count images."""
        self._images += len(batch["image"]) * trainer.world_size

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the training clock."""
        self._trained = time.perf_counter()
        pl_module.confusion.reset()  # type: ignore[operator, union-attr]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the epoch's row, confusion matrix and checkpoint."""
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
        improved = self._best is None or quality(self.rows[-1]) >= quality(self._best)
        if improved:
            self._best = self.rows[-1]
        validated = self.rows[-1]["val_top1"] is not None
        if validated and self.patience is not None and epochs_without_a_better_one(self.rows) >= self.patience:
            trainer.should_stop = True
        matrix = pl_module.confusion.compute() if validated else None  # type: ignore[operator, union-attr]
        trainer.save_checkpoint(self.run.best if improved else self.run.last)
        if trainer.is_global_zero:
            if improved:
                _duplicate(self.run.best, self.run.last)
                if matrix is not None:
                    names = trainer.datamodule.source.names  # type: ignore[attr-defined]
                    rows = [[name, *row] for name, row in zip(names, matrix.tolist(), strict=True)]
                    _write_rows(self.run.folder / "confusion.csv", [["truth", *names], *rows])
            _write_rows(
                self.run.folder / "metrics.csv", [COLUMNS, *([row[key] for key in COLUMNS] for row in self.rows)]
            )
            self.tell(self.rows[-1], trainer.max_epochs, improved)
        trainer.strategy.barrier()


def quality(row: Mapping[str, Any]) -> tuple[float, float]:
    """Sort key of an epoch, larger is better: validation accuracy, then loss; equal for all without validation."""
    accuracy, loss = row["val_top1"], row["val_loss"]
    return -1 if accuracy is None else accuracy, -math.inf if loss is None or math.isnan(loss) else -loss


def continues(rows: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a table of epochs begins with another one: that of the same run at an earlier time."""
    keys = ("epoch", "step", "seconds")  # never NaN, which differs from itself
    return [[row[key] for key in keys] for row in rows[: len(earlier)]] == [
        [row[key] for key in keys] for row in earlier
    ]


def best_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Row of the best epoch; the last one in case of a tie."""
    return max(reversed(rows), key=quality)


def epochs_without_a_better_one(rows: Sequence[Mapping[str, Any]]) -> int:
    """Number of epochs after the best one; the first one in case of a tie.

    >>> epochs_without_a_better_one([{"val_top1": 0.9, "val_loss": loss} for loss in (0.7, 0.5, 0.5, 0.6)])
    2
    """
    return len(rows) - 1 - rows.index(max(rows, key=quality))


def read_rows(run: Run) -> list[dict[str, Any]]:
    """Read the rows of ``metrics.csv``."""
    path = run.folder / "metrics.csv"
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [{key: _number(row[key]) for key in COLUMNS} for row in csv.DictReader(stream)]
    except (ValueError, KeyError, AttributeError, csv.Error) as error:
        raise ValueError(f"{str(path)!r} is not a table of epochs ({type(error).__name__}: {error})") from None
    if not all(_is_row(row) for row in rows) or [row["epoch"] for row in rows] != list(range(1, len(rows) + 1)):
        raise ValueError(f"{str(path)!r} is not a table of epochs: it was edited; train on to have it written again")
    return rows


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == set(COLUMNS)
        and all(type(row[key]) in (int, float) or (row[key] is None and key in METRICS) for key in COLUMNS)
        and all(row[key] is None or 0 <= row[key] <= 1 for key in METRICS if "top" in key)
    )


def recorded(callbacks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of epochs in the part of a checkpoint that callbacks wrote; raises if there is none."""
    state = callbacks.get(Record.__qualname__)
    rows = state.get("rows") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise ValueError("the checkpoint's table of epochs is malformed: it cannot be resumed")
    return rows


def _number(text: str) -> float | None:
    return None if not text else int(text) if text.isdigit() else float(text)


def _duplicate(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where the file system has no hard links."""
    with replacing(target) as partial:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)


def _write_rows(path: Path, rows: list[Any]) -> None:
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
