"""Images beside what the model looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from visattn.listing import evenly
from visattn.report.figures import colour_bar, overlay, plain, save, short, show, show_heatmap

RIGHT, WRONG = "#1a7f37", "#c1121f"


@dataclass(frozen=True)
class Answer:
    """A model's answer for an image: true and predicted class names, and the probability of the prediction."""

    true: str
    said: str
    probability: float

    def __str__(self) -> str:
        if self.true == self.said:
            return f"{short(self.said, 34)} {self.probability:.0%}"
        return f"{short(self.true, 15)} taken for {short(self.said, 15)} {self.probability:.0%}"


def draw_heatmaps(
    path: Path,
    images: NDArray[np.uint8],
    heatmaps: NDArray[np.float32],
    answers: Sequence[Answer],
    *,
    title: str,
    label: str,
    masks: NDArray[np.bool_] | None = None,
    columns: int = 4,
) -> None:
    """Draw pairs of an image and its heatmap, with the model's answer above.

    Args:
        path: of the PNG.
        images: (B, H, W, 3).
        heatmaps: (B, H, W) in [0, 1].
        answers: one per image.
        title: of the picture.
        label: what the colours mean.
        masks: (B, H, W), the truth about where the object is, drawn as an outline.
        columns: pairs per row.
    """
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.9, 1.8 * rows + 0.5), layout="constrained")
    figure.suptitle(plain(title), fontsize=11)
    grid = figure.subplots(rows, 2 * columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (image, heatmap, answer) in enumerate(zip(images, heatmaps, answers, strict=True)):
        left, right = grid[number // columns, 2 * (number % columns) :][:2]
        show(left, image, str(answer), RIGHT if answer.true == answer.said else WRONG)
        left.title.set_horizontalalignment("left")
        left.title.set_x(0)
        left.title.set_in_layout(False)  # a long one may run on over the heatmap's column
        show_heatmap(right, image, heatmap, " ", None if masks is None else masks[number])
    colour_bar(figure, label, ax=grid, fraction=0.02, pad=0.01)
    save(figure, path)


def draw_film(path: Path, images: NDArray[np.uint8], frames: dict[int, NDArray[np.float32]], most: int = 12) -> None:
    """Draw a strip per image: what the model looked at after more and more epochs.

    Args:
        path: of the PNG.
        images: (B, H, W, 3).
        frames: heatmaps (B, H, W) by epoch.
        most: frames to show; of more, an even choice.
    """
    epochs = evenly(sorted(frames), most)
    columns = 1 + len(epochs)
    figure = Figure(figsize=(1.25 * columns + 0.2, 1.25 * len(images) + 0.5), layout="constrained")
    grid = figure.subplots(len(images), columns, squeeze=False, gridspec_kw={"wspace": 0.03, "hspace": 0.03})
    for row, image in enumerate(images):
        show(grid[row, 0], image, "image" if row == 0 else "")
        for column, epoch in enumerate(epochs, 1):
            show(grid[row, column], overlay(image, frames[epoch][row]), f"epoch {epoch}" if row == 0 else "")
    save(figure, path)
