"""Lists of ImageNet classes, each with its source and a checksum (``configs/subsets``)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

from visattn.files import configs_folder, read_text
from visattn.registry import suggest

LARGEST = 10_000_000  # bytes of a list


def subset_names() -> list[str]:
    """Names of the bundled lists."""
    return sorted(file.stem for file in (configs_folder() / "subsets").glob("*.txt"))


def read_subset(name: str) -> tuple[str, ...]:
    """Read the class ids of a bundled list, or of your own file (one id per line; ``#`` starts a comment).

    >>> read_subset("imagenette")[:2]
    ('n01440764', 'n02102040')
    """
    file = configs_folder() / "subsets" / f"{name}.txt" if name in subset_names() else Path(name)
    if not file.is_file():
        raise ValueError(f"unknown subset {name!r} and no such file: {suggest(name, subset_names())}")
    text = read_text(file, LARGEST).removeprefix("\ufeff")  # the mark that some editors begin a file with
    ids = tuple(stripped for line in text.splitlines() if (stripped := line.partition("#")[0].strip()))
    if not ids:
        raise ValueError(f"subset {name!r} lists no classes")
    if twice := sorted(each for each, count in Counter(ids).items() if count > 1):
        raise ValueError(f"subset {name!r} lists {twice[0]!r} twice")
    stated = re.search(r"^# sha256: ([0-9a-f]{64})$", text, re.MULTILINE)
    if stated and stated[1] != checksum(ids):
        raise ValueError(f"subset {name!r} has been changed: its checksum is {checksum(ids)}, not {stated[1]}")
    return ids


def checksum(ids: tuple[str, ...]) -> str:
    """SHA-256 of the ids, one per line."""
    return hashlib.sha256("".join(f"{each}\n" for each in ids).encode()).hexdigest()
