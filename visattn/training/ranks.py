"""Runs of several processes: which one prints and writes, and how they end together."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

P = ParamSpec("P")


def is_first() -> bool:
    """Whether this process prints and writes; known even before the processes are connected."""
    for name in ("RANK", "SLURM_PROCID"):  # torchrun, SLURM: global rank
        if name in os.environ:
            return os.environ[name] == "0"
    return all(os.environ.get(name, "0") == "0" for name in ("NODE_RANK", "LOCAL_RANK"))  # Lightning's own launcher


def on_first_process(do: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
    """Do something on the first process only."""
    if is_first():
        do(*args, **kwargs)


def end_together() -> None:
    """Wait for each other one last time: a process that leaves early can take the others down with it."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
