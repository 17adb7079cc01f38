"""What all figures share: their look, and how they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from visattn.files import replacing

MAP = "inferno"  # perceptually uniform
GREY = "0.35"
DPI = 110


def short(name: str, width: int = 22) -> str:
    """A class name that fits: the first of its synonyms, and of a long one both ends, where names differ.

    >>> short("tench, Tinca tinca"), short("Staphylococcus_aureus_resistant_to_vancomycin", 21)
    ('tench', 'Staphyloco…vancomycin')
    """
    name = name.split(",")[0]
    half = (width - 1) // 2
    return plain(name if len(name) <= width else f"{name[:half]}…{name[-half:]}")


def plain(text: str) -> str:
    """Text that is no formula, whatever signs are in it."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, at once."""
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white")


def overlay(image: NDArray[np.uint8], heatmap: NDArray[np.float32], opacity: float = 0.6) -> NDArray[np.uint8]:
    """A heatmap over the grey version of an image, (H, W, 3)."""
    grey = image.mean(-1, keepdims=True).repeat(3, -1) / 255
    colours = colormaps[MAP](heatmap)[..., :3]
    return np.rint(255 * ((1 - opacity) * grey + opacity * colours)).astype(np.uint8)


def show(axes: Axes, image: NDArray[np.uint8], title: str = "", colour: str = "black") -> None:
    """An image without ticks."""
    axes.imshow(image, interpolation="nearest")
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=9, color=colour, pad=3)
