"""File names for the pictures and arrays of an image."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

LONGEST = 120  # bytes of a name


class Stems:
    """File name stems, one per image, such that no two images write to the same file.

    >>> stems = Stems(["rollout", "grad_rollout"])
    >>> [stems.of(Path(name)) for name in ("a/cat.jpg", "b/cat.jpg", "cat_grad.png", "x<y\\n.png")]
    ['cat', 'cat-2', 'cat_grad-2', 'x_y']
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = tuple(kinds)
        self.taken: set[str] = set()

    def of(self, path: Path) -> str:
        """Choose a free stem of characters that every file system accepts."""
        clean = re.sub(r"[^\w.()+-]+", "_", path.stem).strip("._-")
        base = stem = clean.encode()[:LONGEST].decode(errors="ignore") or "image"
        number = 1
        while self.taken & (files := {f"{stem}_{kind}".casefold() for kind in self.kinds}):
            number += 1
            stem = f"{base}-{number}"
        self.taken |= files
        return stem
