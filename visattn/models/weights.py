"""Files of weights: read as data that run no code, and loaded whole or not at all."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from visattn.models.names import create_model, model_config

INSIDE = ("state_dict_ema", "model_ema", "state_dict", "model")  # where other programs keep the weights in a file


def read_tensors(path: str | Path, map_location: Any = "cpu") -> Any:
    """What ``torch.save`` wrote, if it is tensors and plain values; a file that wants to run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {str(path)!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch asks for a bug report about pickles that are not its own
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"refused to load {str(path)!r}: it is not a checkpoint of tensors and plain values, and could run code"
        ) from None
    except Exception as error:  # whatever the reader of a damaged file stumbles over
        reason = (str(error).splitlines() or ["it ends too early"])[0]
        raise ValueError(f"{str(path)!r} is not a whole checkpoint: {reason}") from None


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's own weights in a checkpoint of :class:`visattn.training.Classifier`."""
    prefix = "model."
    return {
        key.removeprefix(prefix): value for key, value in checkpoint["state_dict"].items() if key.startswith(prefix)
    }


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file: ``.safetensors``, a checkpoint of ``train.py``, or what ``torch.save`` wrote."""
    path = Path(path)
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} cannot be read as safetensors: {error}") from error
    content = read_tensors(path)
    if isinstance(content, dict) and "pytorch-lightning_version" in content:
        return model_weights(content)
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{str(path)!r} holds no state dict")
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def number_of_classes(name: str, weights: Mapping[str, Tensor]) -> int | None:
    """How many classes the weights of a timm model tell apart; None if the classifier is not found."""
    config = model_config(name)
    classifier = config.classifier if config is not None else None
    first = classifier if isinstance(classifier, str) or not classifier else classifier[0]
    weight = weights.get(f"{first}.weight")
    return None if weight is None else len(weight)


def build(arguments: Mapping[str, Any], weights: Mapping[str, Tensor], path: str | Path) -> nn.Module:
    """A model with all of these weights and no others, in evaluation mode.

    Args:
        arguments: of :func:`visattn.create_model`.
        weights: the state dict.
        path: the file they come from, for error messages.
    """
    try:
        model = create_model(**arguments)
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"{arguments.get('name')!r} cannot be built with {arguments} ({reason})") from error
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
        raise ValueError(f"{str(path)!r} does not fit {arguments['name']!r}: {'; '.join(parts)}")
    model.load_state_dict(dict(weights))
    return model.eval()


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
