"""Small training runs for the tests: real processes, a tiny real timm model, the bundled digits."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "train.py"

# A real ResNet of timm's with attention, 64 images per epoch in four steps.
TINY = [
    "--model", "test_resnet", "--attn", "eca", "--batch-size", "16", "--epochs", "2", "--film-every", "0",
    "--trainer.limit_train_batches", "4", "--trainer.limit_val_batches", "2", "--trainer.accelerator", "cpu",
]  # fmt: skip


HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def environment() -> dict[str, str]:
    """One thread per process: several run at once on a small machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1", **HIDDEN}


def train(*arguments: str, cwd: Path, check: bool = True, launcher: tuple[str, ...] = (), timeout: int = 300):
    """Run train.py to its end."""
    command = [sys.executable, *launcher, str(SCRIPT), *map(str, arguments)]
    result = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout)
    if check and result.returncode:
        raise AssertionError(f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def start(*arguments: str, cwd: Path, script: Path = SCRIPT, launcher: tuple[str, ...] = ()):
    """Begin to run train.py, in a process group of its own."""
    command = [sys.executable, *launcher, str(script), *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Read what a run says up to a line with this text."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the run ended without {text!r}")


def checkpoint(folder: Path, name: str = "last") -> dict:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def assert_same_weights(one: Path, other: Path, tolerance: float = 0.0) -> None:
    """The last checkpoints of two runs hold the same model."""
    expected, actual = checkpoint(other)["state_dict"], checkpoint(one)["state_dict"]
    assert expected.keys() == actual.keys()
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
