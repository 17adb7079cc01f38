"""Images to batches: folders, subsets, sharing among processes, bad images, augmentation."""

import itertools
import json
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from visattn.data.augment import AUGMENTATIONS, RandAugment, training_transform
from visattn.data.datamodule import ImageData
from visattn.data.decode import BadImage
from visattn.data.loader import IGNORE, Images, Shares, collate
from visattn.data.preparation import Preparation
from visattn.data.readers import Files
from visattn.data.sources import open_source
from visattn.data.subsets import checksum, read_subset, subset_names


def square(side, **options):
    return Preparation((3, side, side), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), **options)


def write_images(folder: Path, count: int, seed: int = 0, suffix: str = ".png") -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        cv2.imwrite(str(folder / f"{number:03}{suffix}"), rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))


@pytest.fixture
def folders(tmp_path):
    for split, count in (("train", 6), ("val", 3)):
        for number, name in enumerate(("cat", "dog")):
            write_images(tmp_path / split / name, count, number)
    return tmp_path


def test_train_and_val_folders(folders):
    source = open_source("folder", root=str(folders))
    assert source.classes == ("cat", "dog")
    assert (len(source.train), len(source.val)) == (12, 6)
    image, label = source.val.read(5, 0)
    assert image.shape == (24, 32, 3)
    assert label == 1


def test_one_folder_is_split_the_same_way_every_time(folders):
    first, again = (open_source("folder", root=str(folders / "train"), val_fraction=0.34) for _ in range(2))
    assert (len(first.train), len(first.val)) == (8, 4)
    assert first.val.paths == again.val.paths
    assert not set(first.train.paths) & set(first.val.paths)
    assert first.val.labels == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda root: (root / "val" / "cat").rename(root / "val" / "cow"),
            "classes in .*val' that are not in train/: cow",
        ),
        (lambda root: [file.unlink() for file in (root / "train" / "dog").iterdir()], "class 'dog' is empty: no .*png"),
        (lambda root: [file.unlink() or None for file in (root / "val" / "dog").iterdir()], "class 'dog' is empty"),
        (lambda root: _remove(root / "val"), "has train/ but no val/: add one, or split train/ with --root"),
        (lambda root: [_remove(root / split / "dog") for split in ("train", "val")], "only one class, 'cat'"),
        (
            lambda root: [_remove(root / split / name) for split in ("train", "val") for name in ("cat", "dog")],
            "contains no folders",
        ),
    ],
)
def test_folders_that_are_not_right_are_explained(folders, change, message):
    change(folders)
    with pytest.raises(ValueError, match=message):
        open_source("folder", root=str(folders))


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"data": "folder"}, "--data folder needs the image folder: --root FOLDER"),
        ({"data": "folder", "root": "nowhere"}, "there is no folder 'nowhere'"),
        ({"data": "imagenet"}, "--data imagenet needs the image folder"),
        ({"data": "digits", "subset": "imagenette"}, "--subset selects classes of --data imagenet"),
        ({"data": "imagenete"}, r"unknown data 'imagenete': did you mean 'imagenette'"),
        ({"data": "wds/shards"}, "--num-classes N"),
        ({"data": "hfds/beans"}, r"'hfds/beans' needs a package: pip install datasets"),
    ],
)
def test_requests_that_cannot_be_met_are_explained(request_, message):
    with pytest.raises(ValueError, match=message):
        open_source(**request_)


def test_imagenet_subsets_choose_and_order_the_classes(tmp_path):
    ids = ["n01440764", "n02102040", "n02979186"]
    for split, name in itertools.product(("train", "val"), ids):
        write_images(tmp_path / split / name, 2)
    (tmp_path / "mine.txt").write_text("n02979186  # cassette player\n\n# and\nn01440764\n")
    source = open_source("imagenet", root=str(tmp_path), subset=str(tmp_path / "mine.txt"))
    assert source.classes == ("n02979186", "n01440764")
    assert source.names == ("cassette player", "tench, Tinca tinca")
    assert source.train.labels == [0, 0, 1, 1]
    assert "n02979186" in str(source.train.paths[0])
    assert open_source("imagenet", root=str(tmp_path)).classes == tuple(ids)
    with pytest.raises(ValueError, match="has no class 'n03000684'"):
        open_source("imagenet", root=str(tmp_path), subset="imagenette")


@pytest.mark.parametrize(("name", "folder"), [("imagenette", "imagenette2-320"), ("imagewoof", "imagewoof2")])
def test_imagenette_and_imagewoof_are_found_where_they_were_unpacked(tmp_path, name, folder):
    for split, each in itertools.product(("train", "val"), read_subset(name)):
        write_images(tmp_path / folder / split / each, 1)
    source = open_source(name, root=str(tmp_path))
    assert source.classes == read_subset(name)
    assert len(source.train) == 10


def test_without_a_network_the_download_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_args, **_kwargs):
        raise OSError("no network")

    monkeypatch.setattr("visattn.data.downloads.download_url", no_network)
    with pytest.raises(ValueError, match=r"could not download https.*woof2-320.tgz \(no network\).*unpack that"):
        open_source("imagewoof", root=str(tmp_path / "data"))
    assert list((tmp_path / "data").iterdir()) == []


def test_a_download_is_checked_and_unpacked_at_once(tmp_path, monkeypatch):
    from visattn.data import downloads

    for split, each in itertools.product(("train", "val"), read_subset("imagewoof")):
        write_images(tmp_path / "imagewoof2-320" / split / each, 1)
    with tarfile.open(tmp_path / "archive.tgz", "w:gz") as archive:
        archive.add(tmp_path / "imagewoof2-320", "imagewoof2-320")
    monkeypatch.setattr(
        downloads, "download_url", lambda _, folder, name: (tmp_path / "archive.tgz").rename(Path(folder, name))
    )
    root = tmp_path / "data"
    with pytest.raises(ValueError, match="has changed: its sha256 is"):
        open_source("imagewoof", root=str(root))
    assert list(root.iterdir()) == []
    with tarfile.open(tmp_path / "archive.tgz", "w:gz") as archive:
        archive.add(tmp_path / "imagewoof2-320", "imagewoof2-320")
    right = downloads._digest(tmp_path / "archive.tgz", "sha256")
    monkeypatch.setitem(downloads.ARCHIVES, "imagewoof", downloads.Archive("imagewoof2-320", "sha256", right))
    assert len(open_source("imagewoof", root=str(root)).val) == 10
    assert [path.name for path in root.iterdir()] == ["imagewoof2-320"]


def test_subset_lists_carry_a_checksum(tmp_path):
    assert subset_names() == ["imagenet100", "imagenette", "imagewoof"]
    assert [len(read_subset(name)) for name in subset_names()] == [100, 10, 10]
    ids = ("n01440764", "n02102040")
    file = tmp_path / "mine.txt"
    file.write_text(f"# sha256: {checksum(ids)}\n" + "\n".join(ids))
    assert read_subset(str(file)) == ids
    file.write_text(f"# sha256: {checksum(ids)}\nn01440764\n")
    with pytest.raises(ValueError, match="has been changed: its checksum is"):
        read_subset(str(file))
    file.write_text("n01440764\nn01440764\n")
    with pytest.raises(ValueError, match="lists 'n01440764' twice"):
        read_subset(str(file))
    with pytest.raises(ValueError, match=r"unknown subset 'imagenet10' and no such file: did you mean 'imagenet100'"):
        read_subset("imagenet10")


def shares(length, batch, world, *, seed=0, epoch=0, done=0):
    return [
        list(Shares(length, batch, lambda: (epoch, done), seed=seed, rank=rank, world=world)) for rank in range(world)
    ]


@pytest.mark.parametrize("world", [2, 3])
def test_processes_together_see_what_one_with_a_larger_batch_sees(world):
    together = shares(100, 4, world)
    (alone,) = shares(100, 4 * world, 1)
    for step in range(len(together[0]) // 4):
        seen = {key for mine in together for key in mine[4 * step : 4 * step + 4]}
        assert seen == set(alone[4 * world * step : 4 * world * (step + 1)])
    assert len({len(mine) for mine in together}) == 1


def test_epochs_are_shuffled_anew_and_can_be_entered_in_the_middle():
    (first,), (second,) = shares(20, 4, 1), shares(20, 4, 1, epoch=1)
    assert [index for _, index in first] != [index for _, index in second]
    assert sorted(index for _, index in second) == list(range(20))
    assert {epoch for epoch, _ in second} == {1}
    assert shares(20, 4, 1, epoch=1, done=3) == [second[12:]]
    assert len(Shares(20, 4, lambda: (1, 3), seed=0, rank=0, world=1)) == 20  # what is left is Lightning's business


def test_validation_counts_every_image_once():
    parts = shares(7, 2, 3, seed=None)
    assert {len(part) for part in parts} == {3}
    counted = sorted(index for part in parts for _, index in part if index >= 0)
    assert counted == list(range(7))


def test_bad_images_leave_the_batch_its_size():
    image = np.zeros((2, 2, 3), np.uint8)
    items = [(image + 1, 4), BadImage("a.jpg", "is empty"), (image + 2, 5), BadImage("b.jpg", "cut off")]
    batch = collate(items, count_fillers=True)
    assert batch["label"].tolist() == [4, 5, 4, 5]
    assert batch["image"][:, 0, 0, 0].tolist() == [1, 2, 1, 2]
    assert batch["bad"] == ["a.jpg: is empty", "b.jpg: cut off"]
    assert collate(items, count_fillers=False)["label"].tolist() == [4, 5, IGNORE, IGNORE]


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_augmentation_is_a_function_of_seed_epoch_and_index(tmp_path, name):
    write_images(tmp_path / "images", 3)
    reader = Files(sorted((tmp_path / "images").iterdir()), [0, 1, 2])

    def images(seed, epoch, order):
        data = Images(reader, training_transform(name, square(16)), seed)
        return {index: data[epoch, index][0] for index in order}

    first, again = images(0, 0, [0, 1, 2]), images(0, 0, [2, 0, 1])
    assert all(np.array_equal(first[index], again[index]) for index in range(3))
    assert first[0].shape == (16, 16, 3)
    assert first[0].dtype == np.uint8
    if name != "none":
        assert any(not np.array_equal(first[index], images(0, 1, [index])[index]) for index in range(3))
        assert any(not np.array_equal(first[index], images(1, 0, [index])[index]) for index in range(3))


def test_rand_is_torchvisions_and_leaves_torchs_random_numbers_alone():
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    augment = RandAugment()
    before = torch.get_rng_state()
    seen = [augment.apply(image, seed) for seed in range(8)]
    assert torch.equal(torch.get_rng_state(), before)
    for seed in range(8):
        torch.manual_seed(seed)
        theirs = v2.RandAugment(interpolation=v2.InterpolationMode.BILINEAR)(Image.fromarray(image))
        assert np.array_equal(seen[seed], np.asarray(theirs))
    assert len({each.tobytes() for each in seen}) > 4


def test_an_unknown_augmentation_is_explained():
    with pytest.raises(ValueError, match=r"unknown augmentation 'colr': did you mean 'colour'"):
        training_transform("colr", square(64))


def test_what_is_not_augmented_is_seen_as_in_validation(folders):
    reader = open_source("folder", root=str(folders)).val
    preparation = square(16, crop_pct=0.8, crop_mode="border")
    image, _ = Images(reader, training_transform("none", preparation), 0)[3, 0]
    assert np.array_equal(image, preparation.pixels(reader.read(0, 0)[0]))


def test_loaders_in_other_processes_give_the_same_batches(folders):
    source = open_source("folder", root=str(folders))

    def batches(workers):
        data = ImageData(source, square(16), batch_size=4, workers=workers, augment="strong")
        data._position = lambda: (3, 0)
        return list(data.train_dataloader())

    for one, other in zip(batches(0), batches(2), strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])


def test_a_batch_larger_than_the_data_is_explained(folders):
    with pytest.raises(ValueError, match=r"a batch of 64 .* larger than the 12 training images: .* to 12"):
        ImageData(open_source("folder", root=str(folders)), square(16), batch_size=64, workers=0)


def test_examples_come_from_all_over_the_data(folders):
    data = ImageData(open_source("folder", root=str(folders)), square(16), batch_size=4)
    assert data.examples(4).labels == [0, 0, 1, 1]
    (folders / "val" / "cat" / "000.png").write_bytes(b"")
    assert data.examples(4).labels == [0, 1, 1]
    digits = ImageData(open_source("digits"), square(32), batch_size=4).examples(3)
    assert digits.masks[0].shape == (32, 32)
    assert digits.images[0][digits.masks[0]].mean() > 2 * digits.images[0].mean()


# webdataset leaves it to the garbage collector to close its files
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_are_streamed(tmp_path):
    """Web datasets as they lie on a cluster: tar files of images and labels."""
    for split, count in (("train", 12), ("validation", 5)):
        (tmp_path / split).mkdir()
        write_images(tmp_path / f"{split}-images", count)
        with tarfile.open(tmp_path / f"demo-{split}-0000.tar", "w") as archive:
            for number, file in enumerate(sorted((tmp_path / f"{split}-images").iterdir())):
                label = tmp_path / "label"
                label.write_text(str(number % 3))
                archive.add(file, f"{number:04}.png")
                archive.add(label, f"{number:04}.cls")
    splits = {
        split: {"name": split, "num_samples": count, "filenames": [f"demo-{split}-0000.tar"], "shard_lengths": [count]}
        for split, count in (("train", 12), ("validation", 5))
    }
    (tmp_path / "_info.json").write_text(json.dumps({"name": "demo", "splits": splits}))
    source = open_source("wds/demo", root=str(tmp_path), num_classes=3)
    data = ImageData(source, square(16), batch_size=4, workers=0)
    data._position = lambda: (0, 0)
    train = list(data.train_dataloader())
    assert [tuple(batch["image"].shape) for batch in train] == [(4, 3, 16, 16)] * 3
    assert set(torch.cat([batch["label"] for batch in train]).tolist()) == {0, 1, 2}
    assert sum(len(batch["label"]) for batch in data.val_dataloader()) == 5
    assert len(data.examples(2).images) == 2


def test_a_subset_as_windows_editors_save_it(tmp_path):
    (tmp_path / "mine.txt").write_bytes("\ufeffn01440764\r\nn02102040\r\n".encode())
    assert read_subset(str(tmp_path / "mine.txt")) == ("n01440764", "n02102040")
