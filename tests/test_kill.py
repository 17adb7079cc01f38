"""Killed at any moment, a run goes on as if nothing had happened."""

import csv
import random
import signal
import time

import pytest

from tests.training import TINY, assert_same_weights, checkpoint, start, train, wait_for

# Long enough to be hit anywhere; dropout and cutout make every random number count.
LONG = [
    *TINY, "--epochs", "6", "--trainer.limit_train_batches", "8", "--augment", "cutout", "--mixup", "0.2",
    "--model-options", "{drop_rate: 0.2}", "--ema", "0.9",
]  # fmt: skip
OUTCOME = ("epoch", "step", "val_loss", "val_top1", "val_top5", "lr")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all runs are written; the first one is left alone."""
    folder = tmp_path_factory.mktemp("runs")
    train(*LONG, "--name", "whole", cwd=folder)
    return folder


def end(folder, name, number, rng):
    """Begin or go on with a run and send it a signal at a random moment."""
    run = folder / "runs" / name
    process = start(*LONG, "--name", name, "--resume", cwd=folder)
    wait_for(process, "writing to")
    time.sleep(rng.uniform(0, 3))
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert "Traceback" not in said
    for file in (run / "checkpoints").glob("*.ckpt"):
        assert "state_dict" in checkpoint(run, file.stem)  # never half a file
    return process.returncode, said


def finish(folder, name, columns):
    """Let a run go on to its end, which is that of a run left alone."""
    train(*LONG, "--name", name, "--resume", cwd=folder)
    run, whole = folder / "runs" / name, folder / "runs" / "whole"
    assert_same_weights(run, whole)
    assert checkpoint(run, "best")["epoch"] == checkpoint(whole, "best")["epoch"]
    rows, expected = (list(csv.DictReader((path / "metrics.csv").read_text().splitlines())) for path in (run, whole))
    assert [[row[key] for key in columns] for row in rows] == [[row[key] for key in columns] for row in expected]


FEW = {"often": 5, "sometimes": 2, "rarely": 1}
TWENTY = {"very_often": 12, "quite_often": 5, "now_and_then": 3}


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(FEW, marks=pytest.mark.slow(minutes=2), id="eight times"),
        pytest.param(TWENTY, marks=pytest.mark.sweep, id="twenty times"),
    ],
)
def test_a_run_killed_at_any_moment_ends_like_one_left_alone(folder, runs):
    rng = random.Random(0)
    for name, kills in runs.items():
        for _ in range(kills):
            end(folder, name, signal.SIGKILL, rng)
            checkpoints = folder / "runs" / name / "checkpoints"
            assert (checkpoints / "best.ckpt").exists() or not (checkpoints / "last.ckpt").exists()
        finish(folder, name, [*OUTCOME, "train_loss", "train_top1"])


@pytest.mark.slow
def test_a_run_told_to_end_at_any_moment_loses_no_step(folder):
    rng, steps = random.Random(1), [0]
    for _ in range(4):
        code, said = end(folder, "told", signal.SIGTERM, rng)
        if code == 0 or "in total" in said:  # only when all is done; a signal may still meet the interpreter leaving
            assert (folder / "runs" / "told" / "heatmaps.png").exists()
            break
        assert code == 143, said
        assert "stopped and saved; resume with: python train.py --resume runs/told" in said or steps == [0]
        if "stopped and saved" in said:
            steps.append(checkpoint(folder / "runs" / "told")["global_step"])
    assert steps == sorted(steps)
    assert any(step % 8 for step in steps)  # within an epoch
    finish(folder, "told", OUTCOME)


@pytest.mark.slow
def test_ctrl_c_saves_within_an_epoch_and_the_run_goes_on_from_there(folder):
    process = start(*LONG, "--name", "stopped", cwd=folder)
    wait_for(process, "epoch 2/6")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped and saved; resume with: python train.py --resume runs/stopped" in said
    assert "Traceback" not in said
    saved = checkpoint(folder / "runs" / "stopped")
    assert 16 <= saved["global_step"] < 48
    train("--resume", "runs/stopped", cwd=folder)
    assert_same_weights(folder / "runs" / "stopped", folder / "runs" / "whole")
