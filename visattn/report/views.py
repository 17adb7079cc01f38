"""The data behind the pictures: one image, and everything found out about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Heatmap: TypeAlias = NDArray[np.float32]  # (H, W) in [0, 1], or in [-1, 1] if it has a sign


@dataclass(frozen=True)
class View:
    """One method's answer for one image.

    Args:
        method: its name.
        heatmap: (H, W) in [0, 1], or in [-1, 1] if it is signed, as large as the image; all zero when the method found
            nothing.
        note: a remark of a few words.
        target: what the heatmap explains, such as "tabby 71%"; empty when the method ignores classes.
        score: what the model says when parts of the image are removed, in a sentence.
        signed: whether negative numbers say what speaks against the target.
    """

    method: str
    heatmap: NDArray[np.float32]
    note: str = ""
    target: str = ""
    score: str = ""
    signed: bool = False

    def __post_init__(self) -> None:
        least = -1 if self.signed else 0
        if not (self.heatmap.min() >= least and self.heatmap.max() <= 1):
            low, high = self.heatmap.min(), self.heatmap.max()
            raise ValueError(f"the heatmap of {self.method!r} ranges from {low:g} to {high:g}, not within {least} to 1")


@dataclass(frozen=True)
class Relation:
    """What every query patch attends to, in one layer.

    Args:
        name: of the layer.
        weights: (Nq, Nk), heads averaged; a negative weight is shown as 0.
        query_grid: (rows, columns) of the query patches, which cover the image row by row.
        key_grid: (rows, columns) of the key patches.
    """

    name: str
    weights: NDArray[np.float32]
    query_grid: tuple[int, int]
    key_grid: tuple[int, int]

    def __post_init__(self) -> None:
        shape = (int(np.prod(self.query_grid)), int(np.prod(self.key_grid)))
        if self.weights.shape != shape:
            raise ValueError(
                f"the weights of {self.name!r} have shape {self.weights.shape}; "
                f"queries {self.query_grid} and keys {self.key_grid} need {shape}"
            )


@dataclass(frozen=True)
class Channels:
    """A channel gate of one block: `weights` (C,)."""

    name: str
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class Fixations:
    """Where a model with glimpses looked.

    Args:
        points: (T, 2), the centres (x, y) of the glimpses in the order of time: -1 is the left or upper edge of the
            image, 1 its right or lower edge.
        size: (width, height) of a glimpse in pixels of the image.
    """

    points: NDArray[np.float32]
    size: tuple[float, float]


@dataclass(frozen=True)
class Subject:
    """One image with everything to be drawn for it.

    Args:
        name: of the file.
        image: (H, W, 3).
        answer: the class the model chose; empty if it has no classes.
        probability: its probability, if known.
        views: at most one per method.
        relations: one per layer.
        channels: one per block.
        fixations: of a model with glimpses.
    """

    name: str
    image: NDArray[np.uint8]
    answer: str
    probability: float | None
    views: tuple[View, ...]
    relations: tuple[Relation, ...] = ()
    channels: tuple[Channels, ...] = ()
    fixations: Fixations | None = None

    def __post_init__(self) -> None:
        for view in self.views:
            if view.heatmap.shape != self.image.shape[:2]:
                raise ValueError(
                    f"{self.name!r} has shape {self.image.shape[:2]}, "
                    f"its heatmap of {view.method!r} has {view.heatmap.shape}"
                )
        methods = [view.method for view in self.views]
        if len(set(methods)) < len(methods):
            raise ValueError(f"{self.name!r} has two views of the same method: {methods}")

    @property
    def said(self) -> str:
        """The answer and its probability; empty if the model has no classes."""
        return with_probability(self.answer, self.probability)

    @property
    def title(self) -> str:
        """File name and prediction."""
        return "  ·  ".join(filter(None, (self.name, self.said)))


@dataclass(frozen=True)
class Finding:
    """Everything found out about one image.

    Args:
        subject: for sheets and the page.
        heatmaps: by method, at the model's resolution.
        layers: by method, where they come from.
        said: the predicted class and the target, with their probabilities; None where there is none.
        depth: the rollout after each layer, as large as the image.
        heads: the attention of single heads by layer and head, as large as the image.
    """

    subject: Subject
    heatmaps: dict[str, Heatmap]
    layers: dict[str, tuple[str, ...]]
    said: dict[str, Any]
    depth: dict[str, Heatmap] = field(default_factory=dict)
    heads: dict[tuple[str, int], Heatmap] = field(default_factory=dict)


def with_probability(label: str, probability: float | None) -> str:
    """Format a class with its probability, if known.

    >>> with_probability("tabby", 0.714), with_probability("tabby", None)
    ('tabby 71%', 'tabby')
    """
    return label if probability is None else f"{label} {probability:.0%}"


def methods_of(subjects: Sequence[Subject]) -> list[str]:
    """All methods, in the order in which they are first seen."""
    return list(dict.fromkeys(view.method for subject in subjects for view in subject.views))
