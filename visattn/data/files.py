"""Find image files on disk, each once, and regular files only (see :func:`visattn.files.read_bytes`)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from visattn.files import check_regular, made_by, reason

EXTENSIONS = frozenset(
    {".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
# A folder with both files of one of these holds heatmaps or scores, not images, if the second says that we made it.
OURS = (("comparison.png", "manifest.json"), ("curves.png", "scores.json"))
MAX_BYTES = 512_000_000  # per file: more than the largest image that is decoded takes uncompressed


@dataclass
class Found:
    """Result of a search.

    Args:
        images: paths of the images, in order, keyed by `identity`, so that an image with several names appears once.
        problems: unreadable images and folders, with the reason.
        ignored: number of other files, by extension.
    """

    images: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


def search(folder: str | Path) -> Found:
    """Find the image files in a folder and its subfolders, except hidden files and our own heatmaps.

    Links are followed, every folder is entered once, and a link to an enclosing folder is ignored.
    """
    found = Found()
    todo = [(str(folder), os.path.realpath(folder))]
    entered: set[str] = set()
    while todo:
        path, real = todo.pop()
        if real in entered:
            continue
        entered.add(real)
        try:
            with os.scandir(path) as entries:
                there = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError as error:
            found.problems[path] = reason(error)
            continue
        if _is_ours(path, {entry.name for entry in there}):
            continue
        folders = []
        for entry in there:
            where = _real(entry) if entry.is_symlink() else os.path.join(real, entry.name)
            seen = _look_at(entry)
            if seen is None:
                if not encloses(where, real):
                    folders.append((entry.path, where))
            elif (extension := os.path.splitext(entry.name)[1].lower()) not in EXTENSIONS:
                found.ignored[extension] += 1
            elif isinstance(seen, str):
                found.problems[entry.path] = seen
            else:
                found.images.setdefault(identity(where, seen), entry.path)
        todo += reversed(folders)
    return found


def _is_ours(folder: str, names: set[str]) -> bool:
    return any(
        names >= {picture, manifest} and str(made_by(Path(folder, manifest))).startswith("visattn")
        for picture, manifest in OURS
    )


def encloses(folder: str, real: str) -> bool:
    """Whether a folder is, or contains, another one; both are real paths."""
    return os.path.join(real, "").startswith(os.path.join(folder, ""))


def _real(link: os.DirEntry[str]) -> str:
    try:
        return os.path.realpath(link.path)
    except OSError:  # links to other users' processes in /proc cannot be read
        return link.path


def identity(real: str, status: os.stat_result) -> str:
    """What all names of a file share: its real path, or its place on the disk if it has hard links."""
    return f"{status.st_dev}:{status.st_ino}" if status.st_nlink > 1 and status.st_ino else real


def _look_at(entry: os.DirEntry[str]) -> os.stat_result | str | None:
    """Status of a regular file; what it is if it is none; None for a folder."""
    try:
        if entry.is_dir():
            return None
        status = entry.stat()
        check_regular(status.st_mode)
    except FileNotFoundError:
        return "a broken link"
    except OSError as error:  # a link to itself
        return reason(error)
    return status
