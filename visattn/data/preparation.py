"""The one way an image becomes a model's input, and the same part of it for a person.

Two stages: :meth:`Preparation.pixels` resizes and cuts, image by image, with timm's own evaluation transform;
:meth:`Preparation.normalise` turns batches of such pixels into numbers, wherever the batch is. Validation, heatmaps and
predictions all go through both, so that they see the same numbers to the last bit.
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

LONGEST, SHORTEST = 640, 320  # pixels of the longer side of a picture that a person looks at
RATIO = 16  # of the sides; of an image that is longer still, only the middle is seen

GREY = (19595, 38470, 7471)  # of 65536: red, green and blue in grey, as Pillow has them (ITU-R 601)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Preparation:
    """Resize, cut out the middle, normalise.

    Args:
        size: channels, height and width of the model's input.
        mean, std: of its normalisation.
        crop_pct: share of the resized image that is kept; above 1 a black frame is added.
        interpolation: one of `INTERPOLATIONS`, in timm's words.
        crop_mode: ``center`` fills the input and loses what is too long; ``squash`` scales the sides separately;
            ``border`` shows the whole image within a frame of the mean colour.
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
            raise ValueError(f"crop_pct is the share of an image that is seen, got {self.crop_pct}")
        if math.prod(self._resized) > MOST_PIXELS:
            height, width = self._resized
            raise ValueError(f"images cannot be made as large as {height} x {width} pixels, as size and crop_pct say")

    @classmethod
    def of(cls, model: nn.Module, known: Mapping[str, Any] | None = None) -> Preparation:
        """That of a timm model, corrected by what a run knows about it: the ``input`` of its card."""
        config = {**resolve_model_data_config(model), **(known or {})}
        size = tuple((known or {}).get("size") or config["input_size"])
        if len(size) != 3:
            raise ValueError(f"the model's input is {size}, not channels, height and width")
        return cls(
            size,
            *normalisation(config, size[0]),
            crop_pct=float(config["crop_pct"]),
            interpolation=config["interpolation"],
            crop_mode=config["crop_mode"],
        )

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """RGB (H, W, 3) to what the model sees of it, (height, width, 3); an image that fits is given back as it is."""
        if image.shape[:2] == self.size[1:] == self._resized:
            return image
        if self.crop_mode != "squash":
            rows, columns = (_middle(*sides) for sides in (image.shape[:2], image.shape[1::-1]))
            image = image[rows, columns]
        seen: Tensor = _evaluation(self)(Image.fromarray(image))
        return seen.permute(1, 2, 0).numpy()

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The same part of a mask (H, W); outside of the image there is nothing."""
        nearest = replace(self, interpolation="nearest", mean=(0.0,))
        return nearest.pixels(np.repeat(mask[..., None].astype(np.uint8), 3, 2))[..., 0] > 0

    def normalise(self, pixels: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """RGB (B, 3, height, width) in 0..255 to the model's input (B, C, height, width), on the device it is on.

        Subtraction and division are exact to the last bit on every device, and nothing waits for one.
        """
        if pixels.dtype != torch.uint8:
            raise TypeError(f"pixels are numbers from 0 to 255 (uint8), got {pixels.dtype}")
        mean, std = _statistics(self.mean, self.std, pixels.device)
        shades = _grey_pixels(pixels) if self.size[0] == 1 else pixels
        return shades.to(torch.float32, memory_format=memory_format).sub_(mean).div_(std)

    def batch(self, images: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Images (H, W, 3) of any size to the model's input (B, C, height, width)."""
        pixels = np.stack([self.pixels(image) for image in images])
        return self.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))

    @property
    def _resized(self) -> tuple[int, int]:
        """Height and width that an image is scaled to, one of them or both, before the middle is cut out."""
        _, height, width = self.size
        return math.floor(height / self.crop_pct), math.floor(width / self.crop_pct)

    def box(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of what the model sees of an image; it may reach beyond the image.

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
        """The same part from the original pixels; large ones are shrunk, tiny ones get larger pixels."""
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
        """Add what lies beyond the edges of the image, in the colour that the model sees there."""
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
    """Timm's evaluation of a picture, up to pixels (3, height, width)."""
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
    """Both as (C, 1, 1) in 0..255, made once per device: a GPU would have to be waited for."""
    means, stds = (torch.tensor([255 * each for each in values]).view(-1, 1, 1) for values in (mean, std))
    return means.to(device), stds.to(device)


def _grey_pixels(pixels: Tensor) -> Tensor:
    """(B, 3, H, W) to (B, 1, H, W), to the last bit as Pillow does it."""
    red, green, blue = (share * part for share, part in zip(GREY, pixels.int().split(1, dim=1), strict=True))
    return red.add_(green).add_(blue).add_(2**15) >> 16


def normalisation(config: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of a model's inputs; timm's are for RGB, even for a model made with one channel.

    >>> normalisation({"mean": (0.485, 0.456, 0.406), "std": (0.25, 0.25, 0.25)}, 1)
    ((0.458971,), (0.25,))
    """
    if channels not in (1, 3):
        raise ValueError(f"the model's input has {channels} channels: only grey and RGB images can be made for it")
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return (_grey(mean), _grey(std)) if channels == 1 else (mean, std)


def _grey(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) == 1:
        return values
    return (round(sum(share * value for share, value in zip(GREY, values, strict=True)) / 2**16, 6),)


def _middle(length: int, other: int) -> slice:
    """Of a side that is extremely long, compared with the other one, the middle."""
    kept = min(length, RATIO * other)
    start = (length - kept) // 2
    return slice(start, start + kept)


def _whole(start: float, end: float, length: int) -> range:
    """Whole pixels, at least one; equal lengths stay equal, and what fits into the image stays there."""
    count = max(round(end - start), 1)
    first = math.floor(start + 0.5)
    if count <= length:
        first = min(first, length - count)
    return range(first, first + count)
