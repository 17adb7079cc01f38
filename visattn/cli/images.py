"""The images that a command line names, and what their files are to be called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from visattn.data.folders import EXTENSIONS

MORE = {".avif", ".jp2", ".pgm", ".pbm"}
LONGEST = 120  # bytes of a name
OURS = {"comparison.png", "manifest.json"}  # a folder that has them holds heatmaps, not images


def find_images(given: Sequence[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """The files, each once, in the order in which they were given; and what is missing, with the reason.

    Args:
        given: files, and folders to be searched with all that is in them but heatmaps of ours.
    """
    found: dict[Path, Path] = {}
    missing: list[tuple[str, str]] = []
    for each in given:
        path = Path(each)
        files = [path]
        if path.is_dir():
            files = _images(path)
            if not files:
                missing.append((each, f"no images in this folder ({', '.join(sorted(EXTENSIONS | MORE))})"))
        elif not path.exists():
            missing.append((each, "there is no such file or folder"))
            continue
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values()), missing


def _images(folder: Path) -> list[Path]:
    """Image files in a folder and in those below it, sorted; hidden ones are left alone."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if set(files) >= OURS:
            continue
        known = [name for name in files if os.path.splitext(name)[1].lower() in EXTENSIONS | MORE]
        found += [Path(place, name) for name in sorted(known) if not name.startswith(".")]
    return found


class Stems:
    """Beginnings of file names, one per image, such that no two images write to the same file.

    >>> stems = Stems(["rollout", "grad_rollout"])
    >>> [stems.of(Path(name)) for name in ("a/cat.jpg", "b/cat.jpg", "cat_grad.png", "x<y\\n.png")]
    ['cat', 'cat-2', 'cat_grad-2', 'x_y']
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = tuple(kinds)
        self.taken: set[str] = set()

    def of(self, path: Path) -> str:
        """A beginning that is free, of letters that every file system knows."""
        clean = re.sub(r"[^\w.()+-]+", "_", path.stem).strip("._-")
        base = stem = clean.encode()[:LONGEST].decode(errors="ignore") or "image"
        number = 1
        while self.taken & (files := {f"{stem}_{kind}".casefold() for kind in self.kinds}):
            number += 1
            stem = f"{base}-{number}"
        self.taken |= files
        return stem
