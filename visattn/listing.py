"""Readable forms of long lists and of shapes."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST = 200  # letters of a value in a message


def first_few(names: Sequence[str], most: int) -> str:
    """The first names of a list, and how many more there are.

    >>> first_few(["a", "b", "c", "d"], 2), first_few(["a"], 2)
    ('a, b and 2 more', 'a')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Choose at most ``most`` items at even distances, including the first and the last.

    >>> evenly(range(100), 4), evenly("ab", 4)
    ([0, 33, 66, 99], ['a', 'b'])
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(most - 1, 1))] for i in range(most)]


def times(shape: Iterable[int]) -> str:
    """Format a shape.

    >>> times((3, 224, 224))
    '3 x 224 x 224'
    """
    return " x ".join(map(str, shape))


def shown(value: Any) -> str:
    """A value in a message, not too long of it."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 60
    try:
        text = brief.repr(value)
    except ValueError:  # Python's limit of digits
        return "a huge number"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
