"""What is drawn during and after a training run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from visattn.data.datamodule import Examples, ImageData
from visattn.explain import grad_cam, look_at
from visattn.models.survey import evaluating
from visattn.report.curves import draw_confusion, draw_curves, read_confusion
from visattn.report.heatmaps import Answer, draw_film, draw_heatmaps
from visattn.training.film import Film

FILMED, SHOWN = 6, 12  # validation images


def create_film(folder: Path, every: int, model: nn.Module, data: ImageData) -> Film:
    """A film of the model's attention, on validation images that stay the same."""
    examples = data.examples(FILMED)
    inputs = _inputs(examples, data)
    place = look_at(model, inputs)
    return Film(folder, every, np.stack(examples.images), inputs, partial(grad_cam, place=place), draw_film)


def _inputs(examples: Examples, data: ImageData) -> Tensor:
    images = torch.from_numpy(np.stack(examples.images)).permute(0, 3, 1, 2)
    return data.normalise(images)


def draw_outcome(folder: Path, model: nn.Module, data: ImageData, rows: list[dict[str, Any]], name: str) -> None:
    """``heatmaps.png``, ``curves.png`` and ``confusion.png`` of a finished run."""
    examples = data.examples(SHOWN)
    inputs = _inputs(examples, data)
    with evaluating(model), torch.no_grad():
        probabilities = model(inputs).softmax(1)
    maps = grad_cam(model, inputs, look_at(model, inputs)).numpy()
    names = data.source.names
    answers = [
        Answer(names[label], names[int(row.argmax())], float(row.max()))
        for label, row in zip(examples.labels, probabilities, strict=True)
    ]
    masks = None if examples.masks is None else np.stack(examples.masks)
    title = f"What {name} looks at (Grad-CAM, best epoch)"
    if masks is not None:
        inside = float((maps * masks).sum() / maps.sum())
        title += f": {inside:.0%} of it on the outlined digit, which covers {masks.mean():.0%} of the image"
    draw_heatmaps(folder / "heatmaps.png", np.stack(examples.images), maps, answers, title=title, masks=masks)
    draw_curves(folder / "curves.png", rows, name)
    confusion = folder / "confusion.csv"
    if confusion.is_file():
        draw_confusion(folder / "confusion.png", read_confusion(confusion), names, f"{name}, validation images")
