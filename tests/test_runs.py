"""Which epoch is kept, which folder a run has, who may write to it, and what a resumed run follows."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from tests.training import ROOT, TINY, checkpoint, environment, start, wait_for
from visattn.cli.parsing import CommandLine, parse
from visattn.cli.train import main
from visattn.training import claims, runs
from visattn.training.claims import LOCK, alone
from visattn.training.optimisation import (
    apply_recipe,
    check_optimizer_state,
    cosine_with_warmup,
    create_optimizer,
    recipe,
)
from visattn.training.record import best_row, epochs_without_a_better_one
from visattn.training.runs import Run, claimed, find_run
from visattn.training.settings import Settings


def rows(*qualities):
    return [{"epoch": number, "val_top1": top1, "val_loss": loss} for number, (top1, loss) in enumerate(qualities, 1)]


@pytest.mark.parametrize(
    ("qualities", "best", "since"),
    [
        ([(0.5, 2.0), (0.9, 1.0), (0.8, 0.5)], 2, 1),
        ([(1.0, 0.9), (1.0, 0.3), (1.0, 0.4)], 2, 1),  # the lower loss
        ([(1.0, 0.3), (1.0, 0.3), (1.0, 0.3)], 3, 2),  # the last of equals, which is no progress
        ([(0.5, float("nan")), (0.5, 3.0)], 2, 0),
        ([(0.5, 3.0), (0.5, float("nan"))], 1, 1),
        ([(None, None), (None, None)], 2, 1),  # without validation
        ([(None, None), (0.0, 5.0), (None, None)], 2, 1),
    ],
)
def test_the_best_epoch(qualities, best, since):
    assert best_row(rows(*qualities))["epoch"] == best
    assert epochs_without_a_better_one(rows(*qualities)) == since


def test_every_number_has_two_limits():
    types = get_type_hints(Settings)
    for field in fields(Settings):
        kinds = {types[field.name], *get_args(types[field.name])}
        if {int, float} & kinds and str not in kinds:  # what may be a word too, Lightning checks: devices, precision
            assert len(field.metadata["limits"]) == 2, field.name


def test_runs_that_start_at_once_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with claimed(Settings(name="mine"), "") as one, claimed(Settings(name="mine"), "") as other:
        assert (one.folder, other.folder) == (Path("runs/mine"), Path("runs/mine-run2"))
    # Between the choice of a folder and its making, another run may have it.
    make, late = Path.mkdir, []

    def slow(self, *arguments, **options):
        if not late:
            late.append(self)
            make(self)
        return make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", slow)
    with claimed(Settings(name="mine"), "") as third:
        assert (late, third.folder) == ([Path("runs/mine-run3")], Path("runs/mine-run4"))


@pytest.mark.parametrize("name", ["x/", "x/.", "./x"])
def test_a_name_that_ends_like_a_folder(name, tmp_path):
    """Its second run went into the first one, and the third one never began."""
    for _ in range(3):
        with claimed(Settings(out=str(tmp_path), name=name), "") as run:
            (run.folder / "file").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x-run2", "x-run3"]


def test_a_run_that_comes_to_nothing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nothing"), claimed(Settings(name="mine"), ""):
        raise ValueError("nothing")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="nothing"), claimed(Settings(name="mine"), ""):
        raise ValueError("nothing")
    assert [each.name for each in tmp_path.rglob("*")] == ["runs"]  # which was there before


def trained(settings, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = create_optimizer(model, settings)
    schedule = cosine_with_warmup(optimizer, steps=10, warmup=0)
    plan = recipe(optimizer)
    for _ in range(steps):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule, plan


def test_a_resumed_run_follows_its_settings_and_otherwise_its_checkpoint():
    _, saved, saved_schedule, _ = trained(Settings(lr=0.5, weight_decay=0.1))
    for changes in ({}, {"lr": 0.25, "weight_decay": 0.2}):
        wanted = {"lr": 0.5, "weight_decay": 0.1, **changes}
        _, optimizer, schedule, plan = trained(Settings(**wanted), steps=0)
        optimizer.load_state_dict(saved.state_dict())
        schedule.load_state_dict(saved_schedule.state_dict())
        apply_recipe(plan, optimizer, schedule)
        before = saved.param_groups[0]["lr"]
        assert optimizer.param_groups[0]["lr"] == before * wanted["lr"] / 0.5
        assert max(group["weight_decay"] for group in optimizer.param_groups) == wanted["weight_decay"]
        saved.step(), optimizer.step()
        schedule.step()
        assert schedule.get_last_lr()[0] < before


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"optimizer": "lion"}, {"new_lr_factor": 2.0}])
def test_another_optimiser_is_refused(change):
    model, optimizer, _, _ = trained(Settings())
    model.get_classifier = lambda: model[0]
    state = {"optimizer_states": [optimizer.state_dict()], "global_step": 1}
    check_optimizer_state(state, model, Settings(lr=0.7))
    with pytest.raises(ValueError, match="the optimiser state in the checkpoint does not match"):
        check_optimizer_state(state, model, Settings(**change))


def test_runs_that_start_in_the_same_moment_get_a_folder_each(elsewhere, monkeypatch):
    others = iter([elsewhere / "runs" / "mine", elsewhere / "runs" / "mine-run2"])

    def overtaken(settings, config):
        run = find_run(settings, config)
        if (other := next(others, None)) is not None:
            other.mkdir(parents=True)  # another process takes the folder that was just chosen
        return run

    monkeypatch.setattr("visattn.training.runs.find_run", overtaken)
    with claimed(Settings(name="mine"), "") as run:
        assert run.folder == Path("runs/mine-run3")


# Takes the folder, starts a process that outlives it, as a worker of a loader can, and waits to be killed.
HOLDER = """
import os, sys, time
from pathlib import Path
from visattn.training.claims import alone

with alone(Path("run")):
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    print(child, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def holder(elsewhere):
    """A process that trains in ``run``, and the number of its child."""
    (elsewhere / "run").mkdir()
    environ = {**environment(), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", HOLDER], env=environ, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    os.kill(child, signal.SIGKILL)  # it has the pipe, too
    process.communicate()


@pytest.mark.slow
def test_a_folder_is_free_when_its_process_is_killed_whatever_it_leaves_behind(holder):
    with pytest.raises(ValueError, match="run is being trained by another process"), alone(Path("run")):
        pass
    assert (Path("run") / LOCK).exists()  # whoever is refused takes nothing away
    holder.kill()
    holder.wait()
    with alone(Path("run")):
        pass
    assert list(Path("run").iterdir()) == []


def test_a_lock_that_is_taken_away_meanwhile_does_not_count(tmp_path, monkeypatch):
    """Between opening the file and locking it, the process that held it may have ended and removed it."""
    lock, calls = claims.fcntl.lockf, []

    def late(stream, how):
        calls.append(stream)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        lock(stream, how)

    monkeypatch.setattr(claims.fcntl, "lockf", late)
    with alone(tmp_path):
        assert (tmp_path / LOCK).exists()
        assert len(calls) == 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_runs_go_on(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(claims.fcntl, "lockf", refuse)
    with alone(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(claims, "HAS_LOCKS", False)  # Windows
    with alone(tmp_path):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")
@pytest.mark.slow
def test_a_run_is_trained_by_one_process_at_a_time(undrawn, capsys):
    """A new run, which somebody resumes while it is trained; by its folder, a checkpoint in it, or its name."""
    long = [*TINY, "--name", "mine", "--epochs", "1000"]
    process = start(*long, cwd=undrawn)
    run = undrawn / "runs" / "mine"
    try:
        wait_for(process, "epoch 1/1000")
        before = (run / "config.yaml").read_text()
        for how in (["--resume", "runs/mine"], ["--resume", "runs/mine/checkpoints/last.ckpt"], [*long, "--resume"]):
            assert main(how) == 2
            assert capsys.readouterr().err == "train.py: runs/mine is being trained by another process\n"
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert (run / "config.yaml").read_text() == before
    more = str(checkpoint(run)["epoch"] + 2)
    assert main(["--resume", "runs/mine", "--epochs", more]) == 0, capsys.readouterr().err
    assert not (run / LOCK).exists()


def test_a_run_that_ends_in_an_error_leaves_no_lock(elsewhere):
    (elsewhere / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(ValueError, match="nothing"), claimed(Settings(name="mine", resume="last"), ""):
        raise ValueError("nothing")
    assert list((elsewhere / "runs" / "mine").iterdir()) == []


def test_a_config_can_be_read_again_whatever_was_typed_and_however_often(tmp_path):
    """The command is a comment in it: control characters, which YAML forbids, and a great many letters."""
    typed = ["--name", "mine", "--attn-options", "{a: '\x1b[31m\x07é'}", "--root", "x" * 5000]
    for _ in range(3):
        runs.start(Run(tmp_path), CommandLine(Settings(name="mine"), {}, {}).to_yaml(typed))
    text = (tmp_path / "config.yaml").read_bytes().decode("utf-8")
    assert text.count("# python train.py --name mine") == 1
    assert len(text.splitlines()[0]) < 1100
    assert parse(["--config", str(tmp_path / "config.yaml")]).settings.name == "mine"
    runs.start(Run(tmp_path), CommandLine(Settings(name="mine"), {}, {}).to_yaml(["--resume"]))
    assert [line[:18] for line in (tmp_path / "config.yaml").read_text().splitlines()[:2]] == ["# python train.py "] * 2


def test_a_config_keeps_the_last_commands_that_fit(tmp_path):
    for number in range(120):
        typed = ["--root", f"{number:04}" + "x" * 2000]
        runs.start(Run(tmp_path), CommandLine(Settings(name="mine"), {}, {}).to_yaml(typed))
    lines = (tmp_path / "config.yaml").read_text().splitlines()
    assert [line[24:30] for line in lines if line.startswith("#")][-2:] == [" 0118x", " 0119x"]
    assert parse(["--config", str(tmp_path / "config.yaml")]).settings.name == "mine"


def test_settings_that_no_file_can_hold():
    with pytest.raises(ValueError, match="too much for a config"):
        CommandLine(Settings(model_options={"a": "x" * 60_000}), {}, {}).to_yaml([])
