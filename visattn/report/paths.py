"""Pictures of where models with glimpses looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from visattn.hard.sensor import coverage
from visattn.report.figures import plain, save, show
from visattn.report.heatmaps import RIGHT, WRONG, Answer
from visattn.report.sheets import EDGE, LABEL, TITLE, Sheet, fitted
from visattn.report.views import Fixations

COLUMNS = 6


def draw_fixations(path: Path, image: NDArray[np.uint8], fixations: Fixations, title: str) -> None:
    """Draw where a model looked, glimpse by glimpse, and how much of the image it saw in total.

    Args:
        path: of the PNG.
        image: (H, W, 3).
        fixations: the glimpses.
        title: of the picture.
    """
    width, height = fitted(image, 4.4, 4.4)
    sheet = Sheet(2 * (width + EDGE) + EDGE, TITLE + LABEL + height + EDGE, title)
    rows, columns = image.shape[:2]
    centres = _centres(fixations, image)
    width_seen, height_seen = fixations.size
    points = torch.from_numpy(fixations.points)[None]
    seen = coverage(points, (height_seen, width_seen), (rows, columns))[0].numpy() > 0
    darkened = np.where(seen[..., None], image, image // 4)

    count = len(centres)
    labels = [f"{count} glimpse{'s' if count != 1 else ''}", f"seen: {seen.mean():.0%} of the image"]
    panels = []
    for number, (picture, label) in enumerate(zip((image, darkened), labels, strict=True)):
        x = EDGE + number * (width + EDGE)
        sheet.text(x, TITLE + LABEL / 2, label, 9)
        axes = sheet.axes(x, TITLE + LABEL, width, height)
        axes.imshow(picture, extent=(0, columns, rows, 0))
        axes.set_axis_off()
        panels.append(axes)
    _path(panels[0], centres, fixations.size)
    sheet.save(path)


def draw_paths(
    path: Path,
    images: NDArray[np.uint8],
    looked: Mapping[str, Sequence[tuple[Fixations, Answer]]],
    *,
    title: str,
    masks: NDArray[np.bool_] | None = None,
) -> None:
    """Draw where one or several models looked in the same images, and what each answered.

    Args:
        path: of the PNG.
        images: (B, H, W, 3).
        looked: by the name of a model, its glimpses and its answer for every image.
        title: of the picture.
        masks: (B, H, W), the truth about where the object is, drawn as an outline.
    """
    columns = min(COLUMNS, len(images))
    lines = -(-len(images) // columns)
    figure = Figure(figsize=(2.1 * columns + 0.4, 2.3 * lines * len(looked) + 0.5), layout="constrained")
    figure.suptitle(plain(title), fontsize=11)
    grid = figure.subplots(lines * len(looked), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for row, (name, visits) in enumerate(looked.items()):
        cells = grid[row * lines : (row + 1) * lines].flat
        for number, (axes, image, (fixations, answer)) in enumerate(zip(cells, images, visits, strict=False)):
            show(axes, image, str(answer), RIGHT if answer.true == answer.said else WRONG)
            if masks is not None:
                axes.contour(masks[number], levels=[0.5], colors="white", linewidths=0.8)
            # Pixel 0 is drawn from -0.5 to 0.5.
            _path(axes, _centres(fixations, image) - 0.5, fixations.size, letters=6)
            axes.set(xlim=(-0.5, image.shape[1] - 0.5), ylim=(image.shape[0] - 0.5, -0.5))  # boxes may lie outside
            if number == 0 and len(looked) > 1:
                axes.text(-0.06, 0.5, plain(name), transform=axes.transAxes, rotation=90, ha="right", va="center")
    save(figure, path)


def _centres(fixations: Fixations, image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Convert locations to pixels, with zero at the edge of the first pixel."""
    return (fixations.points + 1) / 2 * (image.shape[1], image.shape[0])


def _path(axes: Axes, centres: NDArray[np.float64], size: tuple[float, float], letters: float = 8) -> None:
    """Draw numbered boxes and the arrows between them, from dark to bright."""
    colours = colormaps["plasma"](np.linspace(0.1, 1, len(centres)))
    halo = [withStroke(linewidth=3.2, foreground="white")]
    arrow = {"arrowstyle": "-|>", "linewidth": 1.6, "shrinkA": 7, "shrinkB": 8, "path_effects": halo}
    visits: dict[tuple[float, float], list[int]] = {}
    for number, ((x, y), colour) in enumerate(zip(centres.tolist(), colours, strict=True)):
        corner = (x - size[0] / 2, y - size[1] / 2)
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linewidth=1.8, path_effects=halo))
        if number > 0:
            axes.annotate("", (x, y), tuple(centres[number - 1]), zorder=3, arrowprops={**arrow, "color": colour})
        visits.setdefault((x, y), []).append(number)
    for (x, y), numbers in visits.items():
        red, green, blue, _ = colour = colours[numbers[-1]]
        axes.text(
            x, y, ", ".join(str(number + 1) for number in numbers), ha="center", va="center", zorder=4,
            fontsize=letters, fontweight="bold",
            color="white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "black",
            bbox={"boxstyle": "circle" if len(numbers) == 1 else "round", "facecolor": colour, "edgecolor": "white"},
        )  # fmt: skip
