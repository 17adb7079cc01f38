"""Models that lie in a folder: ``model.safetensors`` and its card, ``model.json``; and how any file becomes a model.

The card says all it takes to use the model elsewhere: how it is built, what is attached to it and where
(:mod:`visattn.models.description`), its classes, and how an image becomes its input.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from visattn.files import replacing
from visattn.models.attach import example_images
from visattn.models.description import build, describe, title
from visattn.models.names import create_model, model_config, split_name
from visattn.models.survey import evaluating, uncompiled
from visattn.models.weights import read_weights

WEIGHTS, CARD = "model.safetensors", "model.json"


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
    model = getattr(model, "_orig_mod", model)
    card = describe(model, arguments)
    card["input"] = _input(model, card["model"])
    if classes is not None:
        card["classes"] = _names(classes, getattr(model, "num_classes", None))
    other = _filled(card, model.state_dict(), "the model itself")
    _check_equal(model, other)
    write_model(folder, model.state_dict(), card)
    return Path(folder)


def _names(classes: Sequence[str], number: int | None) -> list[str]:
    if isinstance(classes, str | set | frozenset | dict):
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
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod(0o644)  # safetensors keeps it to the owner
    text = json.dumps({**card, "versions": {**card.get("versions", {}), **versions}}, indent=2)
    with replacing(folder / CARD) as partial:
        partial.write_text(f"{text}\n")


def load_model(folder: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model that a training run or :func:`save_model` wrote, in evaluation mode, and its card.

    Nothing in the files is executed.
    """
    folder = Path(folder).parent if Path(folder).is_file() else Path(folder)
    for name in (CARD, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{str(folder)!r} has no {name}: is it the folder of a finished run?")
    card = _read_card(folder / CARD)
    return _filled(card, read_weights(folder / WEIGHTS)[0], folder / WEIGHTS), card


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
        card = _read_card(path.with_name(CARD))
    if card is None:
        if name is None:
            raise ValueError(f"{weights!r} does not say what model it is of: give --model")
        card = _guess(name, state)
    elif name is not None and _parts(title(card)) != _parts(name):
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


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text())
        _check_card(card)
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the card {str(path)!r} cannot be understood ({type(error).__name__}: {error})") from error
    return card


def _check_card(card: Any) -> None:
    """Raise whatever it may be if a card does not say what it has to."""
    model, seen = card["model"], card.get("input", {})
    if not isinstance(model["name"], str) or "pretrained" in model:
        raise ValueError("model: needs a name, and no pretrained weights")
    for each in card.get("attachments", []):
        if "patch" not in each:
            asked = ("at", "block", "options", "init", "layout", "size", "image", "index", "entry")
            _ = [each[key] for key in asked]
    for key, good in {
        "size": lambda value: len(value) == 3 and all(isinstance(side, int) and side > 0 for side in value),
        "mean": lambda value: len(value) in (1, 3) and all(float(each) == each for each in value),
        "std": lambda value: len(value) in (1, 3) and all(float(each) > 0 for each in value),
        "crop_pct": lambda value: 0.01 < value < 2,
    }.items():
        if key in seen and not good(seen[key]):
            raise ValueError(f"input: {key} is {seen[key]!r}")
    for key in ("classes", "class_names"):
        if not isinstance(card.get(key, []), list):
            raise TypeError(f"{key} is not a list")


def _parts(name: str) -> tuple[str, str | None]:
    base, attention = split_name(name)
    return base.partition(".")[0], attention


def number_of_classes(name: str, weights: Mapping[str, Tensor]) -> int | None:
    """How many classes the weights of a timm model tell apart; None if the classifier is not found."""
    config = model_config(name)
    classifier = config.classifier if config is not None else None
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    weight = weights.get(f"{first}.weight")
    return None if weight is None else len(weight)


def _filled(card: Mapping[str, Any], weights: Mapping[str, Tensor], source: str | Path) -> nn.Module:
    """The model of a card with all of these weights and no others, in evaluation mode."""
    name = card["model"]["name"]
    try:
        model = build(card)
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"{name!r} cannot be built with {card['model']} ({reason})") from error
    own = model.state_dict()
    troubles = {
        "missing": [key for key in own if key not in weights],
        "too much": [key for key in weights if key not in own],
        "of another shape": [
            f"{key}: {_shape(weights[key])} in the file, {_shape(value)} in the model"
            for key, value in own.items()
            if key in weights and value.shape != weights[key].shape
        ],
    }
    if any(troubles.values()):
        parts = [f"{len(keys)} {what} ({_listed(keys)})" for what, keys in troubles.items() if keys]
        raise ValueError(f"{str(source)!r} does not fit {name!r}: {'; '.join(parts)}")
    kinds = {value.dtype for value in weights.values() if value.is_floating_point()}
    if len(kinds) == 1:
        model.to(kinds.pop())
    model.load_state_dict(dict(weights))
    _tell(model, card)
    return model.eval()


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
    return " x ".join(map(str, tensor.shape)) or "a number"


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
