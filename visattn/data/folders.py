"""Images in folders, one folder per class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from visattn.data.copies import copies
from visattn.data.files import EXTENSIONS, encloses, search
from visattn.data.readers import Files, Source, Split
from visattn.files import printable
from visattn.registry import suggest

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}

ByClass: TypeAlias = dict[str, dict[str, str]]  # the paths of every class by `visattn.data.files.identity`
MOST_COMPARED = 100_000  # images among which copies are looked for


def folder_source(
    root: Path,
    val_fraction: float,
    *,
    classes: Sequence[str] | None = None,
    skip_bad: bool = False,
    split: Split | None = None,
) -> Source:
    """Open an ImageFolder layout: ``root/train/<class>/…`` and ``root/val/<class>/…``, or ``root/<class>/…`` to split.

    Args:
        root: the folder.
        val_fraction: share of every class held out for validation if there is no ``val``; always the same images.
        classes: use only these, in this order.
        skip_bad: skip unreadable files and folders.
        split: that of a run to resume: the same images are held out, whatever was added.
    """
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(root)!r}: pass the folder of your images with --root")
    parts = {split: _first_folder(root, names) for split, names in SPLITS.items()}
    rest = Rest()
    own = None
    if parts["train"] is None:
        found = _images(root, classes, rest)
        train, val = _split(found, val_fraction) if split is None else _split_again(found, root, split, val_fraction)
        names = [os.path.relpath(path, root) for files in val.values() for path in files.values()]
        own = Split(val_fraction, tuple(names))
    elif split is not None:
        raise ValueError(
            f"the run held out images of {str(root)!r} for validation, which now has a train/ folder of its own: "
            "resume it with the folder as it was"
        )
    elif parts["val"] is None:
        raise ValueError(f"{str(root)!r} has train/ but no val/: add one, or split train/ with --root {parts['train']}")
    else:
        train, val = _images(parts["train"], classes, rest), _images(parts["val"], classes, rest)
        if extra := sorted(val.keys() - train.keys()):
            raise ValueError(f"classes in {str(parts['val'])!r} that are not in train/: {', '.join(extra[:5])}")
        if missing := [name for name in train if name not in val]:
            raise ValueError(f"classes in train/ that are not in {str(parts['val'])!r}: {', '.join(missing[:5])}")
    if rest.problems and not skip_bad:
        path, reason = next(iter(rest.problems.items()))
        more = f" (and {len(rest.problems) - 1} more)" if len(rest.problems) > 1 else ""
        raise ValueError(f"{path}: {reason}{more}; use --on-bad-image skip to leave such files out")
    order = tuple(train)
    notes = (*rest.notes(), *_repeated(train, val))
    return Source(_files(train, order), _files(val, order), order, tuple(map(printable, order)), notes=notes, split=own)


@dataclass
class Rest:
    """Everything in the folders except readable images."""

    problems: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    loose: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        """One line about each kind."""
        if self.problems:
            named = "; ".join(f"{printable(path)}: {reason}" for path, reason in list(self.problems.items())[:3])
            more = ", ..." if len(self.problems) > 3 else ""
            yield f"skipped as unreadable: {len(self.problems)} ({named}{more})"
        if self.ignored:
            kinds = ", ".join(printable(kind) or "no extension" for kind, _ in self.ignored.most_common(5))
            yield f"ignored files in other formats: {self.ignored.total()} ({kinds})"
        if self.loose:
            one = printable(min(self.loose))
            yield f"ignored images that are in no class folder: {len(self.loose)}, such as {one!r}"


def _repeated(train: ByClass, val: ByClass) -> Iterator[str]:
    """One line about images that are in both splits, and one about those that are in two classes."""
    every = [(path, one, name) for part in (train, val) for name, files in part.items() for one, path in files.items()]
    first = {path: one for path, one, _ in every}  # of each path, one of all that have the same content
    classes = {path: name for path, _, name in every}
    divided = []
    for group in copies(first) if len(first) <= MOST_COMPARED else ():
        first.update(dict.fromkeys(group, first[group[0]]))
        divided += [(group[0], path) for path in group if classes[path] != classes[group[0]]]
    known = {first[path] for files in train.values() for path in files.values()}
    count = sum(first[path] in known for files in val.values() for path in files.values())
    if count:
        total = sum(map(len, val.values()))
        yield f"{count} of the {total} validation images are also training images: validation will look too good"
    if divided:
        one, other = map(printable, divided[0])
        yield f"copies of the same image in two classes: {len(divided)}, such as {one!r} and {other!r}"


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _images(root: Path, classes: Sequence[str] | None, rest: Rest) -> ByClass:
    """Find the image files of every class; an empty class, or an image in two classes, is an error."""
    with os.scandir(root) as scanned:
        entries = list(scanned)
    there = sorted(entry.name for entry in entries if _is_class(entry, root))
    rest.loose += [each.path for each in entries if os.path.splitext(each.name)[1].lower() in EXTENSIONS]
    if not there:
        raise ValueError(f"{str(root)!r} contains no folders: expected one folder of images per class")
    for name in classes or ():
        if name not in there:
            raise ValueError(f"{str(root)!r} has no class {name!r}: {suggest(name, there)}")
    images: ByClass = {}
    owner: dict[str, str] = {}  # class of every file
    for name in classes or there:
        found = search(root / name)
        rest.problems |= found.problems
        rest.ignored += found.ignored
        if not found.images:
            problem = next((f" ({path}: {reason})" for path, reason in found.problems.items()), "")
            raise ValueError(
                f"class {name!r} is empty: no images ({', '.join(sorted(EXTENSIONS))}) in {str(root / name)!r}{problem}"
            )
        for one, path in found.images.items():
            if (other := owner.setdefault(one, name)) != name:
                raise ValueError(
                    f"{path!r} and {images[other][one]!r} are the same image in two classes, {name!r} and {other!r}: "
                    "remove one of the links"
                )
        images[name] = dict(sorted(found.images.items(), key=lambda pair: pair[1]))
    return images


def _is_class(entry: os.DirEntry[str], root: Path) -> bool:
    """Whether an entry is a folder, and not a link to a folder that encloses it."""
    if entry.name.startswith(".") or not os.path.isdir(entry.path):
        return False
    return not encloses(os.path.realpath(entry.path), os.path.realpath(root))


def _split(found: ByClass, val_fraction: float) -> tuple[ByClass, ByClass]:
    train, val = {}, {}
    for name, files in found.items():
        if len(files) < 2:
            raise ValueError(f"class {name!r} has only one image: it cannot be split into training and validation")
        order = np.random.default_rng(0).permutation(len(files))
        count = min(len(files) - 1, max(1, round(len(files) * val_fraction)))
        pairs = list(files.items())
        val[name] = dict(pairs[i] for i in sorted(order[:count]))
        train[name] = dict(pairs[i] for i in sorted(order[count:]))
    return train, val


def _split_again(found: ByClass, root: Path, split: Split, val_fraction: float) -> tuple[ByClass, ByClass]:
    """Hold out the images that a run has held out so far; new images are for training."""
    if val_fraction != split.fraction:
        raise ValueError(f"--val-fraction {val_fraction:g}: the run began with {split.fraction:g}, and resumes with it")
    held_out = set(split.held_out)
    train: ByClass = {name: {} for name in found}
    val: ByClass = {name: {} for name in found}
    for name, files in found.items():
        for one, path in files.items():
            relative = os.path.relpath(path, root)
            (val if relative in held_out else train)[name][one] = path
            held_out.discard(relative)
        if not train[name]:
            raise ValueError(f"class {name!r} has no training image left: the run held out all that are there")
    if held_out:
        raise ValueError(
            f"{len(held_out)} of the {len(split.held_out)} validation images of the run are gone or renamed, such as "
            f"{printable(min(held_out))!r}: put them back, or begin a new run, so that none of them is trained on"
        )
    return train, val


def _files(found: Mapping[str, Mapping[str, str]], classes: Sequence[str]) -> Files:
    pairs = [(path, label) for label, name in enumerate(classes) for path in found[name].values()]
    return Files([path for path, _ in pairs], [label for _, label in pairs])
