"""A run may be many processes: who speaks, and what is said."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.counting import count_parameters
from visattn.data.datamodule import ImageData
from visattn.data.readers import Source
from visattn.files import printable
from visattn.training.classifier import Classifier
from visattn.training.runs import Run

P = ParamSpec("P")

# What a person can do something about; anything else is a mistake of ours and shows where it happened.
PROBLEMS = (ValueError, OSError, FloatingPointError, MemoryError, torch.OutOfMemoryError, MisconfigurationException)


# How torch says that a CPU has no more memory; it has no exception of its own for that.
NO_MEMORY = "DefaultCPUAllocator: "


def is_first() -> bool:
    """Whether this is the process that speaks and writes, before or after they have all found each other."""
    for name in ("RANK", "SLURM_PROCID"):  # torchrun, SLURM: the number among all processes
        if name in os.environ:
            return os.environ[name] == "0"
    return all(os.environ.get(name, "0") == "0" for name in ("NODE_RANK", "LOCAL_RANK"))  # Lightning's own launcher


def on_first_process(do: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
    """Do something once, not once per process."""
    if is_first():
        do(*args, **kwargs)


def part() -> None:
    """Wait for each other a last time: a process that leaves early can take the others down with it."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def one_line(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the device has not enough memory: lower --batch-size, or --accumulate more ({str(error).split('.')[0]})"
        )
    if isinstance(error, MemoryError):
        return f"there is not enough memory: lower --batch-size or --image-size ({' '.join(str(error).split())[:100]})"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename!r}" if error.filename else ""
        return f"{error.strerror}{where}"
    return printable(str(error)) or type(error).__name__


def modules_of(error: BaseException) -> list[str]:
    """The modules that an error came through, the one that raised it last."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]


def announce(run: Run, classifier: Classifier, data: ImageData, trainer: Trainer) -> None:
    """Say what is about to happen."""
    settings, source = classifier.settings, data.source
    name = settings.model if settings.attn is None else f"{settings.model} with {settings.attn}"
    trained = count_parameters(classifier.model)
    total = sum(parameter.numel() for parameter in classifier.model.parameters())
    parameters = f"{total:,} parameters" if trained == total else f"{trained:,} of {total:,} parameters"
    processes = f" in {trainer.world_size} processes" if trainer.world_size > 1 else ""
    pixels = " x ".join(map(str, data.preparation.size[1:]))
    print(f"{name}, {parameters}, on {settings.data}: {len(source.classes)} classes, {pixels} pixels")
    if isinstance(source, Source):
        print(f"{len(source.train):,} images to train on, {len(source.val):,} to validate on")
        for note in source.notes:
            print(f"note: {note}")
    if settings.freeze_backbone and not settings.pretrained and run.checkpoint is None:
        print("note: --freeze-backbone without --pretrained: the backbone stays as random as it is")
    print(f"{trainer.accelerator.__class__.__name__.removesuffix('Accelerator')}{processes}, writing to {run.folder}/")
    if run.checkpoint is not None:
        print(f"going on from {run.checkpoint}")
    elif settings.resume is not None:
        print(f"nothing to go on with in {run.folder}/ yet: starting from the beginning")
    if trainer.world_size > 1 and trainer.accelerator.name() == "cpu" and _has_batch_norm(classifier.model):
        print("note: SyncBatchNorm runs on GPUs only; each process normalises its own batches")


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())
