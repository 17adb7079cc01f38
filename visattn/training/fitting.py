"""Let Lightning train, and report in one line what it could not handle."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Trainer

from visattn.data.datamodule import ImageData
from visattn.training.classifier import Classifier
from visattn.training.errors import PROBLEMS, USAGE, RunError, modules_of, one_line
from visattn.training.ranks import is_first
from visattn.training.runs import Run

ONE_VALUE = "Expected more than 1 value per channel"  # torch's words

# The module that reads a checkpoint.
RESTORING = "lightning.pytorch.trainer.connectors.checkpoint_connector"
CALLBACKS = "lightning.pytorch.callbacks."


def fit(trainer: Trainer, classifier: Classifier, data: ImageData, run: Run, arguments: Mapping[str, Any]) -> None:
    """Train; a checkpoint or Trainer argument that Lightning cannot handle becomes a one-line error."""
    if trainer.world_size == 1 and not is_first():
        raise ValueError(
            "the environment says that this is not the first process, but it is the only one: unset RANK, LOCAL_RANK, "
            "NODE_RANK and SLURM_PROCID, or start all processes"
        )
    try:
        with said_once():
            trainer.fit(classifier, data, ckpt_path=run.checkpoint, weights_only=True)
    except Exception as error:
        if ONE_VALUE in str(error):
            raise ValueError(
                "batch normalisation needs more than one value per channel, but the model shrinks an image to a single "
                f"place: raise --batch-size (it is {data.batch_size}) or --image-size"
            ) from error
        passed, reason = modules_of(error), f"{type(error).__name__}: {one_line(error)[:200]}"
        restoring = RESTORING in passed or any("optim." in each for each in passed[-3:])
        theirs = not passed[-1].startswith("visattn.") and not isinstance(error, FloatingPointError)
        if run.checkpoint is not None and restoring and theirs:
            raise ValueError(f"{str(run.checkpoint)!r} does not contain the state of a run ({reason})") from error
        caller = [each for each in passed if each.startswith(("visattn.", "lightning."))][-1]
        lightnings = passed[-1].startswith("lightning.") or caller.startswith(CALLBACKS)
        if arguments and lightnings and not isinstance(error, PROBLEMS):
            raise ValueError(f"Lightning's Trainer failed with these arguments: {reason}") from error
        raise
    if trainer.current_epoch == 0 and not run.best.is_file():
        raise ValueError("no epoch was completed, so there is nothing to save: check --trainer.max_steps and max_time")


@contextmanager
def under_way(trainer: Trainer, steps: int) -> Iterator[None]:
    """From the first step after these on, an error is a failure of the run, whatever was asked for."""
    try:
        yield
    except USAGE as error:
        if trainer.global_step > steps:
            raise RunError(one_line(error)) from error
        raise


@contextmanager
def said_once() -> Iterator[None]:
    """Hide the traceback of a thread that cannot write, such as tensorboard's: the trainer reports the same error."""
    before = threading.excepthook
    threading.excepthook = lambda told: None if isinstance(told.exc_value, OSError) else before(told)
    try:
        yield
    except OSError:
        for thread in threading.enumerate():
            if type(thread).__module__.startswith("tensorboard."):
                thread.join(1)  # it may be about to fail
        raise
    finally:
        threading.excepthook = before
