"""Training augmentations by name, built with albumentations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or it checks online for a newer version

import albumentations as A
import cv2

from visattn.data.preparation import Preparation
from visattn.registry import Registry

Transform: TypeAlias = A.Compose | Preparation

AUGMENTATIONS: Registry[Callable[[Preparation], Transform]] = Registry("augmentation")


def _cropped(preparation: Preparation, *further: A.BasicTransform | A.BaseCompose) -> A.Compose:
    """Random resized crop and horizontal flip, then any further transforms."""
    crop = A.RandomResizedCrop(
        preparation.size[1:], scale=(0.08, 1), interpolation=cv2.INTER_LINEAR, area_for_downscale="image"
    )
    return A.Compose([crop, A.HorizontalFlip(p=0.5), *further])


def _jitter() -> A.ColorJitter:
    return A.ColorJitter(brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4), hue=(0, 0), p=1)


def _cutout() -> A.CoarseDropout:
    return A.CoarseDropout(num_holes_range=(1, 1), hole_height_range=(0.1, 0.4), hole_width_range=(0.1, 0.4), p=0.5)


def _policy() -> A.SomeOf:
    """Two random operations in the style of RandAugment (https://arxiv.org/abs/1909.13719), magnitude about 9 of 30."""
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


AUGMENTATIONS.add("none", lambda preparation: preparation)
AUGMENTATIONS.add("crop", _cropped)
AUGMENTATIONS.add("colour", lambda preparation: _cropped(preparation, _jitter()))
AUGMENTATIONS.add("cutout", lambda preparation: _cropped(preparation, _cutout()))
AUGMENTATIONS.add("rand", lambda preparation: _cropped(preparation, _policy()))
AUGMENTATIONS.add("strong", lambda preparation: _cropped(preparation, _policy(), _cutout()))


def training_transform(name: str, preparation: Preparation) -> Transform:
    """Create the named augmentation at the model's input size; ``none`` prepares images as for validation.

    >>> len(training_transform("strong", Preparation((3, 224, 224), (0.5,), (0.5,))))
    4
    """
    return AUGMENTATIONS[name](preparation)
