"""Images given by the user: files, folders, or images in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from visattn.data.decode import BadImage, from_pillow, read_image
from visattn.data.files import EXTENSIONS, identity, search

InMemory: TypeAlias = Image.Image | NDArray[np.uint8]  # (H, W, 3) or (H, W)


def find_images(given: Sequence[str | Path]) -> tuple[list[Path], list[tuple[str, str]]]:
    """Return the files, each once, in the given order; and what is missing, with the reason.

    Args:
        given: files, and folders to search recursively; our own heatmaps are skipped.
    """
    images: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    for each in map(str, given):
        found, problems = _find(each)
        images |= {one: path for one, path in found.items() if one not in images}
        missing += problems
    return list(map(Path, images.values())), missing


def _find(given: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The files that a file or folder stands for, by what all names of a file share; and what is missing."""
    if not given:
        return {}, [("an image", "its name is empty")]
    if os.path.isdir(given):
        found = search(given)
        if not found.images and not found.problems:
            return {}, [(given, f"no images in this folder ({', '.join(sorted(EXTENSIONS))})")]
        return found.images, list(found.problems.items())
    if not os.path.exists(given):
        return {}, [(given, "no such file or folder")]
    return {identity(os.path.realpath(given), os.stat(given)): given}, []


def gather(given: Any, leave_out: Callable[[str, str], None]) -> list[Path | NDArray[np.uint8]]:
    """Collect the paths of files, each once, and images in memory as RGB.

    Args:
        given: a file, a folder, an image in memory, or a list of these.
        leave_out: called with what is missing and the reason.
    """
    gathered: list[Path | NDArray[np.uint8]] = []
    known: set[str] = set()
    if isinstance(given, list | tuple) and not given:
        raise ValueError("there are no images: the list is empty")
    for each in given if isinstance(given, list | tuple) else [given]:
        if isinstance(each, str | PathLike):
            found, missing = _find(str(each))
            for what, why in missing:
                leave_out(what, why)
            gathered += [Path(path) for one, path in found.items() if one not in known]
            known |= found.keys()
        else:
            gathered.append(as_rgb(each))
    return gathered


def read_batches(
    pictures: Iterable[Path | NDArray[np.uint8]],
    size: int,
    leave_out: Callable[[str, str], None],
    change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] = lambda image: image,
) -> Iterator[list[tuple[str, NDArray[np.uint8]]]]:
    """Yield batches of names and images (H, W, 3).

    Args:
        pictures: files, or images already in memory.
        size: of a batch.
        leave_out: called with each unreadable file and the reason.
        change: applied to each image as it is read, since a batch of large ones takes a lot of memory.
    """

    def read() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        for number, picture in enumerate(pictures):
            if not isinstance(picture, Path):
                yield f"image {number}", change(picture)
                continue
            try:
                yield str(picture), change(read_image(picture))
            except BadImage as error:
                leave_out(error.path, error.reason)

    readable = read()
    while batch := list(islice(readable, size)):
        yield batch


def as_rgb(image: InMemory) -> NDArray[np.uint8]:
    """Convert a Pillow image or an array (H, W, 3) or (H, W) to RGB (H, W, 3)."""
    if isinstance(image, Image.Image):
        return from_pillow(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(
            "an image must be a file, a folder, a Pillow image, a uint8 array (H, W, 3) or (H, W), or a list of these, "
            f"got {type(image).__name__}"
        )
    if image.dtype != np.uint8 or image.shape[2:] not in ((), (3,)) or image.ndim < 2 or not image.size:
        raise TypeError(f"an image array must be uint8 of shape (H, W, 3) or (H, W), got {image.dtype} {image.shape}")
    return np.ascontiguousarray(image if image.ndim == 3 else np.repeat(image[..., None], 3, 2))
