"""Cluttered digits: real handwriting on a larger canvas, with ground truth for where it is.

The cluttered translated task of the hard-attention literature (Mnih et al. 2014, https://arxiv.org/abs/1406.6247), made
from the 1,797 handwritten digits bundled with scikit-learn. Nothing is downloaded and nothing is written: an image is a
function of (seed, index).

>>> digits = Digits("val", difficulty="cluttered")
>>> image, label, mask = digits.sample(7)
>>> image.shape, mask.shape, mask.dtype.name
((64, 64), (64, 64), 'bool')
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from visattn.registry import suggest

Difficulty: TypeAlias = Literal["centered", "translated", "cluttered"]
Split: TypeAlias = Literal["train", "val"]
Sample: TypeAlias = tuple[NDArray[np.uint8], int, NDArray[np.bool_]]

CANVAS = 64
CENTERED = 48  # side of the digit in the middle of the canvas
SIDES = (32, 49)  # range of its side otherwise
FRAGMENTS = 4  # pieces of other digits in the clutter
FRAGMENT = 8  # side of a piece
LENGTHS = {"train": 3_000, "val": 1_000}  # images per epoch
INK = 64  # brighter pixels belong to the digit


@cache
def _handwriting(split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Source digits of a split, (N, 8, 8) in 0..255, and their labels; every fifth is for validation."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    mine = (np.arange(len(labels)) % 5 == 4) == (split == "val")
    return np.rint(images[mine].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), labels[mine]


class Digits(Dataset[Sample]):
    """Digits on a 64 x 64 canvas.

    Args:
        split: ``train`` and ``val`` share no handwriting, not even in the clutter.
        difficulty: ``centered``, ``translated`` (any position and size), ``cluttered`` (also among pieces of others).
        seed: different seeds give different images.
    """

    classes = tuple(str(digit) for digit in range(10))

    def __init__(self, split: Split, difficulty: Difficulty = "cluttered", seed: int = 0) -> None:
        if difficulty not in get_args(Difficulty):
            raise ValueError(f"unknown difficulty {difficulty!r}: {suggest(difficulty, get_args(Difficulty))}")
        self.split: Split = split
        self.difficulty = difficulty
        self.seed = seed

    def __len__(self) -> int:
        return LENGTHS[self.split]

    def sample(self, index: int) -> Sample:
        """Generate the grey image (64, 64), its digit, and the mask of the ink, for any index from zero upwards."""
        images, labels = _handwriting(self.split)
        rng = np.random.default_rng((self.seed, self.split == "val", index))
        canvas = np.zeros((CANVAS, CANVAS), np.uint8)
        if self.difficulty == "cluttered":
            for _ in range(FRAGMENTS):
                side = int(rng.integers(*SIDES))
                other = _enlarge(images[rng.integers(len(images))], side)
                top, left = rng.integers(0, side - FRAGMENT, 2)
                _paste(canvas, other[top : top + FRAGMENT, left : left + FRAGMENT], rng)
        chosen = int(rng.integers(len(images)))
        ink = np.zeros_like(canvas)
        if self.difficulty == "centered":
            start = (CANVAS - CENTERED) // 2
            ink[start : start + CENTERED, start : start + CENTERED] = _enlarge(images[chosen], CENTERED)
        else:
            _paste(ink, _enlarge(images[chosen], int(rng.integers(*SIDES))), rng)
        return np.maximum(canvas, ink), int(labels[chosen]), ink > INK

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index)


def _enlarge(digit: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return cv2.resize(digit, (side, side), interpolation=cv2.INTER_CUBIC).astype(np.uint8, copy=False)


def _paste(canvas: NDArray[np.uint8], piece: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Paste a piece at a random position, keeping the brighter pixels."""
    side = len(piece)
    top, left = rng.integers(0, CANVAS - side + 1, 2)
    region = canvas[top : top + side, left : left + side]
    np.maximum(region, piece, out=region)
