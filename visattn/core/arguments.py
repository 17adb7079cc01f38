"""What something is built with: where and of which type, and numbers.

What a signature calls an int is a whole number, of whatever integer type.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from functools import wraps
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

Device: TypeAlias = torch.device | str | None
DType: TypeAlias = torch.dtype | None

Init = TypeVar("Init", bound=Callable[..., None])


def checked(init: Init) -> Init:
    """Let an ``__init__`` be given plain numbers, and only where its signature says so.

    >>> class Ruler:
    ...     @checked
    ...     def __init__(self, length: int, *, step: float = 0.5) -> None:
    ...         self.length = length
    >>> Ruler(2.5)
    Traceback (most recent call last):
    ValueError: Ruler needs length to be a whole number, got 2.5
    """
    signature = inspect.signature(init)

    @wraps(init)
    def with_numbers(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # raises it with the name of the class
            return
        given.arguments.update(numbers(type(self).__name__, init, given.arguments))
        init(*given.args, **given.kwargs)

    return with_numbers  # type: ignore[return-value]  # the same, from outside


def numbers(owner: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a function with plain numbers where its signature asks for them; anything else there raises."""
    try:
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except (NameError, TypeError):  # written for type checkers only
        return dict(given)
    return {name: _number(owner, name, value, _choices(hints.get(name, Any))) for name, value in given.items()}


def positive(owner: str, **values: float) -> None:
    """Refuse a number that is not above zero.

    >>> positive("ram", glimpses=0)
    Traceback (most recent call last):
    ValueError: ram needs glimpses above zero, got 0
    """
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{owner} needs {name} above zero, got {value}")


def whole(value: Any) -> int | None:
    """An integer of any type as int; None for everything else, truth values among them.

    >>> whole(8), whole(True), whole(8.0), whole("8")
    (8, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def at_least_one(name: str, value: Any) -> int:
    """A number of something."""
    number = whole(value)
    if number is None:
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _choices(hint: Any) -> set[Any]:
    return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}


def _number(owner: str, name: str, value: Any, choices: set[Any]) -> Any:
    pairs = {choice for choice in choices if get_origin(choice) is tuple}
    if choices - pairs - {int, float, bool, NoneType} or not choices & {int, float, bool}:
        return value  # something else, or something else as well
    if value is None and NoneType in choices:
        return None
    if pairs and isinstance(value, tuple | list):
        return tuple(_number(owner, name, each, {int}) for each in value)
    if bool in choices and isinstance(value, bool):
        return value
    if int in choices and (integer := whole(value)) is not None:
        return integer
    if float in choices and not isinstance(value, str | bool):
        try:
            real = float(value)
        except (TypeError, ValueError):
            real = math.nan
        if math.isfinite(real):
            return real
    kinds = {bool: "True or False", int: "a whole number", float: "a number"}
    wanted = " or ".join(text for kind, text in kinds.items() if kind in choices)
    raise ValueError(f"{owner} needs {name} to be {wanted}, got {value!r}")
