"""What was found out about a model is kept as long as the model, and found out anew when its modules change.

Methods look into copies of a model, which live for one call; what they find out is kept with the model itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.modules import lasting_hooks

T = TypeVar("T")

_known: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()
_originals: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # copy -> weak reference
_copies: Any = WeakTensorKeyDictionary()


def cached(model: nn.Module, images: Tensor, what: str, find: Callable[[], T]) -> T:
    """The result of a function that depends on nothing but the structure of a model and the size of its images."""
    model = original(model)
    known = _known.setdefault(model, {})
    structure = hash(tuple((id(module), len(lasting_hooks(module._forward_hooks))) for module in model.modules()))
    key = what, tuple(images.shape[1:]), structure
    if key not in known:
        known[key] = find()
    return known[key]


def note_original(copied: nn.Module, model: nn.Module) -> None:
    """Say that one network is a copy of the other, of which the same is true."""
    _originals[copied] = weakref.ref(model)


def original(model: nn.Module) -> nn.Module:
    """The network of which this one is a copy, or itself."""
    return model if model not in _originals else _originals[model]() or model


def on_device(constant: Tensor, device: torch.device) -> Tensor:
    """A tensor that never changes, on another device; it is copied once, since a GPU must be waited for."""
    if constant.device == device:
        return constant
    copies = _copies.setdefault(constant, {})
    if device not in copies:
        copies[device] = constant.to(device)
    return copies[device]
