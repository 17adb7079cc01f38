"""Ask a model about a batch of images, and gather the answers image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from visattn.heatmaps.affinities import Affinities
from visattn.heatmaps.aim import class_scores
from visattn.heatmaps.explaining import attention_heads, explain, relate
from visattn.heatmaps.explanation import Explanation
from visattn.heatmaps.inputs import as_batch, refusals_explained
from visattn.heatmaps.one import One
from visattn.heatmaps.targets import class_names, number_of_classes
from visattn.listing import evenly
from visattn.modules import evaluating
from visattn.report.views import Channels, Finding, Fixations, Heatmap, Relation, Subject, View, with_probability

if TYPE_CHECKING:
    from visattn.data.preparation import Preparation

LAYERS = 12  # the most whose relations are shown


@dataclass(frozen=True)
class Question:
    """What to find out about every image.

    Args:
        methods: that fit the model, each with its arguments of ``explain``.
        heads: the attention of single heads is wanted,
        head_layers, head_numbers: of these layers and heads; all if None.
        patches: what every patch attends to is wanted.
    """

    methods: Mapping[str, Mapping[str, Any]]
    heads: bool = False
    head_layers: Sequence[str | int] | None = None
    head_numbers: Sequence[int] | None = None
    patches: bool = False


class Examiner:
    """Put one question to a model, batch by batch.

    Args:
        model: in evaluation mode.
        preparation: of its images.
        question: what is asked.
        target: the class to explain; if None the predicted one, as far as the model has classes.
        number, classes: how many classes it has, and their names if they are known.
        versus: the class that it is compared with, as in ``explain``.
        judge: says of an explanation of images whether it is true, in a sentence per image.
    """

    def __init__(
        self,
        model: nn.Module,
        preparation: Preparation,
        question: Question,
        target: int | None,
        number: int,
        classes: Sequence[str] | None,
        versus: int | None = None,
        judge: Callable[[Explanation, Tensor], Sequence[str]] | None = None,
    ) -> None:
        self.judge = judge
        self.model, self.preparation, self.question = model, preparation, question
        self.target, self.number, self.classes = target, number, classes
        self.versus = versus
        self._aimed: dict[str, Any] = {"target": target, "versus": versus, "classes": classes}
        self._done: set[str] = set()  # methods that worked on some image
        self._failures: dict[str, dict[str, str]] = {}  # reasons by method and image

    def failures(self) -> Iterator[tuple[str, str]]:
        """Methods that failed, or single images on which they did, each with the reason."""
        for method, reasons in self._failures.items():
            if method in self._done:
                yield from ((f"{image}, {method}", why) for image, why in reasons.items())
            else:
                yield method, next(iter(reasons.values()))

    def _name(self, index: int) -> str:
        """The first name of a class, or its number."""
        return str(index) if self.classes is None else self.classes[index].split(",")[0]

    def _label(self, index: int | None, probability: float | None = None) -> str:
        """A class as a picture shows it, where a bare number would look like part of the probability."""
        if index is None:
            return ""
        name = self._name(index)
        return with_probability(f"class {name}" if name.isdecimal() else name, probability)

    def _said(self, probabilities: Tensor | None) -> dict[str, Any]:
        """What the manifest says about an image; a model with one class gives no probability."""
        predicted = None if probabilities is None else int(probabilities.argmax())
        target = predicted if self.target is None else self.target
        said: dict[str, Any] = {}
        for index, prefix, key in ((target, "", "target"), (predicted, "predicted_", "predicted")):
            share = None if probabilities is None or index is None else float(probabilities[index])
            said[key] = index
            said[f"{prefix}class"] = None if index is None else self._name(index)
            said[f"{prefix}probability"] = share if self.number > 1 else None
        return said if self.versus is None else {**said, "versus": self.versus}

    def examine(self, names: Sequence[str], images: Sequence[NDArray[np.uint8]]) -> list[Finding | None]:
        """Answer the question for a few images (H, W, 3); None for one that no method works on."""
        question = self.question
        x = as_batch(self.model, self.preparation.batch(images))
        with torch.no_grad():
            scores = class_scores(self.model, self.model(x))
        if scores is not None and not scores.isfinite().all():
            raise ValueError("the model's numbers for these images are not finite (NaN or infinite): are its weights?")
        probabilities = None if scores is None else scores.float().softmax(1).cpu()
        explained = {method: self._explained(method, names, x) for method in question.methods}
        heads = attention_heads(self.model, x, question.head_layers, question.head_numbers) if question.heads else {}
        related = _chosen(relate(self.model, x)) if question.patches else {}
        shown = [self.preparation.shown(image) for image in images]
        return [
            self._finding(
                number,
                name,
                picture,
                None if probabilities is None else probabilities[number],
                {method: found[number] for method, found in explained.items() if number in found},
                heads,
                related,
            )
            for number, (name, picture) in enumerate(zip(names, shown, strict=True))
        ]

    def _explained(self, method: str, names: Sequence[str], x: Tensor) -> dict[int, One]:
        """A method's answers by the number of the image; without those on which it fails."""
        try:
            found = explain(
                self.model,
                x,
                method,
                frames=method == "rollout",
                **self._aimed,
                **self.question.methods[method],
            )
        except ValueError as error:
            if len(x) > 1:  # perhaps because of one image
                alone = [self._explained(method, names[number:][:1], x[number:][:1]) for number in range(len(x))]
                return {number: found[0] for number, found in enumerate(alone) if found}
            self._failures.setdefault(method, {})[names[0]] = str(error)
            return {}
        self._done.add(method)
        judged = [""] * len(x) if self.judge is None else self.judge(found, x)
        return {row: One(found, row, said) for row, said in enumerate(judged)}

    def _finding(
        self,
        number: int,
        name: str,
        picture: NDArray[np.uint8],
        probabilities: Tensor | None,
        explained: Mapping[str, One],
        heads: Mapping[tuple[str, int], Tensor],
        related: Mapping[str, Affinities],
    ) -> Finding | None:
        if not explained and not heads:
            return None

        def fitted(heatmap: Tensor, least: float = 0) -> Heatmap:
            return fit_heatmap(heatmap, picture.shape[:2], least)

        said = self._said(probabilities)
        if self.judge is not None and explained:
            said["scores"] = {method: each.judged for method, each in explained.items()}
        about = self._label(said["target"], said["probability"])
        if self.versus is not None:
            about = f"{about} rather than {self._label(self.versus)}"
        views = tuple(
            View(
                method,
                fitted(each.heatmap, -1 if each.found.signed else 0),
                each.note(balanced=bool(self.question.methods[method].get("balanced"))),
                about if each.found.of_class else "",
                each.judged,
                each.found.signed,
            )
            for method, each in explained.items()
        )
        gates = explained.get("gates")
        channels = {} if gates is None else gates.found.extra.get("channels", {})
        weighed = {} if gates is None else gates.found.extra.get("relations", {})
        subject = Subject(
            name,
            picture,
            self._label(said["predicted"]),
            said["predicted_probability"],
            views,
            (
                *(_relation(layer, each, number) for layer, each in related.items() if layer not in weighed),
                *(_relation(layer, each, gates.row) for layer, each in weighed.items() if gates is not None),
            ),
            tuple(Channels(block, _array(each[gates.row])) for block, each in channels.items() if gates is not None),
            self._fixations(picture, explained.get("glimpses")),
        )
        rollout = explained.get("rollout")
        frames = () if rollout is None else zip(rollout.found.layers, rollout.found.frames, strict=True)
        return Finding(
            subject,
            {method: _array(each.heatmap) for method, each in explained.items()},
            {method: each.found.layers for method, each in explained.items()},
            said,
            {layer: fitted(frame[rollout.row]) for layer, frame in frames if rollout is not None},
            {key: fitted(each[number]) for key, each in heads.items()},
        )

    def _fixations(self, picture: NDArray[np.uint8], glimpses: One | None) -> Fixations | None:
        if glimpses is None:
            return None
        height, width = glimpses.found.extra["glimpse"]
        across, down = picture.shape[1] / self.preparation.size[2], picture.shape[0] / self.preparation.size[1]
        return Fixations(_array(glimpses.found.extra["fixations"][glimpses.row]), (width * across, height * down))


def classes_of(
    model: nn.Module, names: Sequence[str] | None, preparation: Preparation
) -> tuple[int, Sequence[str] | None]:
    """How many classes a model has (0 for an encoder or a segmenter), and their names if they are known."""
    images = as_batch(model, torch.zeros(1, *preparation.size))
    with evaluating(model), refusals_explained(model, images):
        number = number_of_classes(model, images)
    names = names or class_names(number, model)
    if names is not None and len(names) != number:
        raise ValueError(f"{len(names)} names for the {number} classes of the model")
    return number, names


def fit_heatmap(heatmap: Tensor, size: tuple[int, ...], least: float = 0) -> Heatmap:
    """(h, w) to (H, W), still from the least to 1."""
    return _array(F.interpolate(heatmap[None, None].float(), tuple(size), mode="bilinear")[0, 0].clamp(least, 1))


def _array(tensor: Tensor) -> Heatmap:
    return tensor.detach().float().cpu().numpy()


def _relation(name: str, related: Affinities, number: int) -> Relation:
    return Relation(name, _array(related.weights[number]), related.query_grid, related.key_grid)


def _chosen(related: Mapping[str, Affinities]) -> dict[str, Affinities]:
    """At most twelve layers, evenly chosen, with the first and the last."""
    return {name: related[name] for name in evenly(list(related), LAYERS)}
