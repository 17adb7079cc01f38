"""Find out what model lies in a file or a folder, and open it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from visattn.data.digits import CANVAS
from visattn.data.idx import CLASSES, SIDE
from visattn.models.names import create_model, model_config, split_name
from visattn.models.saved import CARD, WEIGHTS
from visattn.models.weights import build, number_of_classes, read_weights


@dataclass(frozen=True)
class Trained:
    """A model that can be used.

    Args:
        model: in evaluation mode.
        name: as :func:`visattn.create_model` knows it.
        weights: where its weights come from.
        classes: names of its classes, if they are known.
        input: what is known of the images it was evaluated on: ``size``, ``mean``, ``std``, ``crop_pct``.
    """

    model: nn.Module
    name: str
    weights: str
    classes: tuple[str, ...] | None = None
    input: Mapping[str, Any] = field(default_factory=dict)


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
    state = read_weights(path)
    of_run = path.suffix == ".ckpt" or path.name == WEIGHTS
    arguments, classes, seen = _what_it_is(path) if of_run else ({}, None, {})
    if not arguments and name is not None:
        arguments = {"name": name}
    if not arguments:
        raise ValueError(f"{weights!r} does not say what model it is of: give --model")
    if name is not None and _parts({"name": name}) != _parts(arguments):
        raise ValueError(f"{weights!r} is of {' with '.join(filter(None, _parts(arguments)))}, not of {name!r}")
    arguments.setdefault("num_classes", number_of_classes(arguments["name"], state))
    if arguments["num_classes"] is None:
        del arguments["num_classes"]
    called = "_".join(filter(None, (arguments["name"], arguments.get("attn"))))
    return Trained(build(arguments, state, path), called, weights, classes, seen)


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


def _what_it_is(path: Path) -> tuple[dict[str, Any], tuple[str, ...] | None, dict[str, Any]]:
    """Arguments for the model, names of its classes and its input, as far as the run says; else nothing."""
    folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    try:
        if (folder / CARD).is_file():
            card = json.loads((folder / CARD).read_text())
            names = card.get("class_names") or card.get("classes")
            seen = dict(card.get("input", {}))
            if card.get("data") == "digits":
                seen.setdefault("crop_pct", 1.0)  # as it was before cards said so
            return dict(card["model"]), tuple(map(str, names)) if names else None, seen
        if (folder / "config.yaml").is_file():
            settings = yaml.safe_load((folder / "config.yaml").read_text())
            return _from_settings(settings)
    except (KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ValueError(
            f"the run in {str(folder)!r} cannot be understood ({type(error).__name__}: {error})"
        ) from error
    return {}, None, {}


def _from_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], None, dict[str, Any]]:
    """The same for a run that has not ended, from its ``config.yaml``."""
    config = model_config(settings["model"])
    channels, _, native = config.input_size if config else (3, 224, 224)
    fixed = config is not None and config.fixed_input_size
    sides = {"digits": CANVAS, **dict.fromkeys(CLASSES, SIDE)}  # data whose images are seen as they are
    own = sides.get(settings.get("data", ""))
    size = settings.get("image_size") or (own if own is not None and not fixed else native)
    options = settings.get("model_options") or {}
    arguments = {
        "name": settings["model"],
        "attn": settings.get("attn"),
        "attn_options": settings.get("attn_options"),
        **({"img_size": size} if fixed and size != native else {}),
        **options,
    }
    seen = {"size": [options.get("in_chans", channels), size, size], **({"crop_pct": 1.0} if own is not None else {})}
    return arguments, None, seen


def _parts(arguments: Mapping[str, Any]) -> tuple[str, str | None]:
    """Timm's name and the attention, however they were given."""
    base, attention = split_name(arguments["name"])
    return base.partition(".")[0], attention or arguments.get("attn")
