"""What is drawn during and after a training run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from visattn.data.datamodule import Examples, ImageData
from visattn.heatmaps import grad_cam, look_at
from visattn.models.survey import evaluating
from visattn.report.curves import draw_confusion, draw_curves, read_confusion
from visattn.report.heatmaps import Answer, draw_film, draw_heatmaps
from visattn.training.film import Film
from visattn.training.processes import on_first_process
from visattn.training.settings import Settings

FILMED, SHOWN = 6, 12  # validation images
FRAMES = 12


def create_film(folder: Path, settings: Settings, model: nn.Module, data: ImageData) -> list[Film]:
    """A film of the model's attention on validation images that stay the same, if it is wanted and possible."""
    every = max(1, settings.epochs // FRAMES) if settings.film_every is None else settings.film_every
    if every == 0:
        return []
    examples = data.examples(FILMED)
    inputs = _inputs(examples, data)
    try:
        place = look_at(model, inputs)
    except ValueError as error:
        on_first_process(print, f"note: no heatmaps of this model, since {error}")
        return []
    return [Film(folder, every, np.stack(examples.images), inputs, partial(grad_cam, place=place), draw_film)]


def _inputs(examples: Examples, data: ImageData) -> Tensor:
    images = torch.from_numpy(np.stack(examples.images)).permute(0, 3, 1, 2)
    return data.normalise(images)


def draw_outcome(folder: Path, model: nn.Module, data: ImageData, rows: list[dict[str, Any]]) -> None:
    """``heatmaps.png``, ``curves.png`` and ``confusion.png`` of a finished run."""
    name = folder.name
    draw_curves(folder / "curves.png", rows, name)
    confusion = folder / "confusion.csv"
    if confusion.is_file():
        draw_confusion(
            folder / "confusion.png", read_confusion(confusion), data.source.names, f"{name}, validation images"
        )
    examples = data.examples(SHOWN)
    inputs = _inputs(examples, data)
    try:
        place = look_at(model, inputs)
    except ValueError:
        return  # said at the beginning
    maps = grad_cam(model, inputs, place).numpy()
    masks = None if examples.masks is None else np.stack(examples.masks)
    title = f"What {name} looks at (Grad-CAM, best epoch)"
    if masks is not None:
        inside = float((maps * masks).sum() / max(maps.sum(), 1e-12))
        title += f": {inside:.0%} of it on the outlined digit, which covers {masks.mean():.0%} of the image"
    images, answers = np.stack(examples.images), _answers(model, inputs, examples, data.source.names)
    draw_heatmaps(folder / "heatmaps.png", images, maps, answers, title=title, masks=masks)


def _answers(model: nn.Module, inputs: Tensor, examples: Examples, names: Sequence[str]) -> list[Answer]:
    with evaluating(model), torch.no_grad():
        probabilities = model(inputs).softmax(1)
    return [
        Answer(names[label], names[int(row.argmax())], float(row.max()))
        for label, row in zip(examples.labels, probabilities, strict=True)
    ]
