"""Sheets of many pictures of one kind."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from visattn.report.figures import DPI, GREY, MAP, colour_bar, fit, save, short, show, show_heatmap, shrunk
from visattn.report.views import Channels, Subject, View, methods_of, with_probability

ROWS = 12  # images on one sheet
LINE = 12  # heatmaps beside the image in one line of a strip
BLOCKS = 16  # channel gates in one picture
EDGE, GAP, BAR = 0.15, 0.1, 0.9  # inches: margin, space between cells, space for the colour bar
TITLE, LABEL = 0.42, 0.22  # inches: height of the title and of a line of text
LETTER = 0.072  # inches: width of a letter of 8 points


class Sheet:
    """A figure laid out in inches from the upper left corner."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = round(DPI * max(width, 4.5)) / DPI  # room for a title; whole pixels
        self.height = round(DPI * height) / DPI
        self.figure = Figure(figsize=(self.width, self.height), dpi=DPI)
        self.text(EDGE, TITLE / 2, fit(title, int((self.width - 2 * EDGE) / LETTER * 8 / 11)), size=11)

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Add axes whose upper left corner is at (x, y), on whole pixels."""
        left, top, right, bottom = (round(DPI * edge) / DPI for edge in (x, y, x + width, y + height))
        place = (left / self.width, 1 - bottom / self.height, (right - left) / self.width, (bottom - top) / self.height)
        return self.figure.add_axes(place)

    def text(self, x: float, y: float, text: str, size: float = 8, colour: str = "black", align: str = "left") -> None:
        """Add a line of text, vertically centred on y, starting at x, or centred there with ``align="center"``."""
        place = (x / self.width, 1 - y / self.height)
        self.figure.text(*place, text, fontsize=size, color=colour, ha=align, va="center")

    def bar(self, x: float, y: float, height: float, *, signed: bool = False) -> None:
        """Add the colour bar."""
        label = "speaks against / for" if signed else "smallest = 0, largest = 1"
        colour_bar(self.figure, label, signed=signed, cax=self.axes(x, y, 0.13, height))

    def save(self, path: Path) -> None:
        """Write the PNG."""
        for axes in self.figure.axes:
            axes.set_aspect("auto")  # each has the shape of its image already, but for a fraction of a pixel
        save(self.figure, path)


def fitted(image: NDArray[np.uint8], width: float, height: float) -> tuple[float, float]:
    """Size of an image that fits into a box and keeps its aspect ratio."""
    scale = min(width / image.shape[1], height / image.shape[0])
    return image.shape[1] * scale, image.shape[0] * scale


def draw_comparison(
    path: Path,
    subjects: Sequence[Subject],
    title: str,
    masks: Sequence[NDArray[np.bool_] | None] | None = None,
) -> list[Path]:
    """Compare all methods on all images: a row per image, a column per method.

    Args:
        path: of the PNG; after twelve images follow ``name-2.png``, ``name-3.png``, ...
        subjects: the images.
        title: of the picture.
        masks: (H, W) for each image, the true position of the object, drawn as an outline.

    Returns:
        the files written.
    """
    masks = masks or [None] * len(subjects)
    methods = methods_of(subjects)
    sheets = -(-len(subjects) // ROWS)
    paths = [path if page == 0 else path.with_stem(f"{path.stem}-{page + 1}") for page in range(sheets)]
    for page, file in enumerate(paths):
        rows = slice(page * ROWS, (page + 1) * ROWS)
        numbered = f"{title} ({page + 1} of {sheets})" if sheets > 1 else title
        _comparison(subjects[rows], masks[rows], methods, numbered).save(file)
    return paths


def _comparison(
    subjects: Sequence[Subject],
    masks: Sequence[NDArray[np.bool_] | None],
    methods: Sequence[str],
    title: str,
) -> Sheet:
    cell, tallest = 2.0, 2.4
    letters = int(cell / LETTER)
    sizes = [fitted(subject.image, cell, tallest) for subject in subjects]
    captions = [max((len(_captions(view, letters)) for view in subject.views), default=0) for subject in subjects]
    content = sum(LABEL + height + LABEL * lines + GAP for (_, height), lines in zip(sizes, captions, strict=True))
    columns = 1 + len(methods)
    top = TITLE + LABEL
    bars = sorted({view.signed for subject in subjects for view in subject.views}) or [False]
    sheet = Sheet(EDGE + columns * (cell + GAP) + BAR * len(bars), top + content + EDGE, title)
    lefts = [EDGE + column * (cell + GAP) for column in range(columns)]
    for left, heading in zip(lefts, ["image", *methods], strict=True):
        sheet.text(left + cell / 2, TITLE + LABEL / 2, fit(heading, letters * 8 // 9), 9, align="center")
    for number, signed in enumerate(bars):
        sheet.bar(lefts[-1] + cell + GAP + BAR * number, top + LABEL, min(sizes[0][1], tallest), signed=signed)

    for subject, mask, (width, height), lines in zip(subjects, masks, sizes, captions, strict=True):
        half = int(sheet.width / LETTER / 2 * 8 / 9) - 4
        said = with_probability(short(subject.answer, half), subject.probability)
        sheet.text(EDGE, top + LABEL / 2, "  ·  ".join(filter(None, (fit(subject.name, half), said))), 9)
        top += LABEL
        pixels = round(DPI * max(width, height))
        image = shrunk(subject.image, pixels)
        outline = None if mask is None else shrunk(mask.astype(np.float32), pixels)
        show(sheet.axes(lefts[0] + (cell - width) / 2, top, width, height), image)
        views = {view.method: view for view in subject.views}
        for left, method in zip(lefts[1:], methods, strict=True):
            axes = sheet.axes(left + (cell - width) / 2, top, width, height)
            if method not in views:
                axes.set(xticks=[], yticks=[], facecolor="0.95")
                axes.spines[:].set_visible(False)
                axes.text(
                    0.5, 0.5, "not made", transform=axes.transAxes, ha="center", va="center", fontsize=8, color=GREY
                )
                continue
            view = views[method]
            show_heatmap(axes, image, shrunk(view.heatmap, pixels), mask=outline, signed=view.signed)
            for line, caption in enumerate(_captions(view, letters)):
                sheet.text(left + cell / 2, top + height + LABEL * (line + 0.5), caption, colour=GREY, align="center")
        top += height + LABEL * lines + GAP
    return sheet


def _captions(view: View, letters: int) -> list[str]:
    """The lines below a heatmap: what it explains and where it comes from, and its score."""
    about = [each for each in (view.target, view.note) if each]
    if len("; ".join(about)) <= letters:
        about = ["; ".join(about)] if about else []
    score = view.score.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with the sign
    return [*(fit(each, letters) for each in about), *textwrap.wrap(score, letters)]


def draw_grid(
    path: Path,
    image: NDArray[np.uint8],
    maps: Mapping[str, NDArray[np.float32] | None],
    title: str,
    columns: int | None = None,
) -> None:
    """Draw many heatmaps of one image, which is shown to their left.

    Args:
        path: of the PNG.
        image: (H, W, 3).
        maps: heatmaps (H, W) in [0, 1] by label, row by row; the place of a missing one (None) stays empty.
        title: of the picture.
        columns: heatmaps per row, such as the heads of a layer; by default the grid is nearly square.
    """
    if columns is None:
        columns = max(1, math.ceil(math.sqrt(len(maps) * image.shape[0] / image.shape[1])))
    box = 1.2 if columns > 6 else 1.7
    width, height = fitted(image, box, box * 1.2)
    labels = ["image", *(label for label, heatmap in maps.items() if heatmap is not None)]
    box = max(width, min(box, LETTER * max(map(len, labels))))  # as wide as the label if that is wider
    step_x, step_y = box + GAP / 2, height + LABEL + GAP / 2
    rows = -(-len(maps) // columns)
    sheet = Sheet(EDGE + (1 + columns) * step_x + BAR, TITLE + rows * step_y + EDGE, title)
    pixels = round(DPI * max(width, height))
    small = shrunk(image, pixels)
    cells: list[tuple[int, int, str, NDArray[np.float32] | None]] = [(0, 0, "image", None)]
    cells += [(n // columns, 1 + n % columns, label, each) for n, (label, each) in enumerate(maps.items())]
    for row, column, label, heatmap in cells:
        if heatmap is None and column > 0:
            continue
        left, top = EDGE + column * step_x, TITLE + row * step_y
        sheet.text(left + box / 2, top + LABEL / 2, fit(label, int(box / LETTER)), align="center")
        axes = sheet.axes(left + (box - width) / 2, top + LABEL, width, height)
        if heatmap is None:
            show(axes, small)
        else:
            show_heatmap(axes, small, shrunk(heatmap, pixels))
    sheet.bar(EDGE + (1 + columns) * step_x + GAP / 2, TITLE + LABEL, min((rows - 1) * step_y + height, 2.5))
    sheet.save(path)


def draw_strip(path: Path, image: NDArray[np.uint8], frames: dict[str, NDArray[np.float32]], title: str) -> None:
    """Draw how a heatmap develops, for example with the depth of a rollout: the image, then frames from left to right.

    Args:
        path: of the PNG.
        image: (H, W, 3).
        frames: heatmaps (H, W) in [0, 1] by label; a new line begins after twelve.
        title: of the picture.
    """
    draw_grid(path, image, frames, title, columns=min(len(frames), LINE))


def draw_channels(path: Path, channels: Sequence[Channels], title: str) -> None:
    """Draw the weights of channel gates, a row per block, for the first sixteen blocks.

    Args:
        path: of the PNG.
        channels: one per block.
        title: of the picture.
    """
    shown = channels[:BLOCKS]
    if len(channels) > BLOCKS:
        title = f"{title} (first {BLOCKS} of {len(channels)} blocks)"
    left, width, height, right = 0.55, 8.6, 0.85, 1.25
    step = height + 0.5
    sheet = Sheet(left + width + right, TITLE + step * len(shown) + 0.2, title)
    for row, gate in enumerate(shown):
        top = TITLE + row * step + LABEL
        count = len(gate.weights)
        mean = gate.weights.mean()
        axes = sheet.axes(left, top, width, height)
        thickness = max(0.7 * 72 * width / count, 0.6)  # points
        axes.vlines(np.arange(count), 0, gate.weights, colormaps[MAP](0.45), linewidth=thickness, capstyle="butt")
        axes.axhline(mean, color="black", linewidth=0.9, linestyle="--")
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylim(min(0, gate.weights.min()), max(1, gate.weights.max()))
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        sheet.text(left, top - LABEL / 2, f"{fit(gate.name, 80)}  ·  {count} channels", 9)
        sheet.text(left + width + 0.1, top + height / 2 - 0.09, f"mean {mean:.3f}", 9)
        span = f"{gate.weights.min():.2f} to {gate.weights.max():.2f}"
        sheet.text(left + width + 0.1, top + height / 2 + 0.09, span, colour=GREY)
    sheet.save(path)
