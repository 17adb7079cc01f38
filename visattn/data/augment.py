"""Training augmentations by name, built with albumentations and torchvision."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or it checks online for a newer version

import albumentations as A
import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

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


class RandAugment(A.ImageOnlyTransform):
    """Two random operations of fourteen at magnitude 9 of 30 (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719).

    torchvision's version draws from torch's generator, which is seeded by albumentations for each image and restored.
    """

    def __init__(self) -> None:
        super().__init__(p=1)
        self.operations = v2.RandAugment(num_ops=2, magnitude=9, interpolation=v2.InterpolationMode.BILINEAR)

    def get_params(self) -> dict[str, Any]:
        """Draw a seed for this image."""
        return {"seed": self.py_random.getrandbits(63)}

    def apply(self, img: NDArray[np.uint8], seed: int, **_: Any) -> NDArray[np.uint8]:
        """Apply both operations."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return np.array(self.operations(Image.fromarray(img)))


AUGMENTATIONS.add("none", lambda preparation: preparation)
AUGMENTATIONS.add("crop", _cropped)
AUGMENTATIONS.add("colour", lambda preparation: _cropped(preparation, _jitter()))
AUGMENTATIONS.add("cutout", lambda preparation: _cropped(preparation, _cutout()))
AUGMENTATIONS.add("rand", lambda preparation: _cropped(preparation, RandAugment()))
AUGMENTATIONS.add("strong", lambda preparation: _cropped(preparation, RandAugment(), _cutout()))


def training_transform(name: str, preparation: Preparation) -> Transform:
    """Create the named augmentation at the model's input size; ``none`` prepares images as for validation.

    >>> len(training_transform("strong", Preparation((3, 224, 224), (0.5,), (0.5,))))
    4
    """
    return AUGMENTATIONS[name](preparation)
