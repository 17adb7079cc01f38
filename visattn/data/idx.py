"""MNIST and Fashion-MNIST: four idx files, found on disk or downloaded once."""

from __future__ import annotations

import gzip
import io
import math
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import cv2
import numpy as np
from numpy.typing import NDArray
from torchvision import datasets

from visattn.data.files import MAX_BYTES
from visattn.data.once import fetched
from visattn.data.readers import Labelled, Source
from visattn.files import read_bytes, reason

SIDE = 28
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # where torchvision puts them


@dataclass(frozen=True)
class GreyImages:
    """Grey images (N, H, W) held in memory and read as RGB, with their labels (N)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int, epoch: int) -> Labelled:  # noqa: ARG002 - the same in every epoch
        """Read one image, repeated over three channels."""
        image = cv2.cvtColor(self.images[index], cv2.COLOR_GRAY2RGB)
        return image.astype(np.uint8, copy=False), int(self.labels[index])


def idx_source(name: str, root: Path) -> Source:
    """Open the 60,000 training images, and the 10,000 test images for validation."""
    files = fetched(lambda: _find(name, root), lambda: _download(name, root), root / f".{name}.lock")
    train_images, train_labels, val_images, val_labels = files
    train, val = _read_split(train_images, train_labels), _read_split(val_images, val_labels)
    return Source(train, val, CLASSES[name], size=SIDE, augment="none")


def _find(name: str, root: Path) -> list[Path] | None:
    """Find the four files together in one folder; MNIST and Fashion-MNIST use the same names."""
    for folder in (root / FOLDERS[name] / "raw", root, root / "raw"):
        spellings = [(file, file.replace("-idx", ".idx")) for file in FILES]
        candidates = [[folder / f"{each}{end}" for each in both for end in ("", ".gz")] for both in spellings]
        found = [file for each in candidates if (file := next(filter(Path.is_file, each), None))]
        if len(found) == len(FILES):
            return found
    return None


def _download(name: str, root: Path) -> None:
    target = root / FOLDERS[name] / "raw"
    with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
        try:
            getattr(datasets, FOLDERS[name])(scratch, download=True)
        except (URLError, OSError, RuntimeError) as error:
            raise ValueError(
                f"could not download {FOLDERS[name]} ({' '.join(str(error).split())[:100]}); if you are offline, put "
                f"{', '.join(FILES)} (or the same with .gz) into {str(target)!r}, or pass their folder with --root"
            ) from None
        target.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            Path(scratch, FOLDERS[name], "raw", file).replace(target / file)  # atomic


def _read_split(image_file: Path, label_file: Path) -> GreyImages:
    images, labels = _read(image_file, 3), _read(label_file, 1)
    if images.shape[1:] != (SIDE, SIDE) or not len(images):
        raise ValueError(f"{str(image_file)!r} has the shape {images.shape}, not that of {SIDE} x {SIDE} images")
    if len(labels) != len(images):
        raise ValueError(f"{str(label_file)!r} has {len(labels)} labels for {len(images)} images")
    if labels.max() > 9:
        raise ValueError(f"{str(label_file)!r} has the label {labels.max()}, but there are ten classes")
    return GreyImages(images, labels)


def _read(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes, which follows a magic number and the shape, both big-endian."""
    data = _unpacked(file)
    header = struct.Struct(f">{1 + dimensions}I")
    magic = 2048 + dimensions
    if len(data) < header.size or header.unpack_from(data)[0] != magic:
        raise ValueError(f"{str(file)!r} is damaged or not an idx file: it does not start with {magic}")
    shape: tuple[Any, ...] = header.unpack_from(data)[1:]
    if len(data) != header.size + math.prod(shape):
        raise ValueError(f"{str(file)!r} is damaged: {len(data)} bytes, not {header.size + math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=header.size).reshape(shape)


def _unpacked(file: Path) -> bytes:
    try:
        data = read_bytes(file, MAX_BYTES)
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{str(file)!r} is damaged: {reason(error)}") from None
    return data
