"""The only path from an image to a model's input, and the matching crop for display.

There are two stages: :meth:`Preparation.pixels` resizes and crops one image with timm's own evaluation transform;
:meth:`Preparation.normalise` turns a batch of pixels into floats on whichever device the batch is. Validation, heatmaps
and predictions all use both, so their inputs are bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

from visattn.models.saving.card import CROP_MODES, INTERPOLATIONS, MOST_PIXELS
from visattn.registry import suggest

LONGEST, SHORTEST = 640, 320  # pixels of the longer side of a displayed image
RATIO = 16  # largest ratio of the sides; of a longer image only the middle is used

GREY = (19595, 38470, 7471)  # weights of red, green and blue in grey, of 65536, as in Pillow (ITU-R 601)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Preparation:
    """Resize, centre-crop, normalise.

    Args:
        size: channels, height and width of the model's input.
        mean, std: normalisation statistics, per channel.
        crop_pct: fraction of the resized image that is kept; above 1 a black frame is added.
        interpolation: one of `INTERPOLATIONS`, named as in timm.
        crop_mode: ``center`` fills the input and crops the rest; ``squash`` scales the sides separately; ``border``
            shows the whole image inside a frame of the mean colour.
    """

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    crop_mode: str = "center"

    def __post_init__(self) -> None:
        for word, known in ((self.interpolation, INTERPOLATIONS), (self.crop_mode, CROP_MODES)):
            if word not in known:
                kind = "interpolation" if known is INTERPOLATIONS else "crop_mode"
                raise ValueError(f"unknown {kind} {word!r}: {suggest(word, known)}")
        if not 0 < self.crop_pct < 2:
            raise ValueError(f"crop_pct must be between 0 and 2, got {self.crop_pct}")
        if math.prod(self._resized) > MOST_PIXELS:
            height, width = self._resized
            raise ValueError(f"size and crop_pct would resize images to {height} x {width} pixels, which is too large")

    @classmethod
    def of(cls, model: nn.Module, known: Mapping[str, Any] | None = None) -> Preparation:
        """Preparation of a timm model, overridden by ``known``, the ``input`` of a model card."""
        config = {**resolve_model_data_config(model), **(known or {})}
        size = tuple((known or {}).get("size") or config["input_size"])
        if len(size) != 3:
            raise ValueError(f"the model's input must be (channels, height, width), got {size}")
        return cls(
            size,
            *normalisation(config, size[0]),
            crop_pct=float(config["crop_pct"]),
            interpolation=config["interpolation"],
            crop_mode=config["crop_mode"],
        )

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize and crop RGB (H, W, 3) to (height, width, 3); an image that already fits is returned unchanged."""
        if image.shape[:2] == self.size[1:] == self._resized:
            return image
        if self.crop_mode != "squash":
            rows, columns = (_middle(*sides) for sides in (image.shape[:2], image.shape[1::-1]))
            image = image[rows, columns]
        seen: Tensor = _evaluation(self)(Image.fromarray(image))
        return seen.permute(1, 2, 0).numpy()

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Resize and crop a mask (H, W) in the same way; outside the image it is False."""
        nearest = replace(self, interpolation="nearest", mean=(0.0,))
        return nearest.pixels(np.repeat(mask[..., None].astype(np.uint8), 3, 2))[..., 0] > 0

    def normalise(self, pixels: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Normalise RGB (B, 3, height, width) in 0..255 to the model's input (B, C, height, width), on its device.

        Subtraction and division give the same bits on every device, and nothing waits for the device.
        """
        if pixels.dtype != torch.uint8:
            raise TypeError(f"pixels must be integers from 0 to 255 (uint8), got {pixels.dtype}")
        mean, std = _statistics(self.mean, self.std, pixels.device)
        shades = _grey_pixels(pixels) if self.size[0] == 1 else pixels
        return shades.to(torch.float32, memory_format=memory_format).sub_(mean).div_(std)

    def batch(self, images: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Prepare images (H, W, 3) of any size as the model's input (B, C, height, width)."""
        return self.together([self.pixels(image) for image in images])

    def together(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        """The model's input from what `pixels` made of images."""
        return self.normalise(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))

    @property
    def _resized(self) -> tuple[int, int]:
        """Height and width to which an image is scaled, in one or both, before the centre crop."""
        _, height, width = self.size
        return math.floor(height / self.crop_pct), math.floor(width / self.crop_pct)

    def box(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of the part of an image that the model sees; may extend beyond the image.

        >>> Preparation((3, 100, 100), (0.5,), (0.5,), crop_pct=0.5).box(400, 200)
        (150.0, 50.0, 250.0, 150.0)
        >>> Preparation((3, 100, 100), (0.5,), (0.5,), crop_mode="border").box(400, 200)
        (0.0, -100.0, 400.0, 300.0)
        """
        down, across = self._resized
        if self.crop_mode == "squash":
            scales = (width / across, height / down)
        else:
            fitting = (min(width, RATIO * height) / across, min(height, RATIO * width) / down)
            scales = (max(fitting) if self.crop_mode == "border" else min(fitting),) * 2
        right, bottom = (scale * side / 2 for scale, side in zip(scales, self.size[:0:-1], strict=True))
        return (width / 2 - right, height / 2 - bottom, width / 2 + right, height / 2 + bottom)

    def shown(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the same part out of the original image; large parts are shrunk, tiny ones enlarged pixel by pixel."""
        height, width = image.shape[:2]
        left, top, right, bottom = self.box(width, height)
        rows, columns = _whole(top, bottom, height), _whole(left, right, width)
        cut = image[max(rows.start, 0) : rows.stop, max(columns.start, 0) : columns.stop]
        longer = max(len(rows), len(columns))
        if longer > LONGEST:
            scale = LONGEST / longer
            size = [max(round(scale * length), 1) for length in cut.shape[1::-1]]
            cut = np.array(Image.fromarray(cut).resize((size[0], size[1]), Image.Resampling.LANCZOS))
        else:
            scale = factor = -(-SHORTEST // longer)
            cut = cut.repeat(factor, 0).repeat(factor, 1)
        return self._framed(cut, rows, columns, scale)

    def _framed(self, cut: NDArray[np.uint8], rows: range, columns: range, scale: float) -> NDArray[np.uint8]:
        """Pad beyond the edges of the image with the colour that the model sees there."""
        if rows.start >= 0 and columns.start >= 0:
            return cut
        height, width = (max(round(scale * len(each)), 1) for each in (rows, columns))
        picture = np.empty((height, width, 3), np.uint8)
        picture[:] = [round(255 * value) for value in self.mean] if self.crop_mode == "border" else 0
        top, left = (height - cut.shape[0]) // 2, (width - cut.shape[1]) // 2
        picture[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
        return picture


@cache
def _evaluation(preparation: Preparation) -> Callable[[Image.Image], Tensor]:
    """Timm's evaluation transform, up to pixels (3, height, width)."""
    return create_transform(
        preparation.size,
        is_training=False,
        use_prefetcher=True,  # normalisation comes later
        interpolation=preparation.interpolation,
        mean=preparation.mean,
        crop_pct=preparation.crop_pct,
        crop_mode=preparation.crop_mode,
    )


@cache
def _statistics(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std as (C, 1, 1) in 0..255, created once per device, since copying to a GPU waits for it."""
    means, stds = (torch.tensor([255 * each for each in values], dtype=torch.float32) for values in (mean, std))
    return means.view(-1, 1, 1).to(device), stds.view(-1, 1, 1).to(device)


def _grey_pixels(pixels: Tensor) -> Tensor:
    """Convert (B, 3, H, W) to (B, 1, H, W), bit for bit as Pillow does."""
    red, green, blue = (share * part for share, part in zip(GREY, pixels.int().split(1, dim=1), strict=True))
    return red.add_(green).add_(blue).add_(2**15) >> 16


def normalisation(config: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of a model's inputs; timm states RGB values even for a one-channel model.

    >>> normalisation({"mean": (0.485, 0.456, 0.406), "std": (0.25, 0.25, 0.25)}, 1)
    ((0.458971,), (0.25,))
    """
    if channels not in (1, 3):
        raise ValueError(f"the model's input has {channels} channels: only one (grey) or three (RGB) are supported")
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return (_grey(mean), _grey(std)) if channels == 1 else (mean, std)


def _grey(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) == 1:
        return values
    return (round(sum(share * value for share, value in zip(GREY, values, strict=True)) / 2**16, 6),)


def _middle(length: int, other: int) -> slice:
    """Middle of a side that is extremely long compared with the other one."""
    kept = min(length, RATIO * other)
    start = (length - kept) // 2
    return slice(start, start + kept)


def _whole(start: float, end: float, length: int) -> range:
    """Round to whole pixels, at least one; equal lengths stay equal, and what fits in the image stays inside it."""
    count = max(round(end - start), 1)
    first = math.floor(start + 0.5)
    if count <= length:
        first = min(first, length - count)
    return range(first, first + count)
