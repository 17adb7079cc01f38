"""What was found out about a model is kept as long as the model, and found out anew when its modules change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

T = TypeVar("T")

_known: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


def remembered(model: nn.Module, images: Tensor, what: str, find: Callable[[], T]) -> T:
    """The result of a function that depends on nothing but the structure of a model and the size of its images."""
    known = _known.setdefault(model, {})
    structure = hash(tuple((id(module), len(module._forward_hooks)) for module in model.modules()))
    key = what, tuple(images.shape[1:]), structure
    if key not in known:
        known[key] = find()
    return known[key]
