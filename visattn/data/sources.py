"""The data sets of ``--data``, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from timm.data import ImageNetInfo

from visattn.data.digits import Difficulty, Digits
from visattn.data.downloads import find_or_download
from visattn.data.folders import folder_source
from visattn.data.idx import idx_source
from visattn.data.readers import DigitImages, Source, Split
from visattn.data.shards import PREFIXES, StreamSource, open_indexed
from visattn.data.subsets import read_subset
from visattn.registry import suggest

AnySource: TypeAlias = Source | StreamSource


def open_source(
    data: str,
    *,
    root: str | None = None,
    subset: str | None = None,
    difficulty: Difficulty = "cluttered",
    val_fraction: float = 0.1,
    num_classes: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    split: Split | None = None,
) -> AnySource:
    """Open a data set by name; ``split`` is that of a run to resume, whose validation images stay validation images.

    >>> open_source("digits", difficulty="translated").classes[:3]
    ('0', '1', '2')
    """
    if subset is not None and data != "imagenet":
        raise ValueError(f"--subset selects classes of --data imagenet, not of {data!r}")
    if data.partition("/")[0] in PREFIXES and "/" in data:
        return _shards(data, root, num_classes)
    options: dict[str, Any] = {"val_fraction": val_fraction, "skip_bad": skip_bad, "split": split}
    openers: dict[str, Callable[[], Source]] = {
        "digits": lambda: _digits(difficulty, seed),
        "mnist": lambda: idx_source(data, Path(root or "data")),
        "fashion_mnist": lambda: idx_source(data, Path(root or "data")),
        "imagenette": lambda: _wordnet(find_or_download(data, Path(root or "data")), read_subset(data), options),
        "imagewoof": lambda: _wordnet(find_or_download(data, Path(root or "data")), read_subset(data), options),
        "imagenet": lambda: _wordnet(_needed(root, data), read_subset(subset) if subset else None, options),
        "folder": lambda: folder_source(_needed(root, data), **options),
    }
    if data not in openers:
        known = [*openers, *(f"{prefix}/…" for prefix in PREFIXES)]
        raise ValueError(f"unknown data {data!r}: {suggest(data, known)}")
    return openers[data]()


def _needed(root: str | None, data: str) -> Path:
    if root is None:
        raise ValueError(f"--data {data} needs the image folder: --root FOLDER")
    return Path(root)


def _digits(difficulty: Difficulty, seed: int) -> Source:
    # Validation images do not depend on the seed: runs are compared on the same ones.
    train, val = Digits("train", difficulty, seed), Digits("val", difficulty)
    return Source(
        DigitImages(train), DigitImages(val), Digits.classes, size=64, augment="none", mask=lambda i: val.sample(i)[2]
    )


def _wordnet(root: Path, classes: tuple[str, ...] | None, options: dict[str, Any]) -> Source:
    """Open folders that are named by WordNet ids."""
    source = folder_source(root, classes=classes, **options)
    info = ImageNetInfo()
    known = set(info.label_names())
    names = tuple(
        info.label_name_to_description(each, detailed=False) if each in known else name
        for each, name in zip(source.classes, source.names, strict=True)
    )
    return replace(source, names=names)


def _shards(data: str, root: str | None, num_classes: int | None) -> AnySource:
    if data.startswith("hfds/"):
        return Source(*open_indexed(data, root))
    if num_classes is None:
        raise ValueError(f"{data!r} is a stream of shards, with no number of classes of its own: pass --num-classes N")
    return StreamSource(data, root, tuple(str(label) for label in range(num_classes)))
