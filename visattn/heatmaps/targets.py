"""Which class a heatmap explains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import torch
from timm.data import ImageNetInfo
from torch import Tensor

from visattn.registry import suggest

Target: TypeAlias = int | str | Sequence[int | str] | Tensor | None


@cache
def class_names(number: int) -> tuple[str, ...] | None:
    """The names of ImageNet's classes, if there are as many."""
    if number != 1000:
        return None
    info = ImageNetInfo()
    return tuple(info.index_to_description(index) for index in range(number))


def class_index(name: str, classes: Sequence[str] | None) -> int:
    """A class by its name, by one of its synonyms, or by its number written out."""
    if name.isdecimal() and (classes is None or name not in classes):
        return int(name)
    if classes is None:
        raise ValueError(f"the class {name!r} cannot be found by name: give classes=, the names in order, or a number")
    wanted = name.lower().replace("_", " ")
    synonyms: dict[str, list[int]] = {}
    for index, each in enumerate(classes):
        for synonym in dict.fromkeys([each, *each.split(",")]):
            synonyms.setdefault(synonym.strip().lower().replace("_", " "), []).append(index)
    if wanted not in synonyms:
        raise ValueError(f"unknown class {name!r}: {suggest(name, [s for s in synonyms if s])}")
    if len(synonyms[wanted]) > 1:
        numbers = " and ".join(map(str, synonyms[wanted]))
        raise ValueError(f"{name!r} is the name of classes {numbers}: give the number")
    return synonyms[wanted][0]


def resolve(target: Target, images: int, number: int, classes: Sequence[str] | None) -> Tensor | None:
    """(images,) class indices, or None for the predicted ones.

    Args:
        target: an index, a name, a list of them with one for every image, or None.
        images: how many there are.
        number: of classes of the model.
        classes: their names.
    """
    if target is None:
        return None
    if isinstance(target, Tensor):
        target = target.tolist()
    every = [target] * images if isinstance(target, int | str) else list(target)
    if len(every) != images:
        raise ValueError(f"{len(every)} targets for {images} images: give one, or one for each")
    indices = [class_index(each, classes) if isinstance(each, str) else int(each) for each in every]
    for index in indices:
        if not 0 <= index < number:
            raise ValueError(f"class {index} is out of range: the model has classes 0 to {number - 1}")
    return torch.tensor(indices)
