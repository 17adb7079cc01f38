"""Models that lie in a folder: ``model.safetensors`` and its card, ``model.json``."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from visattn.files import replacing
from visattn.models.names import create_model

WEIGHTS, CARD = "model.safetensors", "model.json"


def save_model(folder: str | Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write all it takes to use a model elsewhere.

    Args:
        folder: where to.
        weights: the model's state dict.
        card: ``model`` holds the arguments of :func:`visattn.create_model`; whatever else people should know.
    """
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
    """The model that a training run wrote, in evaluation mode, and its card. Nothing in the files is executed."""
    folder = Path(folder).parent if Path(folder).is_file() else Path(folder)
    for name in (CARD, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{str(folder)!r} has no {name}: is it the folder of a finished run?")
    card = json.loads((folder / CARD).read_text())
    model = create_model(**card["model"])
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval(), card
