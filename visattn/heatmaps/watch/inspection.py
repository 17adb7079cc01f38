"""Inspect a model that others may be using at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from visattn.heatmaps.watch.cache import cached, is_sharded, note_original
from visattn.modules import evaluating, sharing_copy, uncompiled, weightless_copy, why_refused


@contextmanager
def inspection_copy(model: nn.Module) -> Iterator[nn.Module]:
    """A stand-in for a model: in evaluation mode, uncompiled and differentiable.

    It is a copy that shares the weights, so that hooks, modes and whatever else a method does to it are invisible to
    others who use the model. Only one with sharded weights, which cannot be copied, is run itself.
    """
    with torch.inference_mode(False):
        if is_sharded(model):
            with evaluating(model), uncompiled(model):
                yield model
            return
        own = own_copy(model)
        _uncompile_parts(own)
        _disable_checkpointing(own)
        own.register_forward_pre_hook(_with_own_images)
        note_original(own, model)
        yield own


def own_copy(model: nn.Module) -> nn.Module:
    """A copy that shares the weights, as :func:`sharing_copy` makes it; a network that cannot be copied raises."""
    try:
        return sharing_copy(model)
    except Exception as error:  # what is in a network can refuse to be copied in any way it likes
        raise ValueError(
            f"the model cannot be copied, and others may be using it ({why_refused(error)}): keep that outside of it"
        ) from error


def _with_own_images(model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """A network may change its input in place, and is given the same images more than once."""
    images = given[0] if given else None
    if (
        isinstance(images, Tensor)
        and not images.is_meta
        and cached(model, images, "in place", lambda: _leaves_alone(model, images))
    ):
        return given
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in given)


def _leaves_alone(model: nn.Module, images: Tensor) -> bool:
    """Whether a network is known not to change its images; one that cannot be run without values may."""
    blank = torch.empty_like(images, device="meta")
    try:
        with torch.no_grad(), _Writing(blank) as writing:
            copied = weightless_copy(model)
            for key, hook in list(copied._forward_pre_hooks.items()):
                if hook is _with_own_images:
                    del copied._forward_pre_hooks[key]
            copied(blank)
    except Exception:  # whatever a network does with values that are not there
        return False
    return not writing.seen


class _Writing(TorchDispatchMode):
    """Note whether an operation writes to the memory of a tensor, by whatever name."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.memory = tensor.untyped_storage()._cdata
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
        for argument in func._schema.arguments:
            written = named.get(argument.name) if argument.is_write else None
            for each in written if isinstance(written, list | tuple) else (written,):
                self.seen |= isinstance(each, Tensor) and each.untyped_storage()._cdata == self.memory
        return func(*args, **kwargs)


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
