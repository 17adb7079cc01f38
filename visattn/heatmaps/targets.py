"""Which class a heatmap explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from functools import cache
from numbers import Integral
from typing import Any, TypeAlias

import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from visattn.heatmaps.aim import class_scores
from visattn.heatmaps.watch.cache import cached
from visattn.listing import shown
from visattn.modules import timm_config, underlying
from visattn.registry import suggest

Class: TypeAlias = int | str | Sequence[int | str] | Tensor | None
Target: TypeAlias = Class | Callable[[Any], Tensor]


def number_of_classes(model: nn.Module, images: Tensor) -> int:
    """The number of classes of a model; 0 if it is not a classifier (an encoder, a segmenter)."""

    def count() -> int:
        with torch.no_grad():
            scores = class_scores(model, model(images[:1]))
        return 0 if scores is None else scores.shape[1]

    return cached(model, images, "classes", count)


def class_names(number: int, model: nn.Module | None = None) -> tuple[str, ...] | None:
    """The class names stored with a model, or ImageNet's if the number of classes matches."""
    config = {} if model is None else timm_config(underlying(model))
    own = tuple(config.get("label_names") or ())
    return own if len(own) == number > 0 else _imagenet(number)


def check_names(classes: Sequence[str] | None) -> None:
    """Raise unless class names, if given, are a list of strings."""
    if classes is None:
        return
    check_order(classes)
    for name in classes:
        if not isinstance(name, str):
            raise TypeError(f"classes is a list of names, got {name!r} among them")


def check_order(classes: object) -> None:
    """Raise unless class names have an order and can be read more than once: no set, no iterator."""
    unordered = isinstance(classes, str | bytes | Mapping | Set)
    if unordered or not isinstance(classes, Sized) or not isinstance(classes, Iterable):
        raise TypeError(f"classes is a list of names, got {classes!r}")


@cache
def _imagenet(number: int) -> tuple[str, ...] | None:
    if number != 1000:
        return None
    info = ImageNetInfo()
    return tuple(info.index_to_description(index) for index in range(number))


def class_index(name: str, classes: Sequence[str] | None) -> int:
    """The index of a class, given its name, one of its synonyms, or its number as a string."""
    if not name.strip():
        raise ValueError("the name of the class is empty")
    if name.isdecimal() and len(name) < 100 and (classes is None or name not in classes):
        return int(name)
    if classes is None:
        raise ValueError(
            f"the class {name!r} cannot be found by name: give its number, or the names of all classes in order"
        )
    wanted = name.lower().replace("_", " ")
    synonyms: dict[str, list[int]] = {}
    for index, each in enumerate(classes):
        for synonym in dict.fromkeys([each, *each.split(",")]):
            synonyms.setdefault(synonym.strip().lower().replace("_", " "), []).append(index)
    if wanted not in synonyms:
        raise ValueError(f"unknown class {shown(name)}: {suggest(name, [s for s in synonyms if s])}")
    if len(synonyms[wanted]) > 1:
        numbers = " and ".join(map(str, synonyms[wanted]))
        raise ValueError(f"{name!r} is the name of classes {numbers}: give the number")
    return synonyms[wanted][0]


def resolve(target: Class, images: int, number: int, classes: Sequence[str] | None) -> Tensor | None:
    """(images,) class indices, or None for the predicted ones.

    Args:
        target: an index, a name, a list of them with one for every image, or None.
        images: how many there are.
        number: of classes of the model.
        classes: their names.
    """
    if target is None:
        return None
    if number == 0:
        raise ValueError(f"the model has no classes, so that none can be the target, got {target!r}")
    if not isinstance(target, Integral | str) and hasattr(target, "tolist"):  # a tensor or an array
        target = target.tolist()
    every = list(target) if isinstance(target, Sequence) and not isinstance(target, str | bytes) else [target] * images
    if len(every) != images:
        raise ValueError(f"{len(every)} targets for {images} images: give one, or one for each")
    for each in every:
        if isinstance(each, bool) or not isinstance(each, Integral | str):
            raise TypeError(f"a target is the number or the name of a class, got {each!r}")
    indices = [class_index(each, classes) if isinstance(each, str) else int(each) for each in every]
    for index in indices:
        if not 0 <= index < number:
            raise ValueError(f"class {index} is out of range: the model has classes 0 to {number - 1}")
    return torch.tensor(indices)
