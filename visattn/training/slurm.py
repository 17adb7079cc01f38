"""Runs as SLURM jobs, which can be requeued."""

from __future__ import annotations

import os
import subprocess

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Trainer


def job() -> str | None:
    """Id of the SLURM job as ``scontrol`` takes it, or None outside SLURM."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    return os.environ.get("SLURM_JOB_ID")


def is_restarted() -> bool:
    """Whether SLURM has run this job before."""
    count = os.environ.get("SLURM_RESTART_COUNT", "0")
    if not count.isdecimal():
        raise ValueError(f"SLURM_RESTART_COUNT is {count!r}, not a number")
    return int(count) > 0


def requeue_signal(trainer: Trainer) -> int | None:
    """Signal by which SLURM announces that the job's time is up, if the job should be requeued."""
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
        return environment.requeue_signal
    return None


def requeue() -> str:
    """Requeue the job; returns a line about the outcome."""
    command = ["scontrol", "requeue", str(job())]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return f"{' '.join(command)} failed: {error.strerror}"
    if result.returncode:
        return f"{' '.join(command)} failed: {' '.join(result.stderr.split()) or result.returncode}"
    return f"SLURM will restart job {job()}"
