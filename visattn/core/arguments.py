"""Checks of constructor arguments: devices, dtypes and numbers.

Where a signature says int, any integer type is accepted.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from visattn.listing import shown

Device: TypeAlias = torch.device | str | None
DType: TypeAlias = torch.dtype | None

Init = TypeVar("Init", bound=Callable[..., None])


def checked(init: Init) -> Init:
    """Check that an ``__init__`` gets numbers of the types in its signature, and convert them to plain ones.

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
    """Convert arguments to plain numbers where the signature asks for them; anything else raises."""
    while isinstance(function, partial):
        function = function.func
    try:
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except (NameError, TypeError):  # written for type checkers only
        return dict(given)
    return {name: _number(owner, name, value, _choices(hints.get(name, Any))) for name, value in given.items()}


def positive(owner: str, **values: float) -> None:
    """Raise if a number is not above zero.

    >>> positive("ram", glimpses=0)
    Traceback (most recent call last):
    ValueError: ram needs glimpses above zero, got 0
    """
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{owner} needs {name} above zero, got {value}")


def whole(value: Any) -> int | None:
    """Convert an integer of any type to int; None for everything else, including booleans.

    >>> whole(8), whole(True), whole(8.0), whole("8")
    (8, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def at_least_one(name: str, value: Any, most: int | None = None) -> int:
    """Convert to an int of at least one, and at most so many, or raise."""
    number = whole(value)
    if number is None:
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {shown(number)}")
    return number


def yes_or_no(**values: Any) -> None:
    """Raise if one of these is neither True nor False.

    >>> yes_or_no(signed="no")
    Traceback (most recent call last):
    TypeError: signed must be True or False, got 'no'
    """
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {shown(value)}")


def functions(**values: Any) -> None:
    """Raise if one of these can neither be called nor is None.

    >>> functions(note=5)
    Traceback (most recent call last):
    TypeError: note must be a function, got 5
    """
    for name, value in values.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, got {shown(value)}")


def list_of_names(what: str, given: Any) -> list[str]:
    """Convert one name or several to a list, or raise.

    >>> list_of_names("methods", "gradcam"), list_of_names("methods", ("a", "b"))
    (['gradcam'], ['a', 'b'])
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list | tuple | set | dict) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"{what} must be a name or a list of names, got {shown(given)}")
    return list(given)


def one_or_several(what: str, given: Any) -> list[Any]:
    """Convert one name or number, or several, to a list; none at all raises.

    >>> one_or_several("heads", 0), one_or_several("layers", "blocks.0"), one_or_several("heads", (0, 1))
    ([0], ['blocks.0'], [0, 1])
    """
    alone = isinstance(given, str | bytes) or whole(given) is not None or not isinstance(given, Iterable)
    several = [given] if alone else list(given)
    if not several:
        raise ValueError(f"{what} is empty: name at least one, or leave it out")
    return several


def checked_seed(value: Any) -> int:
    """Convert to an int that any source of random numbers takes, or raise.

    >>> checked_seed(10**30)
    Traceback (most recent call last):
    ValueError: seed must be a whole number from 0 to 4294967295, got 1000000000000000000000000000000
    """
    number = whole(value)
    if number is None or not 0 <= number < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {value!r:.40}")
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
        except (TypeError, ValueError, OverflowError):
            real = math.nan
        if math.isfinite(real):
            return real
    kinds = {bool: "True or False", int: "a whole number", float: "a number"}
    wanted = " or ".join(text for kind, text in kinds.items() if kind in choices)
    raise ValueError(f"{owner} needs {name} to be {wanted}, got {shown(value)}")
