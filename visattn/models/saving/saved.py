"""Saved models: ``model.safetensors`` and its card, ``model.json``, and how any such file becomes a model again.

The card says all it takes to use the model elsewhere: how it is built, what is attached to it and where
(:mod:`visattn.models.saving.description`), its classes, and how an image becomes its input.
"""

from __future__ import annotations

import json
import logging
import platform
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves

from visattn.files import replacing
from visattn.listing import first_few, times
from visattn.models.attach import example_images
from visattn.models.names import create_model, model_config, split_name
from visattn.models.plugins import changed_plugins, check_plugins
from visattn.models.saving.card import CARD, check_card, read_card, shown
from visattn.models.saving.description import build, describe, title
from visattn.models.saving.weights import read_weights
from visattn.modules import evaluating, uncompiled, underlying

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Trained:
    """A model that can be used.

    Args:
        model: in evaluation mode.
        name: for people.
        weights: where its weights come from.
        classes: names of its classes, if they are known.
        input: what is known of the images it was evaluated on: ``size``, ``mean``, ``std``, ``crop_pct``.
    """

    model: nn.Module
    name: str
    weights: str
    classes: tuple[str, ...] | None = None
    input: Mapping[str, Any] = field(default_factory=dict)


def save_model(
    model: nn.Module,
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Path:
    """Write a timm model, with whatever is attached to it, so that :func:`load_model` gives it back.

    What was written is built again and must compute the same, bit for bit; otherwise nothing is left in the folder.

    Args:
        model: from :func:`visattn.create_model` or ``timm.create_model``.
        folder: where to.
        classes: names of the classes.
        arguments: of ``timm.create_model`` that cannot be seen in the model (``global_pool``) or matter for further
            training only (``drop_path_rate``); a model of :func:`visattn.create_model` knows its own.

    Returns:
        The folder.

    >>> import tempfile, visattn
    >>> model = visattn.attach(timm.create_model("test_vit"), "se", at="blocks.[02]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again, card = load_model(save_model(model, folder))
    >>> [each["at"] for each in card["attachments"]]
    ['blocks.0', 'blocks.2']
    """
    model = underlying(model)
    folder = _named(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the model is on the meta device, where weights have no values")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"arguments are those of timm.create_model by name, got {arguments!r}")
    card = describe(model, arguments)
    card["input"] = _input(model, card["model"])
    if classes is not None:
        card["classes"] = _names(classes, getattr(model, "num_classes", None))
    other = _filled(card, model.state_dict(), "the model itself")
    _check_equal(model, other)
    write_model(folder, model.state_dict(), card)
    return folder


def _names(classes: Sequence[str], number: int | None) -> list[str]:
    if isinstance(classes, str | set | frozenset | dict) or not isinstance(classes, Sized):
        raise TypeError(f"classes are names in order, a list; got a {type(classes).__name__}")
    if number is not None and len(classes) != number:
        raise ValueError(f"{len(classes)} names for the {number} classes of the model")
    return [str(name) for name in classes]


def _input(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How images become the input of a model, in timm's words, as it was built."""
    config = resolve_model_data_config(model)
    channels, *sides = config.pop("input_size")
    if (size := arguments.get("img_size")) is not None:
        sides = [size, size] if isinstance(size, int) else list(size)
    return {"size": [arguments.get("in_chans", channels), *sides], **config}


def _check_equal(model: nn.Module, other: nn.Module) -> None:
    """Raise if a model that was built again computes something else."""
    other.to(next(model.parameters()).device)
    if any(_is_channels_last(parameter) for parameter in model.parameters()):
        other.to(memory_format=torch.channels_last)
    for image in example_images(model):
        with torch.no_grad(), evaluating(model), uncompiled(model):
            try:
                ours = tree_leaves(model(image))
            except Exception:  # a network can refuse an image in any way it likes
                continue
            theirs = tree_leaves(other(image))
        if len(ours) == len(theirs) and all(map(torch.equal, ours, theirs)):
            return
        break
    raise ValueError(
        "the model could be written, but what is read back computes something else: it was built with arguments that "
        "cannot be seen in it, or was changed by hand; give the former with arguments={...}"
    )


def _is_channels_last(weight: Tensor) -> bool:
    return weight.ndim == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)


def write_model(folder: str | Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write a state dict, and the card that describes its model."""
    folder = Path(folder)
    versions = {"timm": timm.__version__, "torch": torch.__version__, "python": platform.python_version()}
    seen: set[int] = set()
    tensors = {}
    for key, value in weights.items():  # tied weights may not share memory in the file
        tensors[key] = value.clone().contiguous() if value.data_ptr() in seen else value.contiguous()
        seen.add(value.data_ptr())
    with replacing(folder / WEIGHTS) as partial:
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
        except SafetensorError as error:  # its name for an OSError, such as a full disk
            raise OSError(None, str(error)) from error
        partial.chmod(0o644)  # safetensors keeps it to the owner
    full = {**card, "versions": {**card.get("versions", {}), **versions}}
    text = json.dumps(check_card(full, folder / CARD), indent=2)  # what cannot be read is not written
    with replacing(folder / CARD) as partial:
        partial.write_text(f"{text}\n")


def load_model(folder: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model that a training run or :func:`save_model` wrote, in evaluation mode, and its card.

    Nothing in the files is executed.
    """
    folder = _named(folder)
    folder = folder.parent if folder.is_file() else folder
    for name in (CARD, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{str(folder)!r} has no {name}: is it the folder of a finished run?")
    card = read_card(folder / CARD)
    return _filled(card, read_weights(folder / WEIGHTS)[0], folder / WEIGHTS), card


def _named(folder: str | Path) -> Path:
    """A path; an empty one would be the folder in which one happens to be."""
    if folder == "":
        raise ValueError("the path of the model is empty")
    return Path(folder)


def open_trained(name: str | None, weights: str | None) -> Trained:
    """A model with its pretrained weights, or with those of a file or a run.

    Args:
        name: of the model; a run knows its own.
        weights: the folder of a run, one of its checkpoints, or a state dict (``.safetensors``, ``.pth``).

    Raises:
        ConnectionError: pretrained weights could not be fetched.
    """
    if weights is None:
        if name is None:
            raise ValueError("which model? give --model, or --weights with the folder of a run")
        return Trained(_pretrained(name), name, "pretrained")
    path = Path(weights)
    if path.is_dir():
        path = _file_of_run(path)
    elif not path.is_file():
        raise ValueError(f"--weights: there is no file and no folder {weights!r}")
    state, card = read_weights(path)
    if card is None and path.name == WEIGHTS and path.with_name(CARD).is_file():
        card = read_card(path.with_name(CARD))
    if card is None:
        if name is None:
            raise ValueError(f"{weights!r} does not say what model it is of: give --model")
        card = check_card(_guess(name, state), path)
    check_plugins(card, path)
    if name is not None and _parts(title(card)) != _parts(name):
        raise ValueError(f"{weights!r} is of {title(card)}, not of {name!r}")
    names = card.get("class_names") or card.get("classes")
    classes = tuple(map(str, names)) if names else None
    return Trained(_filled(card, state, path), card.get("name") or title(card), weights, classes, card.get("input", {}))


def _guess(name: str, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """A card for weights that come without one, of a model by name."""
    number = number_of_classes(name, weights)
    blended = any(key.endswith(".visattn.0.gain") for key in weights)
    return {
        "model": {
            "name": name,
            **({"init": "identity"} if blended else {}),
            **({"num_classes": number} if number is not None else {}),
        }
    }


def _pretrained(name: str) -> nn.Module:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would announce each of ten attempts
    try:
        return create_model(name, pretrained=True).eval()
    except ValueError:
        raise
    except RuntimeError as error:
        raise ValueError(f"{' '.join(str(error).split())} (or give --weights)") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConnectionError(
            f"the pretrained weights of {name!r} could not be fetched from the Hugging Face hub, which needs a network "
            f"or a filled cache; give --weights ({reason})"
        ) from error


def _file_of_run(folder: Path) -> Path:
    """The best weights in a run's folder."""
    files = [folder / WEIGHTS, *(folder / "checkpoints" / name for name in ("best.ckpt", "last.ckpt"))]
    for file in files:
        if file.is_file():
            return file
    raise ValueError(f"{str(folder)!r} has no {WEIGHTS} and no checkpoints: is it the folder of a run?")


def _parts(name: str) -> tuple[str, str | None]:
    base, attention = split_name(name)
    return base.partition(".")[0], attention


def number_of_classes(name: str, weights: Mapping[str, Tensor]) -> int | None:
    """How many classes the weights of a timm model tell apart; None if the classifier is not found."""
    config = model_config(name)
    classifier = config.classifier if config is not None else None
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    weight = weights.get(f"{first}.weight")
    return None if weight is None or not weight.ndim else len(weight)


def _filled(card: Mapping[str, Any], weights: Mapping[str, Tensor], source: str | Path) -> nn.Module:
    """The model of a card with all of these weights and no others, in evaluation mode.

    It is built without storage first: a card that describes another model than the weights are of costs no memory.
    """
    check_plugins(card, source)
    for plugin in changed_plugins(card):
        warnings.warn(f"{plugin} is not the file that {str(source)!r} was made with", stacklevel=3)
    with torch.device("meta"), _at_most(2 * len(weights) + 1000, source):
        sketch = _built(card, source)
    _check_fit(sketch, weights, card, source)
    kinds = {value.dtype for value in weights.values() if value.is_floating_point()}
    with torch.inference_mode(False):  # weights that were made in it could never be trained
        model = _built(card, source)
        if len(kinds) == 1:
            model.to(kinds.pop())
    try:
        model.load_state_dict(dict(weights))
    except Exception as error:  # tensors of odd kinds: sparse, quantised, without storage
        raise ValueError(f"{str(source)!r} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    _tell(model, card)
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
def _at_most(number: int, source: str | Path) -> Iterator[None]:
    """Stop building a model that has more parameters than so many: there is no end to what a card may ask for."""
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
            f"{key}: {_shape(given)} in the file, {_shape(wanted)} in the model"
            for key, given, wanted in both
            if given.shape != wanted.shape
        ],
        "of another kind": [
            f"{key}: {given.dtype} in the file, {wanted.dtype} in the model"
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


def _tell(model: nn.Module, card: Mapping[str, Any]) -> None:
    """Let a model know its classes and its images, where timm, and so everybody, looks for that."""
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
