"""An image as a model saw its validation images, and the same part of it for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn

LONGEST, SHORTEST = 640, 320  # pixels of the longer side of a picture that a person looks at
WAYS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

GREY = (19595, 38470, 7471)  # of 65536: red, green and blue in grey, as Pillow has them (ITU-R 601)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Preparation:
    """Resize, cut out the middle, normalise.

    Args:
        size: channels, height and width of the model's input.
        mean, std: of its normalisation.
        crop_pct: share of the shorter side that is kept.
        interpolation: ``bilinear`` or ``bicubic``; for all others the latter.
        squash: the sides are scaled separately, so that everything is seen.
    """

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    squash: bool = False

    @classmethod
    def of(cls, model: nn.Module, known: Mapping[str, Any] | None = None) -> Preparation:
        """That of a timm model, corrected by what a run knows about it."""
        config = {**resolve_model_data_config(model), **(known or {})}
        size = tuple((known or {}).get("size") or config["input_size"])
        if len(size) != 3:
            raise ValueError(f"the model's input is {size}, not channels, height and width")
        return cls(
            size,
            *normalisation(config, size[0]),
            float(config["crop_pct"]),
            config["interpolation"],
            config["crop_mode"] == "squash",
        )

    def box(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of what the model sees of an image.

        >>> Preparation((3, 100, 100), (0.5,), (0.5,), crop_pct=0.5).box(400, 200)
        (150.0, 50.0, 250.0, 150.0)
        """
        across, down = self.crop_pct * width, self.crop_pct * height
        if not self.squash:
            scale = min(across / self.size[2], down / self.size[1])
            across, down = scale * self.size[2], scale * self.size[1]
        return ((width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2)

    def tensor(self, image: NDArray[np.uint8]) -> Tensor:
        """RGB (H, W, 3) to the model's input, (C, height, width)."""
        channels, height, width = self.size
        box = self.box(image.shape[1], image.shape[0])
        way = WAYS.get(self.interpolation, Image.Resampling.BICUBIC)
        picture = Image.fromarray(image).convert("L" if channels == 1 else "RGB").resize((width, height), way, box)
        pixels = torch.from_numpy(np.array(picture)).view(height, width, channels).permute(2, 0, 1) / 255
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (pixels - mean) / std

    def shown(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The same part from the original pixels; large ones are shrunk, tiny ones get larger pixels."""
        left, top, right, bottom = self.box(image.shape[1], image.shape[0])
        rows, columns = _whole(top, bottom, image.shape[0]), _whole(left, right, image.shape[1])
        cut = image[rows, columns]
        height, width = cut.shape[:2]
        longer = max(height, width)
        if longer > LONGEST:
            size = (max(round(width * LONGEST / longer), 1), max(round(height * LONGEST / longer), 1))
            return np.array(Image.fromarray(cut).resize(size, Image.Resampling.LANCZOS))
        factor = -(-SHORTEST // longer)
        return cut.repeat(factor, 0).repeat(factor, 1)


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


def _whole(start: float, end: float, length: int) -> slice:
    """Whole pixels, at least one; equal lengths stay equal."""
    count = max(round(end - start), 1)
    first = min(int(start + 0.5), length - count)
    return slice(first, first + count)
