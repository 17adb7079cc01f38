"""The validation images of a run stay validation images, whatever happens to the folder before it is resumed."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from visattn.cli.train import main
from visattn.data.readers import Split
from visattn.data.sources import open_source

KINDS = ("coffee", "tea")


def write(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8))


def fill(root: Path) -> None:
    for kind, name in enumerate(KINDS):
        for number in range(10):
            write(root / name / f"{number}.png", 100 * kind + number)


def opened(root: Path, split: Split | None = None):
    return open_source("folder", root=str(root), val_fraction=0.3, split=split)


def test_images_that_are_added_are_for_training(tmp_path):
    fill(tmp_path)
    before = opened(tmp_path)
    for number in range(20):
        write(tmp_path / "coffee" / f"a{number}.png", 1000 + number)
    again = opened(tmp_path, before.split)
    assert again.val.paths == before.val.paths
    assert set(before.train.paths) < set(again.train.paths)
    assert again.split == before.split
    assert opened(tmp_path).val.paths != before.val.paths  # what a new run holds out
    Path(before.train.paths[0]).unlink()
    assert opened(tmp_path, before.split).val.paths == before.val.paths


def add_class(root: Path, _held_out: Path) -> None:
    write(root / "milk" / "0.png", 7)
    write(root / "milk" / "1.png", 8)


def rename_class(root: Path, _held_out: Path) -> None:
    (root / "coffee").rename(root / "kaffee")


def bring_order(root: Path, _held_out: Path) -> None:
    for split in ("train", "val"):
        for name in KINDS:
            shutil.copytree(root / name, root / split / name)
    for name in KINDS:
        shutil.rmtree(root / name)


def all_but_validation(root: Path, held_out: Path) -> None:
    for path in (root / "coffee").iterdir():
        if path != held_out:
            path.unlink()


CHANGES = {
    "removed": (lambda root, held_out: held_out.unlink(), [], "validation images of the run are gone or renamed"),
    "renamed": (lambda root, held_out: held_out.rename(root / "coffee" / "x.png"), [], "gone or renamed, such as 'cof"),
    "class added": (add_class, [], "the run started with other classes: 'milk' is new"),
    "class renamed": (rename_class, [], "validation images of the run are gone or renamed, such as 'coffee/"),
    "train and val": (bring_order, [], "which now has a train/ folder of its own"),
    "no training image": (all_but_validation, [], "class 'coffee' has no training image left"),
    "another share": (lambda root, held_out: None, ["--val-fraction", "0.4"], "the run began with 0.1, and resumes"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with images and a run on them."""
    folder = tmp_path_factory.mktemp("begun")
    fill(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("visattn.training.pictures.SHOWN", 2)
        assert main([*RUN, "--epochs", "1"]) == 0
    return folder


RUN = [
    "--model", "test_resnet", "--data", "folder", "--root", "photos", "--name", "one", "--batch-size", "4",
    "--image-size", "32", "--workers", "0", "--film-every", "0", "--trainer.accelerator", "cpu",
]  # fmt: skip
RESUME = ["--resume", "runs/one", "--epochs", "2"]


@pytest.fixture
def copied(begun, tmp_path, monkeypatch):
    shutil.copytree(begun, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("change", CHANGES)
def test_a_resumed_run_whose_validation_images_changed_is_refused(copied, capsys, change):
    held_out = Path(open_source("folder", root="photos").val.paths[0])
    assert held_out.parent.name == "coffee"
    before = (copied / "runs" / "one" / "config.yaml").read_text()
    do, arguments, says = CHANGES[change]
    do(copied / "photos", copied / held_out)
    assert main([*RESUME, *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert (copied / "runs" / "one" / "config.yaml").read_text() == before


@pytest.mark.usefixtures("_few_pictures")
def test_a_run_resumes_with_more_images(copied, capsys):
    for number in range(30):
        write(copied / "photos" / "tea" / f"a{number}.png", 1000 + number)
    assert main(RESUME) == 0, capsys.readouterr().err
    assert "48 training images, 2 validation images" in capsys.readouterr().out


@pytest.mark.parametrize("record", [[], {"fraction": "a", "held_out": []}, {"fraction": 0.1, "held_out": [1]}])
def test_a_list_of_validation_images_that_is_none(copied, capsys, record):
    path = copied / "runs" / "one" / "checkpoints" / "last.ckpt"
    torch.save({**torch.load(path, weights_only=True), "ImageData": record}, path)
    assert main(RESUME) == 2
    assert "list of validation images is malformed" in capsys.readouterr().err


def test_a_run_that_does_not_know_its_validation_images_says_so(copied, capsys):
    path = copied / "runs" / "one" / "checkpoints" / "last.ckpt"
    state = torch.load(path, weights_only=True)
    torch.save({key: value for key, value in state.items() if key != "ImageData"}, path)
    assert main(RESUME) == 0
    assert "note: the run does not say which images it validated on" in capsys.readouterr().out
