"""Read files of weights as data, without running code."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from visattn.models.saving.card import check_card

# The keys under which programs keep the weights in a file.
INSIDE = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model_state", "model")
CARD_KEY = "card"  # where a checkpoint of train.py keeps the card of its model


def read_tensors(path: str | Path, map_location: Any = "cpu") -> Any:
    """Read what ``torch.save`` wrote, if it is tensors and plain values; refuse a file that would run code."""
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
        reason = "it is not a file of torch.save"
        if isinstance(error, EOFError | RuntimeError):
            reason = (str(error).splitlines() or ["it ends too early"])[0].partition(". ")[0][:200]
        raise ValueError(f"{str(path)!r} is not a whole checkpoint: {reason}") from None


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's own weights in a checkpoint of :class:`visattn.training.classifier.Classifier`."""
    prefix, state = "model.", checkpoint.get("state_dict")
    if not _is_state_dict(state):
        raise ValueError("a checkpoint without a state_dict, names and tensors, is of no use")
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _is_state_dict(content: Any) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(content, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    )


def card_of(checkpoint: Mapping[str, Any], source: str | Path) -> dict[str, Any] | None:
    """The card in a checkpoint, if it has one."""
    card = checkpoint.get(CARD_KEY)
    return None if card is None else check_card(card, source)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Read the state dict in a file, and its card if it has one.

    Args:
        path: ``.safetensors``, a checkpoint of ``train.py`` (which has its card inside), or what ``torch.save`` wrote.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        try:
            return load_file(path), None
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} cannot be read as safetensors: {error}") from error
    content = read_tensors(path)
    if isinstance(content, dict) and "pytorch-lightning_version" in content:
        return model_weights(content), card_of(content, path)
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not _is_state_dict(content):
        raise ValueError(f"{str(path)!r} holds no state dict")
    return {key.removeprefix("module."): value for key, value in content.items()}, None
