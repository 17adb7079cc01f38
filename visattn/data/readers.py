"""Sources of labelled images: an index goes in, an RGB image and its label come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from visattn.data.decode import read_image
from visattn.data.digits import Digits

Labelled: TypeAlias = tuple[NDArray[np.uint8], int]  # (H, W, 3) RGB, class index


class Reader(Protocol):
    """Labelled images by index; one that cannot be read raises :class:`visattn.data.decode.BadImage`."""

    def __len__(self) -> int: ...

    def read(self, index: int, epoch: int) -> Labelled:
        """Read one image; a reader that generates images may generate different ones in every epoch."""


@dataclass(frozen=True)
class Files:
    """Image files and their labels."""

    paths: Sequence[str]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, epoch: int) -> Labelled:  # noqa: ARG002 - a file is the same in every epoch
        """Decode a file."""
        return read_image(self.paths[index]), self.labels[index]


@dataclass(frozen=True)
class DigitImages:
    """Generated digits as RGB images, new ones in every epoch."""

    digits: Digits

    def __len__(self) -> int:
        return len(self.digits)

    def read(self, index: int, epoch: int) -> Labelled:
        """Generate one image."""
        grey, label, _ = self.digits.sample(epoch * len(self) + index)
        return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB).astype(np.uint8, copy=False), label


@dataclass(frozen=True)
class Split:
    """How the validation images of a run were split off from a folder that has no such split.

    Args:
        fraction: share of every class that was asked for.
        held_out: paths of the validation images inside the folder.
    """

    fraction: float
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Training and validation data.

    Args:
        classes: class names in label order, as the data has them.
        names: readable class names, where the data has only ids (WordNet).
        size: natural side of the images, if they share one.
        augment: the augmentation that suits them.
        mask: mask (H, W) of the object in a validation image, if known.
        notes: remarks for whoever trains on the data.
        split: which images are held out, if the data does not say so itself.
    """

    train: Reader
    val: Reader
    classes: tuple[str, ...]
    names: tuple[str, ...] = field(default=())
    size: int | None = None
    augment: str = "crop"
    mask: Callable[[int], NDArray[np.bool_]] | None = None
    notes: tuple[str, ...] = ()
    split: Split | None = None

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError(f"there is nothing to classify: the data has only one class, {self.classes[0]!r}")
        if not self.names:
            object.__setattr__(self, "names", self.classes)
