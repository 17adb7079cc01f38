"""Rebuild a model from its card and weights."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves

from visattn.listing import first_few, shown, times
from visattn.models.places import example_images
from visattn.models.plugins import changed_plugins, check_plugins
from visattn.models.saving.description import build
from visattn.modules import evaluating, revealing_copy, uncompiled

UNSEEN = (
    "it was built with arguments that cannot be seen in it, or was changed by hand; give the former with "
    "arguments={...}"
)


def rebuild(card: Mapping[str, Any], weights: Mapping[str, Tensor], source: str | Path) -> nn.Module:
    """The model of a card with exactly these weights, each in the precision that it has, in evaluation mode.

    It is built without storage first, so that a card that does not belong to the weights costs no memory.
    """
    check_plugins(card, source)
    for plugin in changed_plugins(card):
        warnings.warn(f"{plugin} is not the file that {str(source)!r} was made with", stacklevel=3)
    with torch.device("meta"), _no_more_parameters_than(2 * len(weights) + 1000, source):
        sketch = _built(card, source)
    _check_fit(sketch, weights, card, source)
    kinds = Counter(value.dtype for value in weights.values() if value.is_floating_point())
    with torch.inference_mode(False):  # weights made in inference mode could never be trained
        model = _built(card, source)
        for kind, _ in kinds.most_common(1):
            model.to(kind)  # also buffers that are not among the weights
        for key, value in model.state_dict(keep_vars=True).items():
            if value.is_floating_point():
                value.data = value.data.to(weights[key].dtype)
    try:
        model.load_state_dict(dict(weights))
    except Exception as error:  # tensors of odd kinds: sparse, quantised, without storage
        raise ValueError(f"{str(source)!r} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    _note_classes_and_input(model, card)
    return model.eval()


def _built(card: Mapping[str, Any], source: str | Path) -> nn.Module:
    try:
        return build(card)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = f"{kind}{' '.join(str(error).split())}"[:200]
        raise ValueError(
            f"the model of {str(source)!r} cannot be built from {shown(card['model'])}: {reason}"
        ) from error


@contextmanager
def _no_more_parameters_than(number: int, source: str | Path) -> Iterator[None]:
    """Stop building a model with more parameters than that: a card may ask for any number."""
    counted, thread = 0, threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:  # noqa: ARG001
        nonlocal counted
        counted += threading.get_ident() == thread
        if counted > number:
            raise ValueError(f"the model has far more parameters than {str(source)!r} has weights")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_fit(model: nn.Module, weights: Mapping[str, Tensor], card: Mapping[str, Any], source: str | Path) -> None:
    """Raise if weights are missing, unexpected, or of another shape or kind."""
    own = model.state_dict()
    both = [(key, weights[key], value) for key, value in own.items() if key in weights]
    troubles = {
        "missing": [key for key in own if key not in weights],
        "unexpected": [key for key in weights if key not in own],
        "of another shape": [
            f"{key}: {_shape(given)} instead of {_shape(wanted)}"
            for key, given, wanted in both
            if given.shape != wanted.shape
        ],
        "of another kind": [
            f"{key}: {given.dtype} instead of {wanted.dtype}"
            for key, given, wanted in both
            if given.is_floating_point() != wanted.is_floating_point() or given.is_complex() != wanted.is_complex()
        ],
    }
    if any(troubles.values()):
        parts = [
            f"{len(keys)} {what} ({first_few([key[:80] for key in keys], 2)})"
            for what, keys in troubles.items()
            if keys
        ][:2]
        raise ValueError(f"{str(source)!r} does not fit {card['model']['name']!r}: {'; '.join(parts)}")


def _note_classes_and_input(model: nn.Module, card: Mapping[str, Any]) -> None:
    """Store classes and input of a model in ``pretrained_cfg``, where timm and others look for them."""
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, dict):
        seen, names = dict(card.get("input", {})), card.get("class_names") or card.get("classes")
        if "size" in seen:
            config["input_size"] = tuple(seen.pop("size"))
        config.update({key: value for key, value in seen.items() if key in config})
        if names:
            config["label_names"] = [str(name) for name in names]


def _shape(tensor: Tensor) -> str:
    return times(tensor.shape) or "a number"


def check_rebuilt(model: nn.Module, card: Mapping[str, Any]) -> None:
    """Raise if a model cannot be rebuilt from its card, and its weights, so that it computes the same."""
    try:
        other = rebuild(card, model.state_dict(), "the model")
    except ValueError as error:
        raise ValueError(f"the model cannot be saved, since it could not be read back ({error}): {UNSEEN}") from error
    check_equal(model, other)


def check_equal(model: nn.Module, other: nn.Module) -> None:
    """Raise if a rebuilt model computes something else, or would if none of its parameters were zero."""
    other.to(next(model.parameters()).device)
    if any(_is_channels_last(parameter) for parameter in model.parameters()):
        other.to(memory_format=torch.channels_last)
    for image in example_images(model):
        with torch.no_grad(), evaluating(model), uncompiled(model):
            try:
                ours = tree_leaves(model(image))
            except Exception:  # a network can refuse an image in any way it likes
                continue
            ours += tree_leaves(revealing_copy(model)(image))
            theirs = tree_leaves((other(image), revealing_copy(other)(image)))
        if len(ours) == len(theirs) and all(map(_same, ours, theirs)):
            return
        break
    raise ValueError(f"the model could be written, but what is read back computes something else: {UNSEEN}")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all numbers are equal; those that are none (NaN) are like each other."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _is_channels_last(weight: Tensor) -> bool:
    return weight.ndim == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
