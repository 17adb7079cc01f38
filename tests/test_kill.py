"""Killed at any moment, a run goes on as if nothing had happened."""

import random
import signal
import subprocess
import sys
import time

import pytest

from tests.training import SCRIPT, TINY, assert_same_weights, checkpoint, environment, train

# Long enough to be hit anywhere; dropout and cutout make every random number count.
LONG = [
    *TINY, "--epochs", "6", "--trainer.limit_train_batches", "8", "--augment", "cutout", "--mixup", "0.2",
    "--model-options", "{drop_rate: 0.2}", "--ema", "0.9",
]  # fmt: skip


def start(*arguments, cwd):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the run ended without {text!r}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all runs are written; the first one is left alone."""
    folder = tmp_path_factory.mktemp("runs")
    train(*LONG, "--name", "whole", cwd=folder)
    return folder


def kill_and_resume(folder, name, kills, rng):
    """Kill a run again and again, at random moments, and let it finish in the end."""
    run = folder / "runs" / name
    for _ in range(kills):
        process = start(*LONG, "--name", name, "--resume", cwd=folder)
        wait_for(process, "writing to")
        time.sleep(rng.uniform(0, 3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for file in (run / "checkpoints").glob("*.ckpt"):
            assert "state_dict" in checkpoint(run, file.stem)  # never half a file
        if (run / "checkpoints" / "last.ckpt").exists():
            assert (run / "checkpoints" / "best.ckpt").exists()
    train(*LONG, "--name", name, "--resume", cwd=folder)
    assert_same_weights(run, folder / "runs" / "whole")
    assert checkpoint(run, "best")["epoch"] == checkpoint(folder / "runs" / "whole", "best")["epoch"]
    columns = slice(0, 8)  # all but the speed
    lines = [
        [line.split(",")[columns] for line in (path / "metrics.csv").read_text().splitlines()]
        for path in (run, folder / "runs" / "whole")
    ]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_like_one_left_alone(folder):
    rng = random.Random(0)
    for name, kills in (("often", 12), ("sometimes", 5), ("rarely", 3)):
        kill_and_resume(folder, name, kills, rng)


@pytest.mark.slow
def test_ctrl_c_saves_within_an_epoch_and_the_run_goes_on_from_there(folder):
    process = start(*LONG, "--name", "stopped", cwd=folder)
    wait_for(process, "epoch 2/6")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped and saved; go on with: python train.py --resume runs/stopped" in said
    assert "Traceback" not in said
    saved = checkpoint(folder / "runs" / "stopped")
    assert 16 <= saved["global_step"] < 48
    train("--resume", "runs/stopped", cwd=folder)
    assert_same_weights(folder / "runs" / "stopped", folder / "runs" / "whole")
