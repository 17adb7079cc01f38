"""What a value on a card may be: checks that a schema is made of.

A check takes a value and the path to it, and raises a ValueError that names the path if the value does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from visattn.constants import ORIGIN
from visattn.listing import shown
from visattn.registry import suggest

KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
WORD = re.compile(r"[\w.,+ ()-]*", re.ASCII)
Check: TypeAlias = "Callable[[Any, str], None]"  # of a value and the path to it


def whole(low: int, high: int) -> Check:
    """A whole number within a range."""

    def check(value: Any, path: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{path} is {shown(value)}, not a whole number from {low} to {high}")

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """A finite number within a range, whose lower end may be excluded."""

    def check(value: Any, path: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            start = f"above {low:g} and up to" if above else f"from {low:g} to"
            raise ValueError(f"{path} is {shown(value)}, not a number {start} {high:g}")

    return check


def text(pattern: re.Pattern[str] | None = None, longest: int = 200) -> Check:
    """A string that matches a pattern."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{path} is {shown(value)}, not a text")
        if len(value) > longest:
            raise ValueError(f"{path} has {len(value):,} letters, which is more than {longest}")
        if pattern is not None and not pattern.fullmatch(value):
            raise ValueError(f"{path} is {shown(value)}, which no name here looks like")

    return check


def one_of(*words: str) -> Check:
    """One of a few words."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{path} is {shown(value)}, not one of {', '.join(words)}")

    return check


def each(item: Check, least: int = 0, most: int = 1_000_000) -> Check:
    """A list, each of whose items passes a check."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} is {shown(value)}, not a list")
        if not least <= len(value) <= most:
            wanted = str(least) if least == most else f"{least} to {most:,}"
            raise ValueError(f"{path} has {len(value):,} entries instead of {wanted}")
        for index, entry in enumerate(value):
            item(entry, f"{path}[{index}]")

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys and no others."""
    known = {**required, **(optional or {})}

    def check(value: Any, path: str) -> None:
        check_object(value, path)
        for key in required:
            if key not in value:
                raise ValueError(f"{_joined(path, key)} is missing")
        for key, entry in value.items():
            if key not in known:
                raise ValueError(f"{_joined(path, key)} is unknown: {suggest(key, known)}")
            known[key](entry, _joined(path, key))

    return check


def table(entry: Check, most: int = 100) -> Check:
    """An object with any keys, each of whose values passes a check."""

    def check(value: Any, path: str) -> None:
        check_object(value, path)
        if len(value) > most:
            raise ValueError(f"{path} has {len(value):,} entries, which is more than {most}")
        for key, item in value.items():
            text(KEY, 100)(key, f"a key of {path}")
            entry(item, _joined(path, key))

    return check


def optional(check: Check) -> Check:
    """None, or what passes the check."""
    return lambda value, path: None if value is None else check(value, path)


def plain(value: Any, path: str, depth: int = 4) -> None:
    """Small JSON values, in lists and objects that are not nested deeply."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        number(-1e6, 1e6)(value, path)
    elif isinstance(value, str):
        text(WORD)(value, path)
    elif depth == 0:
        raise ValueError(f"{path} is nested too deeply")
    elif isinstance(value, dict):
        _check_origin(value, path)
        table(lambda entry, inner: plain(entry, inner, depth - 1))(value, path)
    elif isinstance(value, list | tuple):
        each(lambda entry, inner: plain(entry, inner, depth - 1), most=1000)(value, path)
    else:
        raise ValueError(f"{path} is a {type(value).__name__}, which a card cannot hold")


def options(value: Any, path: str) -> None:
    """Keyword arguments of a block or a network."""
    check_object(value, path)
    plain(value, path)


def check_object(value: Any, path: str) -> None:
    """An object with keys."""
    if not isinstance(value, dict):
        raise ValueError(f"{path or 'it'} is {shown(value)}, not an object with keys")


def _check_origin(value: Mapping[str, Any], path: str) -> None:
    for key in ORIGIN:
        if key in value:
            raise ValueError(f"{path}.{key} says where weights come from; a card may not")


def flag(value: Any, path: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{path} is {shown(value)}, not true or false")


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path and isinstance(key, str) else key if isinstance(key, str) else shown(key)
