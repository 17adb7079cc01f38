"""A cache of findings about a model, which lives as long as the model and is invalid when its modules change.

Methods inspect copies of a model that live for one call; what they find is cached with the model itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.modules import lasting_hooks

T = TypeVar("T")
PLAIN = (bool, int, float, str, NoneType)

_known: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()
_originals: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # copy -> weak reference
_copies: Any = WeakTensorKeyDictionary()


def cached(model: nn.Module, images: Tensor, what: str, find: Callable[[], T]) -> T:
    """Return the result of a function of a model's structure and image size, computed once.

    A sharded network cannot be copied any more, nor looked into; what was found before still holds.
    """
    model = original(model)
    known = _known.setdefault(model, {})
    structure = [_described(module) for module in model.modules()]
    key = what, tuple(images.shape[1:])
    if key not in known or (known[key][0] != structure and not is_sharded(model)):
        known[key] = structure, find()
    return known[key][1]


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights of a network are spread over several devices, so that it cannot be copied."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def _described(module: nn.Module) -> tuple[Any, ...]:
    """A module and what may decide what it does: its hooks, its settings and the shapes of its weights.

    A weak reference is equal to another of the same module only: an address can be that of a later module.
    """
    settings = [(name, value) for name, value in vars(module).items() if name != "training" and _is_plain(value)]
    shapes = [None if each is None else each.shape for each in module._parameters.values()]
    return weakref.ref(module), len(lasting_hooks(module._forward_hooks)), settings, shapes


def _is_plain(value: Any) -> bool:
    """Whether a value can be compared, and refers to nothing."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


def note_original(copied: nn.Module, model: nn.Module) -> None:
    """Record that a network is a copy of another, and shares its cache."""
    _originals[copied] = weakref.ref(model)


def original(model: nn.Module) -> nn.Module:
    """The network of which this one is a copy, or itself."""
    return model if model not in _originals else _originals[model]() or model


def on_device(constant: Tensor, device: torch.device) -> Tensor:
    """A constant tensor on another device; copied once, since a copy waits for the GPU."""
    if constant.device == device:
        return constant
    copies = _copies.setdefault(constant, {})
    if device not in copies:
        copies[device] = constant.to(device)
    return copies[device]
