"""How a network arranges a feature map, and how to turn it into (B, C, H, W) and back.

Three arrangements occur: ``NCHW``, ``NHWC``, and tokens ``(B, N, C)`` in which the first few may be class, distillation
or register tokens (the prefix) and the rest are the pixels in row order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from visattn.blocks.primitives import is_channels_last

PREFIXES = 8  # fewer than so many tokens before the pixels are thought of, where a network does not say how many it has


@dataclass(frozen=True)
class Layout:
    """The arrangement of a feature map of known width."""

    kind: Literal["NCHW", "NHWC", "tokens"]
    channels: int
    prefix: int = 0

    def __str__(self) -> str:
        return f"tokens + {self.prefix}" if self.kind == "tokens" and self.prefix else self.kind

    def size(self, shape: Sequence[int], image: tuple[int, int] | None = None) -> tuple[int, int]:
        """Height and width of the map in a tensor of this shape."""
        if self.kind == "NCHW":
            return shape[2], shape[3]
        if self.kind == "NHWC":
            return shape[1], shape[2]
        return grid(shape[1] - self.prefix, image)

    def like(self, shape: Sequence[int]) -> Layout:
        """The same arrangement in a tensor of this shape, whose width may be another."""
        return Layout(self.kind, shape[1] if self.kind == "NCHW" else shape[-1], self.prefix)

    def to_map(self, x: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """(B, C, H, W), without the prefix; tokens need to be told the height and width."""
        if self.kind == "NCHW":
            return x
        if self.kind == "NHWC":
            return x.permute(0, 3, 1, 2)
        return x[:, self.prefix :].mT.unflatten(2, size)

    def from_map(self, feature: Tensor, x: Tensor) -> Tensor:
        """Back to the arrangement of x, whose prefix is kept."""
        if self.kind == "NCHW":
            return feature
        if self.kind == "NHWC":
            return feature.permute(0, 2, 3, 1)
        tokens = feature.flatten(2).mT
        return torch.cat([x[:, : self.prefix], tokens], dim=1) if self.prefix else tokens


@dataclass(frozen=True)
class Place:
    """A module whose output is a feature map.

    Args:
        name: of the module.
        layout: of the map,
        size: its height and width,
        image: for images of this height and width,
        index: its position, if the output is a tuple or list.
        dtype: of the map, if it is known; norms in single precision, say, give out what they are given.
    """

    name: str
    layout: Layout
    size: tuple[int, int]
    image: tuple[int, int]
    index: int | None = None
    dtype: torch.dtype | None = None


def in_format_of(x: Tensor, y: Tensor) -> Tensor:
    """y in the memory format of x: channels-last stays channels-last, everything else is contiguous."""
    last = y.ndim == 4 and is_channels_last(x)
    return y.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def grid(tokens: int, image: tuple[int, int] | None = None) -> tuple[int, int]:
    """Rows and columns of a map of that many tokens with the proportions of the image; a square if not known.

    >>> grid(196), grid(98, (112, 224))
    ((14, 14), (7, 14))
    """
    ratio = 1.0 if image is None else image[0] / image[1]
    best = round(math.sqrt(tokens * ratio))
    for rows in sorted(range(1, tokens + 1), key=lambda rows: abs(rows - best)):
        if tokens % rows == 0:
            return rows, tokens // rows
    raise ValueError(f"{tokens} tokens are not a map")


def scaled_grid(tokens: int, image: tuple[int, int], place: Place) -> tuple[int, int]:
    """Rows and columns of the tokens at a place for an image of another size, to within the rounding of strides.

    >>> place = Place("blocks.0", Layout("tokens", 64, 1), (14, 14), (224, 224))
    >>> scaled_grid(98, (112, 224), place), scaled_grid(20, (17, 160), place)
    ((7, 14), (2, 10))
    """
    height, width = (side * rows // whole for side, rows, whole in zip(image, place.size, place.image, strict=True))
    for rows in (height, height + 1, height - 1):
        for columns in (width, width + 1, width - 1):
            if rows * columns == tokens:
                return rows, columns
    if tokens > 1 and _is_possible(size := grid(tokens, image), image, place):
        return size
    raise ValueError(
        f"{tokens} tokens behind {place.name!r} are not the map of an image of {image[0]} x {image[1]}, which would be "
        f"about {height} x {width}: some of them were dropped, or the image did not come in through the network"
    )


def _is_possible(size: tuple[int, int], image: tuple[int, int], place: Place) -> bool:
    """Whether a map may be that of an image, if strides round by less than one row: here, and at the place itself."""
    sides = zip(size, image, place.size, place.image, strict=True)
    near = all(abs(rows * whole - known * side) < whole + side for rows, side, known, whole in sides)
    return near and _distortion(*size, image) < 1


def recognise(shape: Sequence[int], image: tuple[int, int], prefix: int = 0) -> Layout | None:
    """The layout of a tensor of this shape in a network that was given an image; None if it is not a map.

    A map has the proportions of the image, up to the rounding of a stride.

    Args:
        shape: of the tensor.
        image: height and width of the image that the network was given.
        prefix: how many prefix tokens the network says it has.
    """
    if len(shape) == 4:
        _, a, b, c = shape
        candidates = [(_distortion(b, c, image), "NCHW", a), (_distortion(a, b, image), "NHWC", c)]
        distortion, kind, channels = min(candidates, key=lambda candidate: candidate[0])
        if distortion < 1 and (b, c) != (1, 1):  # a column of one channel is what was pooled
            return Layout("NCHW" if kind == "NCHW" else "NHWC", channels)
    if len(shape) == 3:
        for tolerance in (1e-6, 1):
            for extra in (prefix, *range(PREFIXES)):
                tokens = shape[1] - extra
                if tokens > 1 and _distortion(*grid(tokens, image), image) < tolerance:
                    return Layout("tokens", shape[2], extra)
    return None


def of_one_pixel(shape: Sequence[int]) -> Layout | None:
    """The layout of a tensor of this shape if it is a map of a single pixel; None if it cannot be one."""
    if len(shape) == 4 and 1 == shape[2] == shape[3]:
        return Layout("NCHW", shape[1])
    if len(shape) == 4 and 1 == shape[1] == shape[2]:
        return Layout("NHWC", shape[3])
    if len(shape) == 3 and 1 <= shape[1] <= PREFIXES:
        return Layout("tokens", shape[2], shape[1] - 1)
    return None


def is_ambiguous(shape: Sequence[int], image: tuple[int, int]) -> bool:
    """Whether the channels of a map may be the first axis as well as the last: as many as there are rows and columns.

    >>> is_ambiguous((2, 8, 8, 8), (32, 32)), is_ambiguous((2, 16, 8, 8), (32, 32))
    (True, False)
    """
    if len(shape) != 4:
        return False
    _, first, second, third = shape
    return _distortion(second, third, image) < 1 and _distortion(first, second, image) < 1


def _distortion(height: int, width: int, image: tuple[int, int]) -> float:
    """By how many rows or columns a map misses the proportions of the image; infinite if it cannot be a map of it."""
    if height * width <= 1 or height > image[0] or width > image[1]:
        return math.inf
    rows, columns = width * image[0] / image[1], height * image[1] / image[0]
    return min(abs(height - rows), abs(width - columns))
