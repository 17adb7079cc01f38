"""timm's readers: Hugging Face datasets (``hfds/…``), and streams of shards (``wds/…``, ``tfds/…``, ``hfids/…``)."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timm.data.readers import create_reader

from visattn.data.decode import BadImage, decode
from visattn.data.readers import Labelled

PREFIXES = ("hfds", "hfids", "tfds", "wds")
PACKAGES = {"hfds": "datasets", "hfids": "datasets", "tfds": "tensorflow-datasets", "wds": "webdataset"}
SPLITS = {"train": ("train",), "val": ("validation", "val", "test")}


@dataclass(frozen=True)
class Indexed:
    """A timm reader with random access."""

    reader: Any
    name: str
    classes: int

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, index: int, epoch: int) -> Labelled:  # noqa: ARG002 - the same in every epoch
        """Decode one image."""
        stream, label = self.reader[index]
        name = f"{self.name}[{index}]"
        if (why := wrong_label(label, self.classes)) is not None:
            raise BadImage(name, why)
        return decode(stream.read() if isinstance(stream, io.IOBase) else stream, name), int(label)


@dataclass
class Stream:
    """A timm reader that can only be read sequentially."""

    name: str
    root: str | None
    split: str
    batch_size: int
    seed: int
    workers: int
    classes: int

    def open(self) -> None:
        """Open the reader, once the processes of a run are connected, so that each takes its own shards."""
        self._reader = _open(
            self.name, self.root, self.split, batch_size=self.batch_size, seed=self.seed, is_training=self.training
        )
        self._reader.set_loader_cfg(num_workers=self.workers)

    @property
    def training(self) -> bool:
        """Whether images are shuffled and every process gets the same number."""
        return self.split == "train"

    def __len__(self) -> int:
        return len(self._reader)

    def images(self, epoch: int) -> Iterator[Labelled]:
        """All images of this process and worker."""
        self._reader.set_epoch(epoch)
        for image, label in self._reader:
            yield np.asarray(image.convert("RGB")), int(label)


@dataclass(frozen=True)
class StreamSource:
    """Training and validation shards, opened by the data module."""

    name: str
    root: str | None
    classes: tuple[str, ...]
    size: None = None
    augment: str = "crop"

    @property
    def names(self) -> tuple[str, ...]:
        """Readable class names."""
        return self.classes

    def stream(self, split: str, batch_size: int, seed: int, workers: int) -> Stream:
        """Open the stream of a split."""
        stream = Stream(self.name, self.root, split, batch_size, seed, workers, len(self.classes))
        stream.open()
        return stream


def wrong_label(label: int, classes: int) -> str | None:
    """What is wrong with a label that is no class, such as -1, where a data set keeps it secret."""
    return None if 0 <= label < classes else f"the label {label} is none of {classes} classes"


def _open(name: str, root: str | None, split: str, **options: Any) -> Any:
    prefix, _, which = name.partition("/")
    if prefix == "wds" and (not root or root.strip().lower().startswith("pipe:")):
        raise ValueError(f"--root {root!r} must be the folder or URL of the shards; commands ('pipe:…') are never run")
    if ":" in which:
        raise ValueError(f"--data {name!r}: a name with ':' would download code")
    for path in sorted(Path(root).iterdir()) if root and os.path.isdir(root) else ():
        if path.exists() and not path.is_file() and path.suffix in (".json", ".tar"):
            raise ValueError(f"{str(path)!r} is not a file, and whoever reads it may wait forever")
    failures = []
    for candidate in SPLITS[split]:
        try:
            return create_reader(name, root=root, split=candidate, **options)
        except (ImportError, AssertionError) as error:
            if isinstance(error, ImportError) or "package" in str(error):
                raise ValueError(f"{name!r} needs a package: pip install {PACKAGES[prefix]} ({error})") from None
            failures.append(f"{candidate}: {error}")
        except Exception as error:
            failures.append(f"{candidate}: {type(error).__name__}: {error}")
    raise ValueError(f"{name!r} has no readable {split} split in {root!r} ({'; '.join(failures)})".replace("\n", " "))


def open_indexed(name: str, root: str | None) -> tuple[Indexed, Indexed, tuple[str, ...]]:
    """Open a data set with random access: training images, validation images and classes."""
    train, val = (_open(name, root, split) for split in ("train", "val"))
    classes = train.dataset.features[train.label_key].names
    return Indexed(train, name, len(classes)), Indexed(val, name, len(classes)), tuple(classes)
