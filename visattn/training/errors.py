"""Errors of a run, as one line."""

from __future__ import annotations

import traceback

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from visattn.files import in_words
from visattn.missing import MissingPackage


class RunError(Exception):
    """A run that had begun to train could not go on."""


# Errors that the user can fix; anything else is a bug of ours and keeps its traceback.
USAGE = (ValueError, MisconfigurationException, MissingPackage)  # what was asked for cannot be done
PROBLEMS = (*USAGE, RunError, OSError, FloatingPointError, MemoryError, torch.OutOfMemoryError)


def one_line(error: BaseException) -> str:
    """Format an error as one line."""
    if isinstance(error, torch.OutOfMemoryError):
        reason = str(error).split(".")[0]
        return f"the device is out of memory: lower --batch-size, or raise --accumulate ({reason})"
    if isinstance(error, MemoryError):
        return f"out of memory: lower --batch-size or --image-size ({' '.join(str(error).split())[:100]})"
    return in_words(error)


def modules_of(error: BaseException) -> list[str]:
    """Modules that an error passed through; the last one raised it."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
