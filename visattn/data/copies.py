"""Find files with the same content."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

from visattn.data.files import MAX_BYTES
from visattn.files import read_bytes

SAMPLE = 4096  # bytes from the middle of a file, which tell most images of the same size apart


def copies(paths: Iterable[str]) -> Iterator[list[str]]:
    """Groups of files that are byte for byte the same; empty and unreadable ones are in none.

    Only files of the same size are opened, and only those whose samples agree are read.
    """
    for same_size in _groups(paths, os.path.getsize):
        for similar in _groups(same_size, _sample):
            yield from _groups(similar, lambda path: hashlib.sha256(read_bytes(path, MAX_BYTES)).digest())


def _groups(paths: Iterable[str], key: Callable[[str], Hashable]) -> Iterator[list[str]]:
    """Groups of two or more paths with the same key, which is neither zero nor empty."""
    found: defaultdict[Hashable, list[str]] = defaultdict(list)
    for path in paths:
        try:
            found[key(path)].append(path)
        except OSError:  # reported when the image is needed
            continue
    return (group for value, group in found.items() if value and len(group) > 1)


def _sample(path: str) -> bytes:
    with open(path, "rb", buffering=0) as stream:
        stream.seek(os.fstat(stream.fileno()).st_size // 2)
        return stream.read(SAMPLE)
