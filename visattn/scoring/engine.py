"""What a model says when parts of images are taken away: one batched engine for all scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from visattn.core.arguments import at_least_one
from visattn.heatmaps.aim import class_scores
from visattn.heatmaps.inputs import as_batch, inspectable
from visattn.heatmaps.targets import Class, class_names, resolve
from visattn.heatmaps.watch.inspection import own_copy
from visattn.models.refusals import refusal
from visattn.scoring.fills import Filler
from visattn.scoring.ranking import Removal

Track = Callable[[list[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Answers:
    """What the model said of the targets, each (..., B) on the CPU.

    Args:
        probability: of the target.
        chosen: whether the target was the most likely class.
    """

    probability: Tensor
    chosen: Tensor


class Engine:
    """Asks a model about images of which parts are taken away; the model itself is only read.

    All questions become one list of jobs, (removal, image), and go through the model in chunks. What was asked before
    is not asked again: methods and scores share the clean images, the empty ones, and whatever else they have in
    common. Works under ``torch.autocast``, and gives the same numbers every time.

    Args:
        model: a classifier.
        images: (B, C, H, W), normalised as the model wants them.
        target: whose probability is watched: see :func:`visattn.explain`.
        black: what black is in the images, per channel: see :func:`visattn.scoring.fills.black_of`.
        batch_size: images at a time.
        seed: of whatever is random.
        track: wraps the list of chunks, as ``tqdm`` does, to show progress.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        target: Class = None,
        *,
        black: Sequence[float] | None = None,
        batch_size: int = 64,
        seed: int = 0,
        track: Track | None = None,
    ) -> None:
        self.batch_size = at_least_one("batch_size", batch_size)
        model = inspectable(model)
        self.images = as_batch(model, images)
        if not self.images.isfinite().all():
            raise ValueError("the images hold numbers that are not finite (NaN or infinite)")
        self._model = own_copy(model)
        logits = self._clean_logits()
        self.classes = logits.shape[1]
        self.knows_black = black is not None
        wanted = resolve(target, len(self.images), self.classes, class_names(self.classes, model))
        self.target = logits.argmax(1) if wanted is None else wanted
        self.clean = self._answers(logits, self.target)
        self._fill = Filler(self.images, black, seed)
        self._track: Track = track or (lambda chunks: chunks)
        self._known: dict[tuple[Removal | None, str], Answers] = {}

    def __len__(self) -> int:
        return len(self.images)

    def without(self, removals: Sequence[Removal], fill: str) -> list[Answers]:
        """What the model says of all images after each removal, (B,) each."""
        wanted = [(self._key(removal), fill) for removal in removals]
        todo = {
            key: removal
            for key, removal in zip(wanted, removals, strict=True)
            if key not in self._known and removal.first < removal.last
        }
        self._ask(todo, fill)
        return [
            self._known[key] if removal.first < removal.last else self.clean
            for key, removal in zip(wanted, removals, strict=True)
        ]

    def keeping(self, weights: Tensor, fill: str) -> Answers:
        """What the model says of the images blended with the fill: (B, H, W), 1 to keep a pixel, 0 to remove it."""
        if weights.shape != (len(self), *self.images.shape[2:]):
            raise ValueError(f"weights of {tuple(weights.shape)} for images of {tuple(self.images.shape)}")
        kept = weights[:, None].to(self.images)
        blended = torch.lerp(self._fill.background(fill), self.images, kept)
        logits = torch.cat([self._logits(chunk) for chunk in blended.split(self.batch_size)])
        return self._answers(logits, self.target)

    @staticmethod
    def _key(removal: Removal) -> Removal | None:
        """What is left of an image when everything is removed does not depend on any order."""
        everything = (removal.first, removal.last) == (0, removal.ranking.cells)
        return None if everything else removal

    def _ask(self, todo: dict[tuple[Removal | None, str], Removal], fill: str) -> None:
        number, removals = len(self), list(todo.values())
        for removal in removals:
            if len(removal.ranking.maps) != number:
                raise ValueError(f"{len(removal.ranking.maps)} heatmaps for {number} images")
        jobs = torch.arange(number * len(removals))
        found: list[Answers] = []
        for chunk in self._track(list(jobs.split(self.batch_size)) if removals else []):
            images = chunk % number
            with torch.no_grad():
                perturbed = self._fill(fill, images, self._masks(chunk, removals))
            found.append(self._answers(self._logits(perturbed), self.target[images]))
        if found:
            probability = torch.cat([each.probability for each in found]).view(-1, number)
            chosen = torch.cat([each.chosen for each in found]).view(-1, number)
            self._known |= {key: Answers(probability[row], chosen[row]) for row, key in enumerate(todo)}

    def _masks(self, jobs: Tensor, removals: Sequence[Removal]) -> Tensor:
        """(N, 1, H, W), what each job removes."""
        numbers, images = jobs // len(self), jobs % len(self)
        size = (self.images.shape[2], self.images.shape[3])
        masks = [
            removals[number].masks(images[numbers == number], size) for number in numbers.unique_consecutive().tolist()
        ]
        return torch.cat(masks).to(self.images.device)

    def _clean_logits(self) -> Tensor:
        """(B, classes), and the layout of the images from now on.

        Convolutions on a CPU are up to a quarter faster with the channels last. A network that cannot read such images
        (``view`` instead of ``flatten``) says so here.
        """
        layouts = [torch.channels_last] if self.images.device.type == "cpu" else []
        for self._layout in (*layouts, torch.contiguous_format):
            self.passes = 0  # images that went through the model
            try:
                return torch.cat([self._logits(chunk) for chunk in self.images.split(self.batch_size)])
            except ValueError:
                if self._layout is torch.contiguous_format:
                    raise
        raise AssertionError("there is always a layout")

    def _logits(self, x: Tensor) -> Tensor:
        """(N, classes) on the CPU."""
        self.passes += len(x)
        with torch.no_grad(), _refusals(x):
            output = class_scores(self._model, self._model(x.contiguous(memory_format=self._layout)))
        if output is None or output.shape[1] < 2 or len(output) != len(x):
            raise ValueError("scores need a classifier with two classes or more, which returns (batch, classes)")
        logits = output.float().cpu()
        if not logits.isfinite().all():
            raise ValueError("the model's numbers for these images are not finite (NaN or infinite): are its weights?")
        return logits

    @staticmethod
    def _answers(logits: Tensor, target: Tensor) -> Answers:
        probability = logits.softmax(1).gather(1, target[:, None])[:, 0]
        return Answers(probability, logits.argmax(1) == target)


@contextmanager
def _refusals(x: Tensor) -> Iterator[None]:
    """A model that does not take images says so in one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError("the device is out of memory: lower the batch size") from error
    except Exception as error:  # a network can refuse an image in any way it likes
        raise ValueError(refusal(x, error)) from error
