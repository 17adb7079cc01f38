"""The pictures of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from visattn.data.datamodule import Examples, ImageData
from visattn.heatmaps import Explanation, HasFixations, explain, on_mask
from visattn.heatmaps.inputs import as_batch
from visattn.modules import evaluating
from visattn.report.curves import draw_confusion, draw_curves, read_confusion
from visattn.report.heatmaps import Answer, draw_heatmaps
from visattn.report.paths import draw_paths
from visattn.report.views import Fixations
from visattn.training.film import Film
from visattn.training.ranks import on_first_process
from visattn.training.settings import Settings

FILMED, SHOWN = 6, 12  # validation images
FRAMES = 12


def create_film(folder: Path, settings: Settings, model: nn.Module, data: ImageData) -> list[Film]:
    """Create a film of the model's attention on fixed validation images, if it is wanted and possible."""
    every = max(1, settings.epochs // FRAMES) if settings.film_every is None else settings.film_every
    if every == 0:
        return []
    examples = data.examples(FILMED)
    inputs = _inputs(examples, data)
    try:
        explain(model, inputs[:1])
    except ValueError as error:
        on_first_process(print, f"note: no heatmaps for this model: {error}")
        return []
    return [Film(folder, every, np.stack(examples.images), inputs)]


def _inputs(examples: Examples, data: ImageData) -> Tensor:
    images = torch.from_numpy(np.stack(examples.images)).permute(0, 3, 1, 2)
    return data.preparation.normalise(images)


def draw_outcome(folder: Path, model: nn.Module, data: ImageData, rows: list[dict[str, Any]]) -> None:
    """Draw ``heatmaps.png``, ``curves.png`` and ``confusion.png`` of a finished run."""
    name = folder.name
    draw_curves(folder / "curves.png", rows, name)
    confusion = folder / "confusion.csv"
    if confusion.is_file():
        names = data.source.names
        matrix = read_confusion(confusion, len(names))
        draw_confusion(folder / "confusion.png", matrix, names, f"{name}, validation images")
    examples = data.examples(SHOWN)
    inputs = as_batch(model, _inputs(examples, data))  # in the precision of the run
    try:
        explanation = explain(model, inputs)
    except ValueError:
        return  # reported at the start
    maps = explanation.heatmap.numpy()
    masks = None if examples.masks is None else np.stack(examples.masks)
    title = f"What {name} looks at ({_way(explanation)}, best epoch)"
    images, answers = np.stack(examples.images), _answers(model, inputs, examples, data.source.names)
    if isinstance(model, HasFixations):
        _draw_fixations(folder / "fixations.png", model, images, inputs, answers, masks, name)
    if masks is not None:
        inside = float((maps * masks).sum() / max(maps.sum(), 1e-12))
        title += f": {inside:.0%} of it on the outlined digit, which covers {masks.mean():.0%} of the image"
    label = "how often seen (most = 1)" if isinstance(model, HasFixations) else "evidence for the answer (largest = 1)"
    draw_heatmaps(folder / "heatmaps.png", images, maps, answers, title=title, label=label, masks=masks)


def _way(explanation: Explanation) -> str:
    """How a heatmap was made, in a few words."""
    return explanation.method + (" of log p" if explanation.of == "log_probability" else "")


def _draw_fixations(
    path: Path,
    model: HasFixations,
    images: NDArray[np.uint8],
    inputs: Tensor,
    answers: Sequence[Answer],
    masks: NDArray[np.bool_] | None,
    name: str,
) -> None:
    with torch.no_grad():
        points, (height, width) = model.fixations(inputs)
    title = f"Where {name} looks, step by step"
    if masks is not None:
        own, other = (on_mask(points, torch.from_numpy(each)).float().mean() for each in (masks, np.roll(masks, 1, 0)))
        title += f": {own:.0%} of the fixations on the outlined digit, {other:.0%} on its place in another image"
    paths = [Fixations(each, (width, height)) for each in points.float().numpy()]
    draw_paths(path, images, {name: list(zip(paths, answers, strict=True))}, title=title, masks=masks)


def _answers(model: nn.Module, inputs: Tensor, examples: Examples, names: Sequence[str]) -> list[Answer]:
    with evaluating(model), torch.no_grad():
        probabilities = model(inputs).float().softmax(1)
    return [
        Answer(names[label], names[int(row.argmax())], float(row.max()))
        for label, row in zip(examples.labels, probabilities, strict=True)
    ]
