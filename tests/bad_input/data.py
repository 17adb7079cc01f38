"""Folders and files that are no images, or not what they seem."""

import os
from pathlib import Path

from tests.bad_input.case import Call, Command
from visattn.data.files import MAX_BYTES
from visattn.data.sources import open_source
from visattn.data.subsets import read_subset

FOLDER = "train --data folder --root photos --model test_resnet --epochs 1 --batch-size 2 --trainer.accelerator cpu"


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "photos" / "cat" / "pipe.png")


def zero(folder: Path) -> None:
    (folder / "photos" / "cat" / "zero.png").symlink_to("/dev/zero")


def gone(folder: Path) -> None:
    (folder / "photos" / "cat" / "gone.png").symlink_to("nowhere")


def both(folder: Path) -> None:
    (folder / "photos" / "dog" / "cat.png").symlink_to("../cat/0.png")


def alias(folder: Path) -> None:
    (folder / "photos" / "puss").symlink_to("cat")


def empty(folder: Path) -> None:
    for file in (folder / "photos" / "cat").iterdir():
        file.write_bytes(b"")


def large(folder: Path) -> None:
    os.truncate(folder / "a.png", MAX_BYTES + 1)


def binary(folder: Path) -> None:
    (folder / "ids.txt").write_bytes(b"\xff\xfe\x00")


def fake_mnist(folder: Path) -> None:
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(b"\x1f\x8b nothing")


CASES = [
    Command(FOLDER, "photos/cat/pipe.png: a pipe, not a file; use --on-bad-image skip", 2, pipe),
    Command(f"{FOLDER} --seed 1", "photos/cat/zero.png: a device, not a file; use --on-bad-image skip", 2, zero),
    Command(f"{FOLDER} --seed 2", "photos/cat/gone.png: a broken link", 2, gone),
    Command(f"{FOLDER} --seed 3", "are the same image in two classes, 'dog' and 'cat'", 2, both),
    Command(f"{FOLDER} --seed 4", "are the same image in two classes, 'puss' and 'cat'", 2, alias),
    Command(f"{FOLDER} --workers 0", "the file is empty; use --on-bad-image skip", 2, empty),
    Command(f"{FOLDER} --num-classes 5", "--num-classes 5, but the data has 2 classes"),
    Command(f"{FOLDER} --root ''", "--root is empty"),
    Command(f"{FOLDER} --root a.png", "there is no folder 'a.png'"),
    Command(f"{FOLDER} --root photos/cat", "contains no folders: expected one"),
    Command("train --data mnist --root .", "is damaged", 2, fake_mnist),
    Command("train --data imagenet --root photos --subset ids.txt", "is not a text file", 2, binary),
    Command("train --data imagenet --root photos --subset /dev/zero", "unknown subset '/dev/zero'"),
    Command("predict --weights model --image photos/cat/pipe.png", "a pipe, not a file", 2, pipe),
    Command("predict --weights model --image /dev/zero", "a device, not a file"),
    Command("predict --weights model --image a.png", "larger than the limit of 512 MB", 2, large),
    Command("predict --weights model --image ''", "an image: its name is empty"),
    Command("heatmap --weights model --image ''", "an image: its name is empty"),
    Command("predict --weights '' --image a.png", "--weights is empty"),
    Command("heatmap --weights '' --image a.png", "--weights is empty"),
    Call("no such subset", lambda: read_subset(""), "unknown subset ''"),
    Call("no such data", lambda: open_source(""), "unknown data ''"),
    Call("a name with a zero in it", lambda: open_source("folder", root="a\0b"), "there is no folder"),
]
