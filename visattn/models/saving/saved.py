"""Save and load models: ``model.safetensors`` and its card, ``model.json``.

The card says everything needed to use the model elsewhere: how it is built, what is attached to it and where
(:mod:`visattn.models.saving.description`), its classes, and how an image becomes its input.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from visattn.files import replacing
from visattn.models.names import create_model, model_config, split_name
from visattn.models.plugins import check_plugins
from visattn.models.saving.card import CARD, check_card, checked, read_card
from visattn.models.saving.description import describe, title
from visattn.models.saving.rebuilding import check_rebuilt, rebuild
from visattn.models.saving.weights import read_weights
from visattn.modules import check_default_device, underlying

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Trained:
    """A model that is ready for use.

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
    """Save a timm model, with everything attached to it, so that :func:`load_model` restores it.

    The model is first rebuilt from its description and must compute bit for bit the same; otherwise nothing is written.

    Args:
        model: from :func:`visattn.create_model` or ``timm.create_model``.
        folder: where to write it; a model that is saved there is replaced, files of others are not.
        classes: names of the classes.
        arguments: those of ``timm.create_model`` that cannot be read off the model (``global_pool``) or matter only for
            further training (``drop_path_rate``); a model from :func:`visattn.create_model` knows its own.

    Returns:
        The folder.

    >>> import tempfile, visattn
    >>> model = visattn.attach(timm.create_model("test_vit"), "se", at="blocks.[02]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again, card = load_model(save_model(model, folder))
    >>> [each["at"] for each in card["attachments"]]
    ['blocks.0', 'blocks.2']
    """
    check_default_device()
    model = underlying(model)
    folder = _path(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the model is on the meta device, where weights have no values")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"arguments are those of timm.create_model by name, got {arguments!r}")
    _check_own(folder)
    card = describe(model, arguments)
    card["input"] = _input(model, card["model"])
    if classes is not None:
        card["classes"] = _names(classes, getattr(model, "num_classes", None))
    check_rebuilt(model, card)
    write_model(folder, model.state_dict(), card)
    return folder


def _check_own(folder: Path) -> None:
    """Raise if a folder has files of these names that do not belong to a model of ours."""
    card, weights = folder / CARD, folder / WEIGHTS
    if card.exists():
        try:
            read_card(card)
        except ValueError:
            raise ValueError(
                f"{str(card)!r} is not the card of a model, and would be overwritten: name another folder"
            ) from None
    elif weights.exists():
        raise ValueError(f"{str(weights)!r} has no {CARD} beside it, and would be overwritten: name another folder")


def _names(classes: Sequence[str], number: int | None) -> list[str]:
    if isinstance(classes, str | set | frozenset | dict) or not isinstance(classes, Sized):
        raise TypeError(f"classes are names in order, a list; got a {type(classes).__name__}")
    if number is not None and len(classes) != number:
        raise ValueError(f"{len(classes)} names for the {number} classes of the model")
    return [str(name) for name in classes]


def _input(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How images become the input of a model as it was built, in timm's terms."""
    config = resolve_model_data_config(model)
    channels, *sides = config.pop("input_size")
    if (size := arguments.get("img_size")) is not None:
        sides = [size, size] if isinstance(size, int) else list(size)
    return {"size": [arguments.get("in_chans", channels), *sides], **config}


def write_model(folder: str | Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write a state dict, and the card that describes its model."""
    folder = Path(folder)
    text = _written(card)  # what cannot be read is not written, nor the weights that belong to it
    seen: set[int] = set()
    tensors = {}
    for key, value in weights.items():  # tied weights must not share memory in the file
        tensors[key] = value.clone().contiguous() if value.data_ptr() in seen else value.contiguous()
        seen.add(value.data_ptr())
    with replacing(folder / WEIGHTS) as partial:
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
        except SafetensorError as error:  # its name for an OSError, such as a full disk
            raise OSError(None, str(error)) from error
        partial.chmod(0o644)  # safetensors keeps it to the owner
    with replacing(folder / CARD) as partial:
        partial.write_text(f"{text}\n")


def _written(card: Mapping[str, Any]) -> str:
    """A card as text, with the versions that it was made with."""
    versions = {"timm": timm.__version__, "torch": torch.__version__, "python": platform.python_version()}
    full = {**card, "versions": {**card.get("versions", {}), **versions}}
    try:
        return json.dumps(checked(full), indent=2)
    except ValueError as error:
        raise ValueError(f"the model cannot be saved, since its card could not be read back: {error}") from None


def load_model(folder: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load the model that a training run or :func:`save_model` wrote, in evaluation mode, and its card.

    Nothing in the files is executed.

    Args:
        folder: of the model or the run; or a checkpoint of ``train.py``, which has its card inside.
    """
    check_default_device()
    path = _path(folder)
    if path.is_dir():
        for name in (CARD, WEIGHTS):
            if not (path / name).is_file():
                raise ValueError(f"{str(path)!r} has no {name}: is it the folder of a finished run?")
    file = path / WEIGHTS if path.is_dir() else path.with_name(WEIGHTS) if path.name == CARD else path
    if not file.is_file():
        raise ValueError(f"no model: there is no file and no folder {str(file)!r}")
    state, card = _read(file)
    if card is None:
        raise ValueError(
            f"{str(file)!r} does not say what model it is of: give the folder of a run, or one of its checkpoints"
        )
    return rebuild(card, state, file), card


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The weights in a file, and their card if there is one: in the file, or beside ``model.safetensors``."""
    state, card = read_weights(path)
    if card is None and path.name == WEIGHTS and path.with_name(CARD).is_file():
        card = read_card(path.with_name(CARD))
    return state, card


def _path(folder: str | Path) -> Path:
    """A path; an empty one would mean the current folder."""
    if folder == "":
        raise ValueError("the path of the model is empty")
    return Path(folder)


def open_trained(name: str | None, weights: str | None) -> Trained:
    """Open a model with its pretrained weights, or with those of a file or a run.

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
        raise ValueError(f"no model: there is no file and no folder {weights!r}")
    state, card = _read(path)
    if card is None:
        if name is None:
            raise ValueError(f"{weights!r} does not say what model it is of: name the model as well")
        card, state = check_card(_guessed_card(name, state), path), _in_one_precision(state)
    check_plugins(card, path)
    if name is not None and _base_and_attention(title(card)) != _base_and_attention(name):
        raise ValueError(f"{weights!r} is of {title(card)}, not of {name!r}")
    names = card.get("class_names") or card.get("classes")
    classes = tuple(map(str, names)) if names else None
    return Trained(rebuild(card, state, path), card.get("name") or title(card), weights, classes, card.get("input", {}))


def _guessed_card(name: str, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """A card for weights that come without one, given the name of the model."""
    number = number_of_classes(name, weights)
    blended = split_name(name)[1] is not None and any(key.endswith(".visattn.0.gain") for key in weights)
    return {
        "model": {
            "name": name,
            **({"init": "identity"} if blended else {}),
            **({"num_classes": number} if number is not None else {}),
        }
    }


def _in_one_precision(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights that nobody has seen run in the mixture of precisions that they are in, in single precision."""
    if len({value.dtype for value in weights.values() if value.is_floating_point()}) < 2:
        return weights
    return {key: value.float() if value.is_floating_point() else value for key, value in weights.items()}


def _pretrained(name: str) -> nn.Module:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would announce every retry
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


def _base_and_attention(name: str) -> tuple[str, str | None]:
    base, attention = split_name(name)
    return base.partition(".")[0], attention


def number_of_classes(name: str, weights: Mapping[str, Tensor]) -> int | None:
    """The number of classes in the weights of a timm model; None if the classifier is not found."""
    config = model_config(name)
    classifier = config.classifier if config is not None else None
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    weight = weights.get(f"{first}.weight")
    return None if weight is None or not weight.ndim else len(weight)
