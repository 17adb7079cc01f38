"""Inspect a model that others may be using at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from visattn.heatmaps.watch.cache import note_original
from visattn.modules import evaluating, sharing_copy, uncompiled


@contextmanager
def inspection_copy(model: nn.Module) -> Iterator[nn.Module]:
    """A stand-in for a model: in evaluation mode, uncompiled and differentiable.

    It is a copy that shares the weights, so that hooks, modes and whatever else a method does to it are invisible to
    others who use the model. Only a network that cannot be copied, such as one with sharded weights, is run itself.
    """
    with torch.inference_mode(False):
        try:
            own = sharing_copy(model)
        except Exception:  # what is in a network can refuse to be copied in any way it likes
            own = model
        if own is not model:
            _uncompile_parts(own)
            _disable_checkpointing(own)
            own.register_forward_pre_hook(_with_own_images)
            note_original(own, model)
            yield own
        else:
            with evaluating(model), uncompiled(model):
                yield model


def _with_own_images(_model: nn.Module, images: tuple[Any, ...]) -> tuple[Any, ...]:
    """A network may change its input in place, and is given the same images more than once."""
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in images)


def _disable_checkpointing(model: nn.Module) -> None:
    """Switch gradient checkpointing off: what is recomputed in a backward pass cannot be followed."""
    for module in model.modules():
        for flag in ("grad_checkpointing", "gradient_checkpointing"):  # timm's and transformers' word
            if getattr(module, flag, False) is True:
                setattr(module, flag, False)


def _uncompile_parts(model: nn.Module) -> None:
    """Replace compiled modules by the modules themselves."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if "_orig_mod" in child._modules:
                parent._modules[name] = child._modules["_orig_mod"]
