"""A table of names that rejects duplicates and suggests corrections for typos."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

T = TypeVar("T")

LONGEST = 250  # characters: the longest list of names worth printing


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a name or a glob stands for; a name that is among them stands for itself alone.

    >>> matching("a[0]", ["a0", "a[0]"]), matching("a[01]", ["a0", "a1", "a2"])
    (['a[0]'], ['a0', 'a1'])
    """
    known = list(names)
    return [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]


def suggest(name: object, known: Iterable[str]) -> str:
    """Suggest the known names closest to an unknown one.

    >>> suggest("cbm", ["se", "cbam", "bam"])
    "did you mean 'cbam' or 'bam'?"
    """
    names = sorted(known, key=_with_numbers)
    close = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    said = names[:40]
    while len(", ".join(said)) > LONGEST:
        said.pop()
    more = f" and {len(names) - len(said)} more" if len(names) > len(said) else ""
    return f"known: {', '.join(said) or 'none'}{more}"


def entry_named(wanted: str, known: Mapping[str, T], kind: str) -> T:
    """An entry by name; an unknown one raises and names the closest."""
    if wanted not in known:
        raise ValueError(f"unknown {kind} {wanted!r}: {suggest(wanted, known)}")
    return known[wanted]


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """Sort key that orders numbers within names by value.

    >>> sorted(["blocks.10", "blocks.2"], key=_with_numbers)
    ['blocks.2', 'blocks.10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


class Registry(Generic[T]):
    """Entries of one kind, by name.

    >>> colours = Registry("colour", {"blue": 0x0000FF})
    >>> colours.add("red", 0xFF0000)
    >>> list(colours)
    ['blue', 'red']
    >>> colours["rde"]
    Traceback (most recent call last):
    ValueError: unknown colour 'rde': did you mean 'red'?
    """

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name that is already taken raises `ValueError`."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is already registered (as {self._entries[name]!r})")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str) or name not in self._entries:
            raise ValueError(f"unknown {self.kind} {name!r}: {suggest(name, self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
