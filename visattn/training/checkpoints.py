"""Checkpoints that are whole or not there at all, and that run no code when they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import nn
from typing_extensions import override

from visattn.files import replacing
from visattn.models.description import describe
from visattn.models.weights import CARD_KEY, model_weights, read_tensors
from visattn.training.settings import Settings


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written at once and read as data only."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write beside the old file, then take its place."""
        with replacing(path) as partial:
            try:
                torch.save(checkpoint, partial)
            except RuntimeError as error:  # torch's way of saying that a write failed
                raise OSError(None, str(error).splitlines()[0]) from error

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read tensors and plain values, whatever the caller asks for."""
        return load_checkpoint(path, map_location=map_location or "cpu")


def load_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A Lightning checkpoint as data; a file that wants to run code is refused."""
    state = read_tensors(path, map_location=map_location)
    if not isinstance(state, dict) or "state_dict" not in state:
        raise ValueError(f"{str(path)!r} is not a checkpoint of train.py: it has no state_dict")
    return state


def check_resumable(state: Mapping[str, Any], model: nn.Module, settings: Settings) -> None:
    """Raise if a checkpoint cannot go on with these settings, before anything is written."""
    weights, own = model_weights(state), model.state_dict()
    described, known = describe(model), state.get(CARD_KEY) or {}
    differs = any(described[key] != known.get(key, described[key]) for key in described)
    if differs or {key: value.shape for key, value in weights.items()} != {k: value.shape for k, value in own.items()}:
        raise ValueError(
            f"the checkpoint holds another model than {settings.model!r}: resume it with the model and data it "
            "was begun with (--resume FOLDER alone takes them from the folder's config.yaml)"
        )
    if state["epoch"] + 1 > settings.epochs:
        raise ValueError(
            f"the run is in epoch {state['epoch'] + 1} already: --epochs {settings.epochs} is less than that"
        )
