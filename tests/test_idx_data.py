"""MNIST and Fashion-MNIST from idx files, models with one input channel, and images that need no transform."""

import gzip
import json
import os
import pickle
import signal
import struct
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from tests.tiers import mostly_slow
from tests.training import TINY, assert_same_weights, checkpoint
from visattn.cli import main as visattn_main
from visattn.cli.train import main
from visattn.data import idx
from visattn.data.augment import AUGMENTATIONS, training_transform
from visattn.data.datamodule import ImageData
from visattn.data.loader import IGNORE, Images
from visattn.data.preparation import Preparation, normalisation
from visattn.data.sources import open_source
from visattn.training.building import create_data
from visattn.training.classifier import Classifier
from visattn.training.settings import Settings

COUNTS = {"train": 40, "t10k": 20}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
RGB = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.25, 0.25)}

# TensorBoard's and Lightning's own
LIGHTNING = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def arrays(split: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng((seed, COUNTS[split]))
    images = rng.integers(0, 256, (COUNTS[split], 28, 28), dtype=np.uint8)
    return images, (np.arange(COUNTS[split]) % 10).astype(np.uint8)


def write_files(folder: Path, *, end: str = "", dot: str = "-", seed: int = 0) -> None:
    """Four small files, as MNIST's are called."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in COUNTS:
        for kind, array in zip(("images-idx3", "labels-idx1"), arrays(split, seed), strict=True):
            data = idx_bytes(array)
            name = f"{split}-{kind.replace('-', dot)}-ubyte{end}"
            (folder / name).write_bytes(gzip.compress(data) if end else data)


@pytest.fixture
def root(tmp_path):
    write_files(tmp_path / "data")
    return tmp_path / "data"


def mnist(root, size=28, **options):
    preparation = Preparation((3, size, size), **RGB)
    data = ImageData(open_source("mnist", root=str(root)), preparation, batch_size=8, workers=0, **options)
    data._position = lambda: (0, 0)
    return data


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", ""), ("mnist", "raw"), ("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw")],
)
def test_the_files_are_found_wherever_people_have_them(tmp_path, name, folder, dot, end):
    write_files(tmp_path / folder, end=end, dot=dot)
    source = open_source(name, root=str(tmp_path))
    assert (len(source.train), len(source.val)) == (40, 20)
    for reader, split in ((source.train, "train"), (source.val, "t10k")):
        images, labels = arrays(split)
        for index in (0, 7, len(reader) - 1):
            image, label = reader.read(index, 0)
            assert (image.shape, image.dtype, label) == ((28, 28, 3), np.uint8, labels[index])
            assert all(np.array_equal(image[..., channel], images[index]) for channel in range(3))
    assert (source.size, source.augment, len(source.classes)) == (28, "none", 10)


def test_classes_have_their_names(root):
    assert open_source("mnist", root=str(root)).classes == tuple("0123456789")
    fashion = open_source("fashion_mnist", root=str(root)).classes
    assert (fashion[0], fashion[5], fashion[9]) == ("T-shirt/top", "Sandal", "Ankle boot")


def test_the_folder_is_data_unless_told_otherwise(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert len(open_source("mnist").train) == 40


def test_a_folder_of_that_name_comes_before_files_of_no_name(root):
    """Both data sets call their files the same."""
    write_files(root / "FashionMNIST" / "raw", seed=1)
    for name, seed in (("mnist", 0), ("fashion_mnist", 1)):
        image, _ = open_source(name, root=str(root)).train.read(0, 0)
        assert np.array_equal(image[..., 0], arrays("train", seed)[0][0])


DAMAGE = {
    "magic": (
        IMAGES,
        lambda data: b"\0\0\x08\x01" + data[4:],
        ".*does not start with 2051",
    ),
    "exchanged": (
        LABELS,
        lambda data: idx_bytes(arrays("train")[0]),
        ".*does not start with 2049",
    ),
    "empty": (IMAGES, lambda data: b"", ".*does not start with 2051"),
    "header": (IMAGES, lambda data: data[:10], ".*does not start with 2051"),
    "cut_images": (IMAGES, lambda data: data[:-1], "is damaged: 31375 bytes, not 31376"),
    "cut_labels": (LABELS, lambda data: data[:-3], "is damaged: 45 bytes, not 48"),
    "longer": (LABELS, lambda data: data + b"\0", "is damaged: 49 bytes, not 48"),
    "fewer_labels": (LABELS, lambda data: idx_bytes(arrays("train")[1][:-1]), "has 39 labels for 40 images"),
    "label": (LABELS, lambda data: data[:-1] + b"\x0a", "has the label 10, but there are ten classes"),
    "size": (IMAGES, lambda data: idx_bytes(np.zeros((40, 20, 28), np.uint8)), r"has the shape \(40, 20, 28\)"),
    "none": (IMAGES, lambda data: idx_bytes(np.zeros((0, 28, 28), np.uint8)), r"has the shape \(0, 28, 28\)"),
    "cut_gzip": (IMAGES, lambda data: gzip.compress(data)[:-20], "is damaged: .*end-of-stream"),
    "gzip_data": (IMAGES, lambda data: gzip.compress(data)[:10] + b"\xff" * 50, "is damaged: .*invalid block"),
    "gzip_sum": (IMAGES, lambda data: gzip.compress(data)[:-8] + bytes(8), "is damaged: .*CRC"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_named(root, what):
    name, damage, message = DAMAGE[what]
    (root / name).write_bytes(damage((root / name).read_bytes()))
    with pytest.raises(ValueError, match=rf"{name}' {message}"):
        open_source("mnist", root=str(root))


def test_a_packed_file_is_known_by_its_content(root):
    data = (root / IMAGES).read_bytes()
    (root / IMAGES).rename(root / f"{IMAGES}.gz")  # as browsers do that unpack what they download
    assert len(open_source("mnist", root=str(root)).train) == 40
    (root / IMAGES).write_bytes(gzip.compress(data))
    assert len(open_source("mnist", root=str(root)).train) == 40


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_without_a_network_the_four_files_are_asked_for(root, monkeypatch, name, folder):
    def no_network(*_args, **_kwargs):
        raise RuntimeError("Error downloading:\nno network\n")

    monkeypatch.setattr(idx.datasets, folder, no_network)
    (root / LABELS).unlink()  # three of four are not enough
    with pytest.raises(ValueError, match="could not download") as caught:
        open_source(name, root=str(root))
    said = str(caught.value)
    assert "\n" not in said
    assert f"could not download {folder} (Error downloading: no network)" in said
    assert all(file in said for file in idx.FILES)
    assert str(root / folder / "raw") in said
    assert not any(path.is_dir() for path in root.iterdir())


def test_a_download_lands_where_it_is_found_again(tmp_path, monkeypatch):
    asked = []

    def download(scratch, download):
        asked.append(download)
        assert Path(scratch).parent == tmp_path / "data"
        write_files(Path(scratch, "MNIST", "raw"))

    monkeypatch.setattr(idx.datasets, "MNIST", download)
    (tmp_path / "data" / "MNIST" / "raw").mkdir(parents=True)  # left over from elsewhere
    for _ in range(2):
        assert len(open_source("mnist", root=str(tmp_path / "data")).val) == 20
    assert asked == [True]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["MNIST"]


def test_a_reader_travels_to_other_processes_without_growing(root):
    reader = open_source("mnist", root=str(root)).train
    assert reader.images.dtype == reader.labels.dtype == np.uint8
    packed = pickle.dumps(reader)
    assert len(packed) < 1.1 * reader.images.nbytes
    image, label = pickle.loads(packed).read(11, 0)
    assert np.array_equal(image, reader.read(11, 0)[0])
    assert label == 1


@pytest.mark.parametrize("augment", list(AUGMENTATIONS))
def test_every_augmentation_takes_such_images(root, augment):
    first, again = (next(iter(mnist(root, augment=augment).train_dataloader()))["image"] for _ in range(2))
    assert first.shape == (8, 3, 28, 28)
    assert torch.equal(first, again)


@pytest.mark.parametrize("data", ["mnist", "digits"])
def test_what_needs_no_transform_is_the_same_without_it(root, data):
    source = open_source(data, root=str(root))
    preparation = Preparation((3, source.size, source.size), **RGB)
    transform = create_transform(preparation.size, is_training=False, use_prefetcher=True, crop_pct=1.0)
    images = Images(source.train, training_transform("none", preparation), 3)
    for epoch, index in [(0, 0), (0, 7), (2, 7), (2, ~7)]:
        image, label = images[epoch, index]
        read, same = source.train.read(7 if index < 0 else index, epoch)
        assert np.array_equal(image, transform(Image.fromarray(read)).permute(1, 2, 0).numpy())
        assert label == (IGNORE if index < 0 else same)


def test_no_transform_is_called_where_none_is_needed(root, monkeypatch):
    def never(_):
        raise AssertionError("slow")

    monkeypatch.setattr("visattn.data.preparation._evaluation", never)
    data = mnist(root)
    assert sum(len(batch["label"]) for batch in data.train_dataloader()) == 40
    assert sum(len(batch["label"]) for batch in data.val_dataloader()) == 20
    with pytest.raises(AssertionError, match="slow"):
        next(iter(mnist(root, size=32).train_dataloader()))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_grey_inputs_are_pillows(memory_format):
    colours = np.random.default_rng(0).integers(0, 256, (4, 24, 31, 3), dtype=np.uint8)
    preparation = Preparation((1, 24, 31), (0.3,), (0.2,))
    seen = preparation.normalise(torch.from_numpy(colours).permute(0, 3, 1, 2), memory_format)
    pillows = np.stack([np.array(Image.fromarray(image).convert("L")) for image in colours])
    expected = (torch.from_numpy(pillows)[:, None].double() / 255 - 0.3) / 0.2
    torch.testing.assert_close(seen.double(), expected, rtol=0, atol=1e-5)  # half a grey level is 0.01
    assert torch.equal(seen, preparation.batch(list(colours)))


def test_grey_images_keep_their_values():
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    values = Preparation((1, 16, 16), (0.0,), (1.0,)).normalise(every) * 255
    torch.testing.assert_close(values, torch.arange(256.0).view(1, 1, 16, 16), rtol=0, atol=1e-4)


def test_statistics_of_colours_become_those_of_grey():
    assert normalisation(RGB, 3) == (RGB["mean"], RGB["std"])
    assert normalisation({"mean": [0.1], "std": [0.3]}, 1) == ((0.1,), (0.3,))
    (mean,), (std,) = normalisation(RGB, 1)
    assert mean == pytest.approx(0.299 * 0.5 + 0.587 * 0.4 + 0.114 * 0.3, abs=1e-5)
    assert std == 0.25
    with pytest.raises(ValueError, match="the model's input has 4 channels: only one"):
        normalisation(RGB, 4)


def test_a_model_says_itself_how_many_channels_it_has_or_the_settings_do(root):
    source, settings = open_source("mnist", root=str(root)), {"model": "test_resnet", "batch_size": 8}
    model = timm.create_model("test_resnet", in_chans=1)

    def preparation(**options):
        return create_data(Settings(**settings, **options), source, model).preparation

    assert preparation().size == (3, 28, 28)  # what timm says, whatever it has built
    assert preparation(model_options={"in_chans": 1}).mean == (0.5,)
    model.pretrained_cfg |= {"input_size": (1, 28, 28)}
    assert preparation().size == (1, 28, 28)
    model.pretrained_cfg |= {"mean": (0.1307,), "std": (0.3081,)}
    assert (preparation().mean, preparation().std) == ((0.1307,), (0.3081,))
    pixels = next(iter(create_data(Settings(**settings), source, model).val_dataloader()))["image"]
    assert model(preparation().normalise(pixels)).shape == (8, 1000)


def test_images_with_a_natural_size_are_seen_whole(root):
    model = timm.create_model("test_resnet")
    assert Preparation.of(model).crop_pct < 1
    for size, source in ((None, "mnist"), (40, "mnist"), (None, "digits")):
        settings = Settings(model="test_resnet", batch_size=8, image_size=size)
        assert create_data(settings, open_source(source, root=str(root)), model).preparation.crop_pct == 1


@LIGHTNING
@pytest.mark.usefixtures("_few_pictures")
@pytest.mark.parametrize("channels", mostly_slow([1, 3], 1))
def test_a_run_on_mnist_from_its_first_step_to_its_heatmaps(root, tmp_path, monkeypatch, capsys, channels):
    monkeypatch.chdir(tmp_path)
    arguments = [*TINY, "--data", "mnist", "--root", str(root), "--batch-size", "8"]
    if channels == 1:
        arguments += ["--model-options", "{in_chans: 1}"]
    assert main([*arguments, "--name", "whole"]) == 0, capsys.readouterr().err
    card = json.loads(Path("runs/whole/model.json").read_text())
    assert card["classes"] == list("0123456789")
    assert card["input"]["size"] == [channels, 28, 28]
    assert card["input"]["mean"] == card["input"]["std"] == [0.5] * channels
    assert card["input"]["range"].startswith("grey" if channels == 1 else "RGB")

    Image.fromarray(arrays("t10k")[0][0]).save("digit.png")
    for place in ("whole", "whole/checkpoints/last.ckpt"):
        if place != "whole":
            Path("runs/whole/model.json").unlink()  # as if it had not ended
        ask = ["heatmap", "--weights", f"runs/{place}", "--image", "digit.png", "--out", "out", "--method", "gradcam"]
        assert visattn_main(ask) == 0, capsys.readouterr().err
        said = json.loads(Path("out/manifest.json").read_text())["input"]
        assert said == {key: value for key, value in card["input"].items() if key != "range"}
        assert np.load("out/digit_gradcam.npy").shape == (28, 28)


@LIGHTNING
@pytest.mark.usefixtures("undrawn")
def test_a_run_stopped_within_an_epoch_ends_like_one_left_alone(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [*TINY, "--data", "mnist", "--root", str(root), "--batch-size", "8", "--model-options", "{in_chans: 1}"]
    assert main([*arguments, "--name", "whole"]) == 0, capsys.readouterr().err
    steps = iter(range(100))
    step = Classifier.training_step

    def stopped(*given):
        if next(steps) == 5:  # of eight, in two epochs
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "training_step", stopped)
        assert main([*arguments, "--name", "parts"]) == 130
    assert checkpoint(tmp_path / "runs" / "parts")["global_step"] == 6
    assert main(["--resume", "runs/parts"]) == 0, capsys.readouterr().err
    assert_same_weights(tmp_path / "runs" / "parts", tmp_path / "runs" / "whole")
