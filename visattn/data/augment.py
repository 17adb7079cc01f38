"""What happens to an image before a model sees it, by name, with albumentations."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for a newer version

import albumentations as A
import cv2
import numpy as np
from numpy.typing import NDArray

from visattn.registry import Registry

Steps = list[A.BasicTransform | A.BaseCompose]

AUGMENTATIONS: Registry[Callable[[int], Steps]] = Registry("augmentation")


def _resize(size: int) -> Steps:
    return [A.Resize(size, size, interpolation=cv2.INTER_LINEAR, area_for_downscale="image")]


def _crop(size: int) -> Steps:
    crop = A.RandomResizedCrop(
        (size, size), scale=(0.08, 1), interpolation=cv2.INTER_LINEAR, area_for_downscale="image"
    )
    return [crop, A.HorizontalFlip(p=0.5)]


def _jitter() -> A.ColorJitter:
    return A.ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4), hue=(0, 0), p=1)


def _cutout() -> A.CoarseDropout:
    return A.CoarseDropout(num_holes_range=(1, 1), hole_height_range=(0.1, 0.4), hole_width_range=(0.1, 0.4), p=0.5)


def _policy() -> A.SomeOf:
    """Two random operations of many, after RandAugment (https://arxiv.org/abs/1909.13719), magnitudes about 9 of 30."""
    return A.SomeOf(
        [
            A.AutoContrast(p=1),
            A.Equalize(p=1),
            A.Posterize(num_bits=(4, 7), p=1),
            A.Solarize(threshold_range=(0.5, 1), p=1),
            A.ColorJitter(brightness=(0.7, 1.3), contrast=(1, 1), saturation=(1, 1), hue=(0, 0), p=1),
            A.ColorJitter(brightness=(1, 1), contrast=(0.7, 1.3), saturation=(1, 1), hue=(0, 0), p=1),
            A.ColorJitter(brightness=(1, 1), contrast=(1, 1), saturation=(0.7, 1.3), hue=(0, 0), p=1),
            A.Sharpen(alpha=(0.1, 0.4), p=1),
            A.Affine(rotate=(-10, 10), p=1),
            A.Affine(shear=(-10, 10), p=1),
            A.Affine(translate_percent=(-0.15, 0.15), p=1),
        ],
        n=2,
        p=1,
    )


AUGMENTATIONS.add("none", _resize)
AUGMENTATIONS.add("crop", _crop)
AUGMENTATIONS.add("colour", lambda size: [*_crop(size), _jitter()])
AUGMENTATIONS.add("cutout", lambda size: [*_crop(size), _cutout()])
AUGMENTATIONS.add("rand", lambda size: [*_crop(size), _policy()])
AUGMENTATIONS.add("strong", lambda size: [*_crop(size), _policy(), _cutout()])


def training_transform(name: str, size: int) -> A.Compose:
    """The augmentation of a name, to a square of this size.

    >>> len(training_transform("strong", 224))
    4
    """
    return A.Compose(AUGMENTATIONS[name](size))


def changes_nothing(transform: A.Compose, image: NDArray[np.uint8]) -> bool:
    """Whether a transform only resizes, and the image has the size already."""
    steps = transform.transforms
    return len(steps) == 1 and type(steps[0]) is A.Resize and image.shape[:2] == (steps[0].height, steps[0].width)


def evaluation_transform(size: int, crop_pct: float) -> A.Compose:
    """The middle of the image: the shorter side becomes ``size / crop_pct``, then a square is cut out."""
    shorter = max(size, int(size / crop_pct))
    smallest = A.SmallestMaxSize(shorter, interpolation=cv2.INTER_LINEAR, area_for_downscale="image")
    return A.Compose([smallest, A.CenterCrop(size, size)])
