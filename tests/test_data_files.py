"""Folders as they are found on real disks: links, loops, pipes, devices, sockets, and names that are no text."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visattn.data import files
from visattn.data.copies import copies
from visattn.data.decode import BadImage, read_image
from visattn.data.files import MAX_BYTES, search
from visattn.data.images import find_images
from visattn.data.sources import open_source
from visattn.files import read_bytes


@pytest.fixture(autouse=True)
def _nothing_waits():
    """A pipe that is waited for would hold up all tests."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("something was waited for"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return path


@pytest.fixture
def drinks(tmp_path):
    for number in range(4):
        write(tmp_path / "coffee" / f"{number}.png", number)
        write(tmp_path / "tea" / f"{number}.png", 10 + number)
    return tmp_path


@contextmanager
def listening(path: Path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # the name of a socket is short
        yield


def opened(root, **options):
    return open_source("folder", root=str(root), val_fraction=0.25, **options)


def counts(source):
    return len(source.train), len(source.val), source.classes


def test_a_link_to_a_folder_around_it_is_not_entered(drinks):
    plain = counts(opened(drinks))
    (drinks / "coffee" / "up").symlink_to("..")
    (drinks / "coffee" / "out").symlink_to("../..")
    (drinks / "coffee" / "self").symlink_to("self")
    (drinks / "tea" / "here").symlink_to(".")
    (drinks / "around").symlink_to(".")  # no class either
    assert counts(opened(drinks)) == plain == (6, 2, ("coffee", "tea"))
    assert len(search(drinks).images) == 8


def test_links_that_lead_to_each_other_end(drinks):
    for one in range(8):
        (drinks / "coffee" / str(one)).mkdir()
        write(drinks / "coffee" / str(one) / f"more{one}.png", 20 + one)
        for other in range(8):
            if other != one:
                (drinks / "coffee" / str(one) / f"to{other}").symlink_to(f"../{other}")
    assert len(search(drinks / "coffee").images) == 12


def test_an_image_of_two_classes_is_refused(drinks):
    (drinks / "tea" / "same.png").symlink_to("../coffee/0.png")
    with pytest.raises(ValueError, match=r"same.png' and '.*coffee/0.png' are the same image in two classes, 'tea'"):
        opened(drinks)


def test_a_hard_link_is_the_same_image(drinks):
    (drinks / "coffee" / "zero.png").hardlink_to(drinks / "coffee" / "0.png")
    assert counts(opened(drinks)) == (6, 2, ("coffee", "tea"))
    assert len(find_images([drinks / "coffee", drinks / "coffee" / "0.png"])[0]) == 4
    (drinks / "tea" / "same.png").hardlink_to(drinks / "coffee" / "0.png")
    with pytest.raises(ValueError, match=r"are the same image in two classes, 'tea' and 'coffee'"):
        opened(drinks)


def test_copies_are_noticed(drinks, monkeypatch):
    assert opened(drinks).notes == ()
    for number in range(4):
        shutil.copy(drinks / "coffee" / f"{number}.png", drinks / "coffee" / f"again{number}.png")
    assert len(opened(drinks).train) == 10 - 4 + 4 - 1  # both are used
    (line,) = opened(drinks).notes
    assert line.endswith("validation images are also training images: validation will look too good")
    shutil.rmtree(drinks / "coffee")
    for number in range(4):
        write(drinks / "coffee" / f"{number}.png", number)
    shutil.copy(drinks / "coffee" / "0.png", drinks / "tea" / "other.png")
    (line,) = [note for note in opened(drinks).notes if "classes" in note]
    assert line.startswith("copies of the same image in two classes: 1, such as '")
    assert "coffee/0.png'" in line
    assert "tea/other.png'" in line
    monkeypatch.setattr("visattn.data.folders.MOST_COMPARED", 3)
    assert opened(drinks).notes == ()


def test_images_in_no_class_are_mentioned(drinks):
    write(drinks / "loose.png", 9)
    assert [note.partition(", such as")[0] for note in opened(drinks).notes] == [
        "ignored images that are in no class folder: 1"
    ]


def test_what_is_like_another_file_is_no_copy(tmp_path):
    contents = {
        "a": b"x" * 9000,
        "b": b"x" * 8999 + b"y",
        "c": b"y" + b"x" * 8999,
        "d": b"",
        "e": b"",
        "f": b"x" * 9000,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "g").symlink_to("nowhere")
    assert list(copies(str(tmp_path / name) for name in "abcdefg")) == [[str(tmp_path / "a"), str(tmp_path / "f")]]


def test_an_image_of_two_names_counts_once(drinks):
    (drinks / "coffee" / "zero.png").symlink_to("0.png")
    (drinks / "coffee" / "all").symlink_to(".")
    assert counts(opened(drinks)) == (6, 2, ("coffee", "tea"))


def test_classes_of_links_into_a_store(drinks, tmp_path):
    links = tmp_path / ".links"
    for split, numbers in (("train", range(3)), ("val", range(3, 4))):
        for kind in ("coffee", "tea"):
            (links / split / kind).mkdir(parents=True)
            for number in numbers:
                (links / split / kind / f"{number}.png").symlink_to(drinks / kind / f"{number}.png")
    source = opened(links)
    assert counts(source) == (6, 2, ("coffee", "tea"))
    assert source.notes == ()
    assert source.val.read(0, 0)[0].shape == (8, 8, 3)


def test_validation_on_training_images_is_said(drinks, tmp_path):
    both = tmp_path / ".both"
    both.mkdir()
    (both / "train").symlink_to(drinks)
    (both / "val").symlink_to(drinks)
    assert opened(both).notes == (
        "8 of the 8 validation images are also training images: validation will look too good",
    )


def special(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "gone.png").symlink_to("nowhere.png")


def test_what_is_no_file_is_refused_or_skipped(drinks, monkeypatch):
    monkeypatch.chdir(drinks)
    special(drinks / "coffee")
    (drinks / "tea" / "notes.txt").touch()
    with listening(drinks / "coffee" / "socket.png"):
        with pytest.raises(ValueError, match=r"\.png: .*\(and 4 more\); use --on-bad-image skip"):
            opened(drinks)
        source = opened(drinks, skip_bad=True)
        paths, missing = find_images([str(drinks)])
    assert counts(source) == (6, 2, ("coffee", "tea"))
    assert source.notes[0].startswith("skipped as unreadable: 5 (")
    assert source.notes[1:] == ("ignored files in other formats: 1 (.txt)",)
    assert len(paths) == 8
    assert {Path(path).name: reason for path, reason in missing} == {
        "gone.png": "a broken link",
        "loop.png": "Too many levels of symbolic links",
        "pipe.png": "a pipe, not a file",
        "socket.png": "a socket, not a file",
        "zero.png": "a device, not a file",
    }


def test_reading_waits_for_nothing_and_ends(tmp_path, monkeypatch):
    special(tmp_path)
    for name, reason in (("pipe", "a pipe, not a file"), ("zero", "a device, not a file"), ("loop", "Too many levels")):
        with pytest.raises(BadImage, match=reason):
            read_image(tmp_path / f"{name}.png")
    with (tmp_path / "large.png").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # a hole: it takes no place on the disk
    with pytest.raises(BadImage, match="larger than the limit of 512 MB"):
        read_image(tmp_path / "large.png")
    with pytest.raises(OSError, match="larger than"):
        read_bytes("/proc/self/status", 10)  # says that it is empty, and is not
    # It may become a pipe after it was looked at.
    with monkeypatch.context() as looked_at:
        looked_at.setattr(files.os, "stat", lambda _: os.lstat(__file__))
        with pytest.raises(BadImage, match="a pipe, not a file"):
            read_image(tmp_path / "pipe.png")


def test_a_file_that_goes_away_is_a_bad_image(drinks):
    source = opened(drinks)
    Path(source.train.paths[0]).unlink()
    with pytest.raises(BadImage, match="No such file"):
        source.train.read(0, 0)


def test_names_of_all_kinds(tmp_path):
    for number, name in enumerate((b"caf\xe9", b"two\nlines")):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        for image in (b"A.PNG", b"b\xff.jPg", b"c\nd.webp", b".hidden.png"):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(
                os.fsdecode(os.path.join(folder, image)), {b".jPg": "JPEG", b".webp": "WEBP"}.get(image[-4:], "PNG")
            )
        os.makedirs(os.path.join(folder, b".git"))
        write(Path(os.fsdecode(folder), ".git", "x.png"))
    source = opened(tmp_path)
    assert (len(source.train), len(source.val)) == (4, 2)
    assert source.names == ("caf\ufffd", "two lines")
    assert source.train.read(0, 0)[0].shape == (8, 8, 3)


def test_trees_of_any_depth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "top.png")
    for _ in range(120):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    Image.new("RGB", (8, 8)).save("deep.png")
    os.chdir(tmp_path)
    paths, missing = find_images(["."])
    assert list(map(str, paths)) == ["top.png"]
    assert [reason for _, reason in missing] == ["File name too long"]
    subprocess.run(["rm", "-rf", "d" * 200], check=True)


@pytest.fixture
def _not_root():
    """Root may read anything; nobody may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_no_permission_is_said(drinks, monkeypatch, request):
    (drinks / "coffee" / "secret").mkdir()
    (drinks / "coffee" / "secret").chmod(0)
    drinks.chmod(0o755)
    monkeypatch.chdir(drinks)  # nobody may not pass through the folders above
    request.getfixturevalue("_not_root")
    paths, missing = find_images(["."])
    assert [(os.path.basename(what), why) for what, why in missing] == [("secret", "Permission denied")]
    assert "tea/3.png" in map(str, paths)


def test_the_same_extensions_everywhere(tmp_path):
    for kind in ("one", "two"):
        for number in range(2):
            path = tmp_path / kind / f"{number}.avif"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (number * 100, 0, 0)).save(path)
    assert counts(opened(tmp_path)) == (2, 2, ("one", "two"))
    assert len(find_images([str(tmp_path)])[0]) == 4


def test_a_link_that_may_not_be_read_costs_nothing_else(drinks, monkeypatch):
    before = search(drinks).images
    (drinks / "coffee" / "secret.png").symlink_to("nowhere")

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "readlink", refuse)
    found = search(drinks)
    assert found.images == before
    assert list(found.problems) == [str(drinks / "coffee" / "secret.png")]


@pytest.mark.parametrize(("manifest", "found"), [("{}", 9), ('{"made_by": "visattn heatmap"}', 8), ("[1", 9)])
def test_only_our_own_heatmaps_are_passed_over(drinks, manifest, found):
    folder = drinks / "more"
    folder.mkdir()
    shutil.copy(next((drinks / "coffee").iterdir()), folder / "comparison.png")
    (folder / "manifest.json").write_text(manifest)
    assert len(search(drinks).images) == found
