"""Several processes on one CPU, with gloo: they must learn what one process with a batch as large as theirs learns."""

import csv

import pytest
import torch
from safetensors.torch import load_file

from tests.training import assert_same_weights, checkpoint, train

pytestmark = pytest.mark.slow

# No BatchNorm (it would see half a batch), and SGD, whose steps are proportional to the gradient.
STEPS = [
    "--model", "test_vit", "--image-size", "64", "--optimizer", "sgd", "--lr", "0.05", "--epochs", "1",
    "--film-every", "0", "--trainer.limit_train_batches", "3", "--trainer.accelerator", "cpu",
]  # fmt: skip
TWO = ["--devices", "2", "--batch-size", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all runs are written; the first one is that of a single process."""
    folder = tmp_path_factory.mktemp("runs")
    train(*STEPS, "--batch-size", "16", "--name", "one", cwd=folder)
    return folder


def metrics(run):
    with (run / "metrics.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    return {key: float(row[key]) for key in ("train_loss", "train_top1", "val_loss", "val_top1", "val_top5")}


LAUNCHERS = {
    "lightning": (["--strategy", "ddp"], ()),
    "torchrun": (["--strategy", "ddp"], ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
    "sharded": (["--strategy", "fsdp"], ()),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_processes_learn_the_same_as_one_with_twice_the_batch(folder, name):
    arguments, launcher = LAUNCHERS[name]
    result = train(*STEPS, *TWO, *arguments, "--name", name, cwd=folder, launcher=launcher)
    assert result.stdout.count(f"writing to runs/{name}/") == 1  # only the first process speaks
    assert "CPU in 2 processes" in result.stdout
    assert_same_weights(folder / "runs" / name, folder / "runs" / "one", 1e-5)
    start = checkpoint(folder / "runs" / name)["state_dict"]["model.head.weight"]
    assert not torch.equal(start, torch.zeros_like(start))
    assert metrics(folder / "runs" / name) == pytest.approx(metrics(folder / "runs" / "one"), abs=1e-5)
    files = sorted(path.name for path in (folder / "runs" / name).iterdir())
    assert files == sorted(path.name for path in (folder / "runs" / "one").iterdir())


def test_a_sharded_checkpoint_goes_on_in_one_process(folder):
    name = "sharded-then-one"
    train(*STEPS, *TWO, "--strategy", "fsdp", "--name", name, cwd=folder)
    train("--resume", f"runs/{name}", "--strategy", "auto", "--devices", "1", "--epochs", "2", cwd=folder)
    state = checkpoint(folder / "runs" / name)
    assert state["epoch"] == 1
    assert state["global_step"] == 6
    exported = load_file(folder / "runs" / name / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in exported.values() if value.is_floating_point())


def test_batch_normalisation_of_one_process_is_announced(folder):
    said = train(
        "--model", "test_resnet", "--epochs", "1", "--film-every", "1", "--trainer.limit_train_batches", "2",
        "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu", "--name", "norm", *TWO, "--strategy", "ddp",
        cwd=folder,
    ).stdout  # fmt: skip
    assert "SyncBatchNorm runs on GPUs only" in said
    assert (folder / "runs" / "norm" / "film.png").is_file()


def test_an_error_in_several_processes_ends_all_of_them(folder):
    result = train(*STEPS, *TWO, "--strategy", "ddp", "--lr", "1e30", "--name", "nan", cwd=folder, check=False)
    assert result.returncode != 0
    assert "the loss is not a finite number any more" in result.stderr
