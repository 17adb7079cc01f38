"""Training curves and the confusion matrix."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from visattn.report.figures import GREY, plain, save, short
from visattn.report.fonts import drawable

TRAIN, VAL = "#9aa5b1", "#0b5fa5"
LABELLED = 30  # classes whose names fit


def draw_curves(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Draw loss, accuracy and learning rate over the epochs.

    Args:
        path: of the PNG.
        rows: one per epoch, as in ``metrics.csv``.
        title: of the picture.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    figure.suptitle(plain(title), fontsize=11)
    loss, accuracy, rate = figure.subplots(1, 3)
    for axes, train, val, label in (
        (loss, "train_loss", "val_loss", "loss"),
        (accuracy, "train_top1", "val_top1", "accuracy"),
    ):
        for key, colour, name in ((train, TRAIN, "training"), (val, VAL, "validation")):
            points = [(row["epoch"], row[key]) for row in rows if row[key] is not None]
            axes.plot(
                *zip(*points, strict=True), color=colour, label=name, marker="o", markersize=3
            ) if points else None
        axes.set_title(label, fontsize=10)
        axes.legend(frameon=False, fontsize=8)
    validated = [row for row in rows if row["val_top1"] is not None]
    if validated:
        best = max(validated, key=lambda row: row["val_top1"])
        accuracy.annotate(
            f"best {best['val_top1']:.1%}", (best["epoch"], best["val_top1"]), (0, -14), textcoords="offset points",
            ha="center", fontsize=8, color=VAL,
        )  # fmt: skip
    accuracy.yaxis.set_major_formatter(PercentFormatter(1, 0))
    rate.plot([row["epoch"] for row in rows], [row["lr"] for row in rows], color=GREY, marker="o", markersize=3)
    rate.set_title("learning rate at the end of the epoch", fontsize=10)
    rate.set_ylim(0, 1.1 * max(row["lr"] for row in rows) or 1)
    for axes in (loss, accuracy, rate):
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_xlim(rows[0]["epoch"] - 0.5, rows[-1]["epoch"] + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def read_confusion(path: Path, classes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Read ``confusion.csv``: true classes in rows, predicted classes in columns, with a header and row names."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            _, *rows = csv.reader(stream)
        matrix = np.array([[int(value) for value in row[1:]] for row in rows], np.int64)
    except (ValueError, OverflowError, csv.Error):
        matrix = np.empty(0, np.int64)
    if matrix.shape != (classes, classes) or matrix.min() < 0:
        raise ValueError(f"{str(path)!r} is not a confusion matrix of {classes} classes: delete it")
    return matrix


def draw_confusion(path: Path, matrix: np.ndarray[Any, np.dtype[np.int64]], names: Sequence[str], title: str) -> None:
    """Draw the confusion matrix: every row is one true class and sums to one."""
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    count = len(names)
    side = min(3.5 + 0.32 * count, 13)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_title(plain(title), fontsize=11)
    axes.set_xlabel("answer")
    axes.set_ylabel("truth")
    if count <= LABELLED:
        labels = [short(name, 18) for name in drawable(names, "class")]
        rotation = 0 if max(map(len, labels)) <= 2 else 60
        axes.set_xticks(range(count), labels, fontsize=8, rotation=rotation, ha="center" if rotation == 0 else "right")
        axes.set_yticks(range(count), labels, fontsize=8)
        for truth, answer in zip(*np.nonzero(matrix), strict=True):
            light = shares[truth, answer] > 0.5
            axes.text(
                answer, truth, matrix[truth, answer], ha="center", va="center", fontsize=7,
                color="white" if light else "black",
            )  # fmt: skip
    figure.colorbar(picture, fraction=0.04, pad=0.02).ax.tick_params(labelsize=8)
    save(figure, path)
