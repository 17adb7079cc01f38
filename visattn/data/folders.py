"""Images in folders, one folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from visattn.data.readers import Files, Source
from visattn.registry import suggest

EXTENSIONS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


def folder_source(root: Path, val_fraction: float, classes: Sequence[str] | None = None) -> Source:
    """The ImageFolder layout: ``root/train/<class>/…`` and ``root/val/<class>/…``, or ``root/<class>/…`` to be split.

    Args:
        root: the folder.
        val_fraction: share of every class to validate on, when there is one folder only; always the same images.
        classes: use only these, in this order.
    """
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(root)!r}: give the folder of your images with --root")
    parts = {split: _first_folder(root, names) for split, names in SPLITS.items()}
    if parts["train"] is None:
        found = _images(root, classes)
        return _split(found, val_fraction)
    if parts["val"] is None:
        raise ValueError(f"{str(root)!r} has train/ but no val/: add it, or split train/ with --root {parts['train']}")
    train, val = _images(parts["train"], classes), _images(parts["val"], classes or None)
    if extra := sorted(val.keys() - train.keys()):
        raise ValueError(f"classes of {str(parts['val'])!r} that are not in train/: {', '.join(extra[:5])}")
    order = tuple(train)
    missing = [name for name in order if name not in val]
    if missing:
        raise ValueError(f"classes of train/ that are not in {str(parts['val'])!r}: {', '.join(missing[:5])}")
    return Source(_files(train, order), _files(val, order), order)


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _images(root: Path, classes: Sequence[str] | None) -> dict[str, list[str]]:
    """The image files of every class; a class without any is an error."""
    there = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not there:
        raise ValueError(f"{str(root)!r} has no folders in it: one per class is expected, with the images inside")
    for name in classes or ():
        if name not in there:
            raise ValueError(f"{str(root)!r} has no class {name!r}: {suggest(name, there)}")
    found = {}
    for name in classes or there:
        files = sorted(
            os.path.join(folder, file)
            for folder, _, files in os.walk(root / name, followlinks=True)
            for file in files
            if os.path.splitext(file)[1].lower() in EXTENSIONS and not file.startswith(".")
        )
        if not files:
            raise ValueError(
                f"class {name!r} is empty: no images ({', '.join(sorted(EXTENSIONS))}) in {str(root / name)!r}"
            )
        found[name] = files
    return found


def _split(found: dict[str, list[str]], val_fraction: float) -> Source:
    train, val = {}, {}
    for name, files in found.items():
        if len(files) < 2:
            raise ValueError(f"class {name!r} has one image only: it cannot be split into training and validation")
        order = np.random.default_rng(0).permutation(len(files))
        count = min(len(files) - 1, max(1, round(len(files) * val_fraction)))
        val[name] = [files[i] for i in sorted(order[:count])]
        train[name] = [files[i] for i in sorted(order[count:])]
    classes = tuple(found)
    return Source(_files(train, classes), _files(val, classes), classes)


def _files(found: dict[str, list[str]], classes: Sequence[str]) -> Files:
    pairs = [(path, label) for label, name in enumerate(classes) for path in found[name]]
    return Files([path for path, _ in pairs], [label for _, label in pairs])
