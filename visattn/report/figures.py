"""What all figures share: their style, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import cm, colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from visattn.files import printable, replacing
from visattn.report.fonts import use_fonts

MAP = "inferno"  # perceptually uniform
SIGNED_MAP = "coolwarm"
GREY = "0.35"
DPI = 110

Pixels = TypeVar("Pixels", NDArray[np.uint8], NDArray[np.float32])


def short(name: str, width: int = 22) -> str:
    """Shorten a class name: its first synonym, and both ends of a long one, where names differ.

    >>> short("tench, Tinca tinca"), short("Staphylococcus_aureus_resistant_to_vancomycin", 21)
    ('tench', 'Staphyloco…vancomycin')
    """
    return fit(name.split(",")[0], width)


def fit(text: str, width: int) -> str:
    """Shorten text to `width` characters, keeping both ends.

    >>> fit("DSC_2041 (copy), final.jpg", 15)
    'DSC_204…nal.jpg'
    """
    half = max((width - 1) // 2, 1)
    return plain(text if len(text) <= width else f"{text[:half]}…{text[-half:]}")


def plain(text: str) -> str:
    """Put text on one line and keep matplotlib from reading it as a formula (a file name may contain any byte)."""
    return printable(text).replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    use_fonts(figure)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white")


def save_pixels(pixels: NDArray[np.uint8], path: Path) -> None:
    """Write an image (H, W, 3) as PNG, atomically."""
    with replacing(path) as partial:
        Image.fromarray(pixels).save(partial, format="png")


def overlay(
    image: NDArray[np.uint8], heatmap: NDArray[np.float32], opacity: float = 0.6, *, signed: bool = False
) -> NDArray[np.uint8]:
    """Blend a heatmap over the grey version of an image, (H, W, 3); red is for and blue against, if it is signed."""
    grey = image.mean(-1, keepdims=True).repeat(3, -1) / 255
    colours = (colormaps[SIGNED_MAP]((heatmap + 1) / 2) if signed else colormaps[MAP](heatmap))[..., :3]
    return np.rint(255 * ((1 - opacity) * grey + opacity * colours)).astype(np.uint8)


def show(axes: Axes, image: NDArray[np.uint8], title: str = "", colour: str = "black") -> None:
    """Show an image without ticks."""
    axes.imshow(image)  # matplotlib keeps the pixels of what it enlarges and smooths what it shrinks
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=9, color=colour, pad=3)


def show_heatmap(
    axes: Axes,
    image: NDArray[np.uint8],
    heatmap: NDArray[np.float32],
    title: str = "",
    mask: NDArray[Any] | None = None,
    *,
    signed: bool = False,
) -> None:
    """Show a heatmap over its image, with the outline of a mask; an empty one is labelled as such."""
    show(axes, overlay(image, heatmap, signed=signed), title)
    if not heatmap.any():
        axes.text(0.5, 0.03, "nothing found", transform=axes.transAxes, ha="center", fontsize=8, color="white")
    if mask is not None and mask.min() < 0.5 < mask.max():
        axes.contour(mask, levels=[0.5], colors="white", linewidths=0.8)


def colour_bar(figure: Figure, label: str, *, signed: bool = False, **place: Any) -> None:
    """Draw the colour bar of a heatmap; `place` is as in ``Figure.colorbar``."""
    if signed:
        bar = figure.colorbar(cm.ScalarMappable(Normalize(-1, 1), SIGNED_MAP), ticks=[-1, 0, 1], **place)
        bar.set_ticklabels(["against", "0", "for"])
    else:
        bar = figure.colorbar(cm.ScalarMappable(Normalize(0, 1), MAP), ticks=[0, 0.5, 1], **place)
    bar.set_label(label, fontsize=8, color=GREY)
    bar.ax.tick_params(labelsize=8, colors=GREY)


def shrunk(pixels: Pixels, longest: int) -> Pixels:
    """Shrink an image or a heatmap so that its longer side has at most `longest` pixels."""
    height, width = pixels.shape[:2]
    if max(height, width) <= longest:
        return pixels
    scale = longest / max(height, width)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
