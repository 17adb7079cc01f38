"""Blocks of other packages, which announce themselves by an entry point in their ``pyproject.toml``::

    [project.entry-points."visattn.blocks"]
    mine = "my_package.blocks:Mine"

The name is known as soon as the package is installed. The package is imported when somebody names the block, and
registers it then, under that name (``@visattn.register_block("mine", ...)``).
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from visattn.listing import shown

GROUP = "visattn.blocks"


@cache
def announced() -> dict[str, list[EntryPoint]]:
    """What installed packages announce, by the name of the block; one name can be announced twice."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def package(entry: EntryPoint) -> str:
    """The package that an entry comes from, in words."""
    return f"package {entry.dist.name!r}" if entry.dist is not None else f"the package of {entry.value!r}"


def says(name: str) -> str:
    """The beginning of a sentence about a block that is announced."""
    return f"{package(announced()[name][0])} announces a block {shown(name)}"


def from_same_package(thing: object, entry: EntryPoint) -> bool:
    """Whether a class or function is defined in the package that an entry leads to."""
    module = getattr(thing, "__module__", None) or ""
    return bool(module.partition(".")[0] == entry.module.partition(".")[0])


def import_announced(name: str) -> None:
    """Import the block; whatever is wrong with it raises a ValueError in one line that names the package."""
    (entry,) = announced()[name]
    try:
        block = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, or whatever else a package makes of it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"{says(name)} that cannot be imported ({entry.value}): {reason}") from error
    if not callable(block):
        raise ValueError(f"{says(name)} that is no class or function, but {type(block).__name__} ({entry.value})")
