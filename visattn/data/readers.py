"""Where labelled images come from: an index goes in, an RGB image and its label come out."""

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
        """One image; readers that make their images may make others in every epoch."""


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
    """Digits in clutter as RGB images, fresh ones in every epoch."""

    digits: Digits

    def __len__(self) -> int:
        return len(self.digits)

    def read(self, index: int, epoch: int) -> Labelled:
        """Draw an image."""
        grey, label, _ = self.digits.sample(epoch * len(self) + index)
        return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB).astype(np.uint8, copy=False), label


@dataclass(frozen=True)
class Source:
    """Data to train on and to validate on.

    Args:
        classes: what the labels stand for, as the data calls them.
        names: the same for people, when the data has only numbers for them (WordNet ids).
        size: natural side of the images, when they all have one.
        augment: the augmentation that suits them.
        mask: where the object is in a validation image, (H, W), if that is known.
        notes: what somebody who trains on them should know.
    """

    train: Reader
    val: Reader
    classes: tuple[str, ...]
    names: tuple[str, ...] = field(default=())
    size: int | None = None
    augment: str = "crop"
    mask: Callable[[int], NDArray[np.bool_]] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError(f"there is nothing to tell apart: the data has one class only, {self.classes[0]!r}")
        if not self.names:
            object.__setattr__(self, "names", self.classes)
