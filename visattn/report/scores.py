"""Scores of heatmaps: their curves, and one HTML file with the table and the images behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from visattn.report.figures import GREY, overlay, plain, save, short, shrunk
from visattn.report.page import embedded_picture, write_filled

SIDE = 256  # pixels of the longer side of an image on the page, at most
COLUMNS = 4
MOST, LEAST = "#b3261e", "#0b5fa5"

_TEMPLATE = Path(__file__).with_name("scores.html")


@dataclass(frozen=True)
class ScoredImage:
    """An image and its heatmap.

    Args:
        said: its name and its score.
        image: (H, W, 3).
        heatmap: (H, W) in 0..255.
    """

    said: str
    image: NDArray[np.uint8]
    heatmap: NDArray[np.uint8]


@dataclass(frozen=True)
class ScoreRow:
    """A method in the table of the page.

    Args:
        method: its name.
        baseline: whether it knows nothing of the model.
        cells: by score, what stands in the table,
        details: and the same with its interval.
        curves: (2, steps), the mean probability while the most, the least relevant parts are removed first.
        best, worst: images.
    """

    method: str
    baseline: bool
    cells: Mapping[str, str]
    details: Mapping[str, str]
    curves: NDArray[np.float32] | None
    best: Sequence[ScoredImage]
    worst: Sequence[ScoredImage]


def draw_score_curves(path: Path, curves: Mapping[str, NDArray[np.float32]], title: str) -> None:
    """A small picture per method: the probability while the most, and while the least relevant parts are removed first.

    Args:
        path: of the PNG.
        curves: by method (2, steps, images).
        title: of the picture.
    """
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.5 * rows + 0.5), layout="constrained")
    figure.suptitle(plain(title), fontsize=11)
    every = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (method, both) in zip(every, curves.items(), strict=False):
        shares = np.linspace(0, 1, both.shape[1])
        most, least = both.mean(2)
        axes.fill_between(shares, most, least, where=least >= most, color=LEAST, alpha=0.12, linewidth=0)
        axes.fill_between(shares, most, least, where=least < most, color=MOST, alpha=0.12, linewidth=0)
        axes.plot(shares, least, color=LEAST, label="least relevant first")
        axes.plot(shares, most, color=MOST, label="most relevant first")
        gain = np.trapezoid(least - most, shares)
        axes.set_title(f"{short(method)}   SRG {gain:.3f}", fontsize=9)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
        axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
        axes.tick_params(labelsize=8, colors=GREY)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in every[len(curves) :]:
        axes.set_axis_off()
    every[0].legend(frameon=False, fontsize=8)
    figure.supxlabel("removed from the image", fontsize=9)
    figure.supylabel("probability of the answer", fontsize=9)
    save(figure, path)


def write_scores_page(path: Path, title: str, note: str, metrics: Mapping[str, str], rows: Sequence[ScoreRow]) -> None:
    """Write a page that holds everything it shows, and opens from disk without a network.

    Args:
        path: of the HTML file.
        title: of the page.
        note: how the scores were made.
        metrics: the scores and what they mean.
        rows: the methods, the best first.
    """
    write_filled(
        path,
        _TEMPLATE,
        {"title": title, "note": note, "metrics": dict(metrics), "rows": [_row(row) for row in rows]},
    )


def _row(row: ScoreRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "baseline": row.baseline,
        "cells": dict(row.cells),
        "details": dict(row.details),
        "curves": None if row.curves is None else row.curves.tolist(),
        "best": [_image(each) for each in row.best],
        "worst": [_image(each) for each in row.worst],
    }


def _image(scored: ScoredImage) -> dict[str, str]:
    heat = overlay(scored.image, (scored.heatmap / 255).astype(np.float32))
    return {
        "said": scored.said,
        "image": embedded_picture(shrunk(scored.image, SIDE), "png"),
        "heatmap": embedded_picture(shrunk(heat, SIDE), "png"),
    }
