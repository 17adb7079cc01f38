"""One call of a torch function, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from visattn.heatmaps.balanced.mode import Balanced


class Operation:
    """One call of a torch function.

    Args:
        mode: that saw it.
        func: the function,
        name: its plain name (:data:`~visattn.heatmaps.balanced.operators.SPELLED`),
        args, kwargs: what it is given.
    """

    def __init__(self, mode: Balanced, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if "input" in kwargs:
            args, kwargs = (kwargs["input"], *args), {key: x for key, x in kwargs.items() if key != "input"}
        self.mode, self.func, self.args, self.kwargs = mode, func, tuple(args), dict(kwargs)
        self.name = name if name.startswith("__") else name.rstrip("_")
        self.tensors = [x for x in _flat([*args, *kwargs.values()]) if isinstance(x, Tensor)]
        self.active = [x for x in self.tensors if self.is_active(x)]  # what depends on the image
        self._in_place = name in ("__setitem__", f"{self.name}_")

    def is_active(self, x: Any) -> bool:
        """Whether something depends on the image, other than through attention weights."""
        return isinstance(x, Tensor) and x.requires_grad and not self.mode.is_constant(x)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)

    def run(self, change: Callable[[Tensor], Tensor] | None = None) -> Any:
        """What the function returns, for changed tensors if that is wanted."""
        if change is None:
            return self.func(*self.args, **self.kwargs)
        return self.func(*_changed(self.args, change), **{k: _changed(v, change) for k, v in self.kwargs.items()})

    def detached(self) -> Any:
        """What the function returns, without a graph."""
        with torch.no_grad():
            return self.run()

    def constant_part(self) -> Tensor | None:
        """What is left of an affine function if nothing depends on the image; None if nobody asks."""
        if self.mode.note is None:
            return None
        with torch.no_grad():
            left: Tensor = self.run(lambda x: torch.zeros_like(x) if self.is_active(x) else x)
            return left.masked_fill(left.isinf(), 0)  # what pads for a maximum has no part in it

    def by(self, rule: Callable[[Operation], Any]) -> Any:
        """The result of a rule; what works in place is computed from a copy, and the result put in its place."""
        inplace = self.kwargs.get("inplace") is True
        if not inplace and not self._in_place:
            return rule(self)
        target, *rest = self.args
        func, kwargs = self.func, self.kwargs
        if inplace:
            kwargs = {**kwargs, "inplace": False}
        else:
            func = WITHOUT_METHOD.get(self.name) or getattr(Tensor, self.name)
        before = target.clone()
        self.mode.follow(target, before, multiple=True)
        after = rule(Operation(self.mode, func, self.name, (before, *rest), kwargs))
        around = self._constant_around(target)
        target.copy_(after)
        if around is not None:
            self.mode.add(target._base, around)
        self.mode.becomes(target, after)
        return None if self.name == "__setitem__" else target

    def _constant_around(self, part: Tensor) -> Tensor | None:
        """The constant that a part belongs to, without that part; None if there is none, or nobody asks."""
        whole = part._base
        if self.mode.note is None or whole is None or self.is_active(whole):
            return None
        with torch.no_grad():
            rest = torch.empty_strided(whole.shape, whole.stride(), dtype=whole.dtype, device=whole.device).copy_(whole)
            start = part.storage_offset() - whole.storage_offset()
            rest.as_strided(part.shape, part.stride(), start).zero_()
        return rest


def _with_item(target: Tensor, index: Any, value: Any) -> Tensor:
    """``target[index] = value`` as a function that returns the result."""
    result = target.clone()
    result[index] = value
    return result


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``target.copy_(source)`` as a function that returns the result."""
    return target.clone().copy_(source, non_blocking)


# What works in place and has no method that does not.
WITHOUT_METHOD: dict[str, Callable[..., Tensor]] = {"__setitem__": _with_item, "copy": _copied, "fill": torch.fill}


def _flat(values: Sequence[Any]) -> list[Any]:
    return [x for each in values for x in (_flat(each) if isinstance(each, tuple | list) else [each])]


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_changed(each, change) for each in value)
    return value
