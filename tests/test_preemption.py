"""Whoever needs the machine sends a signal first: a run saves its state, says how to go on, and claims no success."""

import csv
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from tests.training import TINY, assert_same_weights, checkpoint, start, train, wait_for
from visattn.cli.train import main
from visattn.training import slurm
from visattn.training import train as story
from visattn.training.checkpoints import SafeCheckpointIO, load_checkpoint
from visattn.training.classifier import Classifier
from visattn.training.settings import Settings

LIGHTNING = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")
ACCUMULATED = [*TINY, "--accumulate", "2", "--trainer.limit_train_batches", "6"]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """The folder of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("left_alone")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(story, "draw_outcome", lambda *_: None)
        assert main([*ACCUMULATED, "--name", "whole"]) == 0
    return folder / "runs" / "whole"


def rows_without_times(folder):
    with (folder / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    return [{key: value for key, value in row.items() if key not in ("images_per_second", "seconds")} for row in rows]


def once(function, number, at=1):
    """The function, with a signal to this process in its n-th call."""
    calls = iter(range(1, 1000))

    def signalled(*given, **options):
        if next(calls) == at:
            os.kill(os.getpid(), number)
        return function(*given, **options)

    return signalled


# In one process, at every stage of a run.


@LIGHTNING
@pytest.mark.parametrize(
    ("place", "name", "at", "steps"),
    [
        (Classifier, "training_step", 2, 1),  # of six batches, two for a step
        (Classifier, "training_step", 3, 2),
        (Classifier, "validation_step", 1, 3),  # at the end of an epoch, which is saved anyway
        (SafeCheckpointIO, "save_checkpoint", 1, 3),
    ],
    ids=["step", "accumulating", "validating", "saving"],
)
def test_a_run_is_stopped_between_two_steps(left_alone, undrawn, monkeypatch, capsys, place, name, at, steps):
    with monkeypatch.context() as patched:
        patched.setattr(place, name, once(getattr(place, name), signal.SIGTERM, at))
        assert main([*ACCUMULATED, "--name", "parts"]) == 143
    assert "stopped and saved; resume with: python train.py --resume runs/parts" in capsys.readouterr().out
    assert checkpoint(undrawn / "runs" / "parts")["global_step"] == steps
    assert main(["--resume", "runs/parts"]) == 0, capsys.readouterr().err
    assert_same_weights(undrawn / "runs" / "parts", left_alone)
    assert rows_without_times(undrawn / "runs" / "parts") == rows_without_times(left_alone)


@LIGHTNING
def test_a_batch_size_cannot_change_within_an_epoch(undrawn, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "training_step", once(Classifier.training_step, signal.SIGTERM, 2))
        assert main([*TINY, "--name", "parts"]) == 143
    before = (undrawn / "runs" / "parts" / "config.yaml").read_text()
    capsys.readouterr()
    assert main(["--resume", "runs/parts", "--batch-size", "8"]) == 2
    assert "with --batch-size 8 it is unclear which images are left, so resume it with 16" in capsys.readouterr().err
    assert (undrawn / "runs" / "parts" / "config.yaml").read_text() == before
    assert main(["--resume", "runs/parts", "--epochs", "1"]) == 0, capsys.readouterr().err
    assert main(["--resume", "runs/parts", "--epochs", "2", "--batch-size", "8"]) == 0, capsys.readouterr().err


@LIGHTNING
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_training_there_is_nothing_to_save(elsewhere, monkeypatch, capsys, number):
    monkeypatch.setattr(story, "create_classifier", once(story.create_classifier, number))
    before = signal.getsignal(number)
    assert main(TINY) == 128 + number
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "stopped before training began: nothing to save\n")
    assert not (elsewhere / "runs").exists()
    assert signal.getsignal(number) is before


@LIGHTNING
def test_a_resumed_run_that_is_stopped_before_its_first_step_still_has_its_state(undrawn, monkeypatch, capsys):
    assert main([*TINY, "--epochs", "1"]) == 0, capsys.readouterr().err
    monkeypatch.setattr(Classifier, "configure_optimizers", once(Classifier.configure_optimizers, signal.SIGTERM))
    assert main([*TINY, "--resume"]) == 143
    assert "stopped and saved; resume with:" in capsys.readouterr().out
    assert checkpoint(undrawn / "runs" / "test_resnet_eca-digits")["global_step"] == 4


@LIGHTNING
def test_the_last_step_of_all_is_followed_by_the_end(undrawn, monkeypatch, capsys):
    monkeypatch.setattr(Classifier, "training_step", once(Classifier.training_step, signal.SIGTERM, 3))
    assert main([*TINY, "--name", "short", "--trainer.max_steps", "3"]) == 0, capsys.readouterr().err
    assert (undrawn / "runs" / "short" / "model.safetensors").exists()


@LIGHTNING
@pytest.mark.usefixtures("undrawn")
def test_the_progress_bar_gives_the_terminal_back(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes anything for a terminal then
    monkeypatch.setattr(Classifier, "training_step", once(Classifier.training_step, signal.SIGTERM))
    assert main([*TINY, "--name", "parts"]) == 143
    said = capsys.readouterr().out
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1  # the cursor, hidden and shown
    assert said.endswith("resume with: python train.py --resume runs/parts\n")


@pytest.mark.slow
@LIGHTNING
def test_the_pictures_at_the_end_are_finished(elsewhere, monkeypatch, capsys):
    monkeypatch.setattr(story, "draw_outcome", once(story.draw_outcome, signal.SIGTERM))
    assert main([*TINY, "--name", "drawn"]) == 0, capsys.readouterr().err
    files = {path.name for path in (elsewhere / "runs" / "drawn").iterdir()}
    assert files >= {"model.safetensors", "model.json", "heatmaps.png", "curves.png", "confusion.png"}
    assert "runs/drawn/" in capsys.readouterr().out


# SLURM.


@pytest.fixture
def job(undrawn, monkeypatch):
    """A job of SLURM's, and what its ``scontrol`` was asked for."""
    for key, value in {"JOB_ID": 4242, "NTASKS": 1, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "JOB_NAME": "t"}.items():
        monkeypatch.setenv(f"SLURM_{key}", str(value))
    folder = undrawn / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return undrawn


@pytest.mark.slow
@LIGHTNING
def test_slurm_is_asked_to_start_the_job_again_and_the_run_goes_on(job, monkeypatch, capsys):
    (job / "runs" / "mine").mkdir(parents=True)  # somebody else's
    arguments = [*TINY, "--name", "mine"]
    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "training_step", once(Classifier.training_step, signal.SIGUSR1, 6))
        assert main(arguments) == 128 + signal.SIGUSR1
    run = job / "runs" / "mine-run2"
    assert "SLURM will restart job 4242" in capsys.readouterr().out
    assert (job / "asked").read_text() == "requeue 4242\n"
    assert checkpoint(run)["global_step"] == 6
    assert sorted(path.name for path in run.rglob("*.ckpt")) == ["best.ckpt", "last.ckpt"]

    assert main([*arguments, "--seed", "1"]) == 0  # the same job runs another command
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert main(arguments) == 0, capsys.readouterr().err
    assert f"resuming from {Path('runs') / 'mine-run2' / 'checkpoints' / 'last.ckpt'}" in capsys.readouterr().out
    assert sorted(path.name for path in (job / "runs").iterdir()) == ["mine", "mine-run2", "mine-run3"]
    monkeypatch.setenv("SLURM_JOB_ID", "4243")
    assert main([*arguments, "--epochs", "2"]) == 0  # never seen before, whatever SLURM says
    assert_same_weights(job / "runs" / "mine-run4", run)


@LIGHTNING
def test_slurm_may_refuse(job, monkeypatch, capsys):
    (job / "bin" / "scontrol").write_text("#!/bin/sh\necho Requested operation is not allowed >&2; exit 1\n")
    monkeypatch.setattr(Classifier, "training_step", once(Classifier.training_step, signal.SIGUSR1))
    assert main(TINY) == 128 + signal.SIGUSR1
    said = capsys.readouterr().out
    assert "stopped and saved; resume with:" in said
    assert "scontrol requeue 4242 failed: Requested operation is not allowed" in said


def test_a_task_of_an_array_has_a_number_of_its_own(job, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert slurm.requeue() == "SLURM will restart job 77_3"
    assert (job / "asked").read_text() == "requeue 77_3\n"
    monkeypatch.setenv("PATH", str(job))
    assert slurm.requeue() == "scontrol requeue 77_3 failed: No such file or directory"


# Real processes.


@pytest.mark.slow
def test_nothing_but_a_line_is_left_of_a_run_stopped_while_it_starts(tmp_path):
    process = start(*TINY, cwd=tmp_path)
    time.sleep(1)  # importing torch and Lightning takes longer
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "stopped before training began: nothing to save\n")


@pytest.mark.slow
def test_a_second_signal_ends_a_process_that_waits_for_another_one(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import datetime, torch\n"
        "from visattn.training.signals import On, Signals\n"
        "with Signals() as signals:\n"
        "    signals.first = On.NOTE\n"
        "    store = torch.distributed.TCPStore('127.0.0.1', 0, is_master=True)\n"
        "    print('waiting', flush=True)\n"
        "    store.wait(['never'], datetime.timedelta(seconds=300))\n"
    )
    process = start(cwd=tmp_path, script=script)
    wait_for(process, "waiting")
    for _ in range(2):  # some send a signal twice
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "")


# train.py, which waits in a step until it may go on, keeps each process's number and exit code, and takes note if
# processes make each other's devices wait.
HELD = """
import os, sys, time
from pathlib import Path

import torch.distributed
from lightning.pytorch.strategies import DDPStrategy

from visattn.cli.train import main
from visattn.training.classifier import Classifier

def noted(function):
    def call(*given, **options):
        Path("waited").write_text(function.__qualname__)
        return function(*given, **options)
    return call

torch.distributed.broadcast = noted(torch.distributed.broadcast)
DDPStrategy.reduce_boolean_decision = noted(DDPStrategy.reduce_boolean_decision)
step = Classifier.training_step

def training_step(self, *given):
    if Path(f"hold_{self.global_step}").exists():
        print("holding", flush=True)
        while Path(f"hold_{self.global_step}").exists():
            time.sleep(0.01)
    return step(self, *given)

Classifier.training_step = training_step
rank = os.environ.get("LOCAL_RANK", "0")
Path(f"process_{rank}").write_text(str(os.getpid()))
code = main()
Path(f"code_{rank}").write_text(str(code))
sys.exit(code)
"""


@pytest.fixture
def held(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    return tmp_path


def signal_within_step(folder, step, send, *arguments, launcher=()):
    """Go on with a run and send it SIGTERM when it has done so many steps; returns its exit code and what it said."""
    (folder / f"hold_{step}").touch()
    process = start(*arguments, "--name", "parts", "--resume", cwd=folder, script=folder / "held.py", launcher=launcher)
    wait_for(process, "holding")
    send(process)
    time.sleep(0.5)  # torchrun passes it on
    (folder / f"hold_{step}").unlink()
    said, _ = process.communicate(timeout=120)
    assert said.count("stopped and saved; resume with: python train.py --resume runs/parts") == 1, said
    return process.returncode, said


def everybody(process):
    os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.slow
def test_data_workers_keep_working_until_the_step_is_saved(held):
    code, said = signal_within_step(held, 5, everybody, *TINY, "--workers", "2")
    assert code == 143
    assert "Traceback" not in said
    assert "Error" not in said
    assert checkpoint(held / "runs" / "parts")["global_step"] == 6


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SEVERAL = [
    "--model", "test_vit", "--attn", "se", "--image-size", "64", "--batch-size", "8", "--epochs", "2", "--devices", "2",
    "--strategy", "ddp", "--film-every", "0", "--trainer.accelerator", "cpu", "--trainer.limit_train_batches", "8",
    "--trainer.limit_val_batches", "1",
]  # fmt: skip


@pytest.mark.slow
def test_the_first_process_takes_along_those_it_has_started_and_still_waits_for(tmp_path):
    process = start(*SEVERAL, cwd=tmp_path)
    wait_for(process, "writing to")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)  # until nobody is left who could say anything
    assert (process.returncode, said) == (143, "stopped before training began: nothing to save\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two processes that is left alone."""
    folder = tmp_path_factory.mktemp("whole")
    train(*SEVERAL, "--name", "whole", cwd=folder)
    return folder / "runs" / "whole"


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "rank"), [((), 1), (TORCHRUN, 0)], ids=["lightning", "torchrun"])
def test_a_signal_to_one_process_or_all_of_them_ends_them_in_the_same_step(held, whole, launcher, rank):
    def one(_):
        os.kill(int((held / f"process_{rank}").read_text()), signal.SIGTERM)

    for step, send in ((3, one), (11, everybody)):
        code, said = signal_within_step(held, step, send, *SEVERAL, launcher=launcher)
        assert code == (1 if launcher else 143), said  # torchrun has no other one, and a stack trace of its own
        assert launcher or "Traceback" not in said
        for each in (0, 1):
            assert (held / f"code_{each}").read_text() == "143"
            (held / f"code_{each}").unlink()
        # Said after a step, done after the next; a process that had not arrived yet says it one step earlier.
        assert checkpoint(held / "runs" / "parts")["global_step"] - step in (1, 2)
    train("--resume", "runs/parts", cwd=held, launcher=launcher)
    assert_same_weights(held / "runs" / "parts", whole)
    for ours, theirs in zip(rows_without_times(held / "runs" / "parts"), rows_without_times(whole), strict=True):
        assert {key: float(value) for key, value in ours.items()} == pytest.approx(
            {key: float(value) for key, value in theirs.items()}, rel=1e-6
        )
    assert not (held / "waited").exists(), (held / "waited").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_checkpoint_within_an_epoch_has_the_sums_of_all_processes(tmp_path, strategy):
    saving = "{class_path: ModelCheckpoint, init_args: {dirpath: kept, every_n_train_steps: 3, save_top_k: -1}}"
    train(*SEVERAL, "--strategy", strategy, "--epochs", "1", "--trainer.callbacks", saving, cwd=tmp_path)
    for step in (3, 6):
        (file,) = (tmp_path / "kept").glob(f"*step={step}.ckpt")
        assert load_checkpoint(file)["sums"]["train_top1"]["counted"] == step * 2 * 8


def resuming(fn=TrainerFn.FITTING):
    """A classifier that is about to load a checkpoint."""
    classifier = Classifier(nn.Linear(2, 2), Settings(), 2)
    classifier._trainer = SimpleNamespace(state=SimpleNamespace(fn=fn), is_global_zero=True)
    return classifier


def within_an_epoch(*, over=False):
    sums = {"train_loss": {"total": 3.0, "weight": 2.0}, "train_top1": {"right": 1, "counted": 2}}
    return {"sums": sums, "loops": {"fit_loop": {"epoch_loop.batch_progress": {"is_last_batch": over}}}}


def test_sums_are_taken_up_only_by_a_run_that_goes_on_within_the_epoch():
    classifier = resuming()
    classifier.on_load_checkpoint(within_an_epoch())
    assert (classifier.train_loss.total, classifier.train_loss.weight) == (3, 2)
    assert (classifier.train_top1.right, classifier.train_top1.counted) == (1, 2)
    for other, over in ((resuming(TrainerFn.VALIDATING), False), (resuming(), True)):
        other.on_load_checkpoint(within_an_epoch(over=over))
        assert other.train_top1.counted == other.train_loss.weight == 0


def test_a_checkpoint_is_loaded_without_a_trainer(tmp_path):
    network = nn.Linear(2, 2)
    expected = Classifier(network, Settings(), 2)
    content = {**within_an_epoch(), "state_dict": expected.state_dict(), "pytorch-lightning_version": "2.6.0"}
    torch.save(content, tmp_path / "last.ckpt")
    loaded = Classifier.load_from_checkpoint(
        tmp_path / "last.ckpt", model=nn.Linear(2, 2), settings=Settings(), num_classes=2
    )
    torch.testing.assert_close(loaded.model.weight, network.weight)
    assert loaded.train_top1.counted == 0
