"""An environment in which packages are missing: used in processes of their own, before anything is imported."""

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires


class Hidden(PathFinder):
    """Finds no module of these names, as if it were not installed."""

    names: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in cls.names:
            return None
        return super().find_spec(fullname, path, target)


def hide(*names):
    """Let packages be missing, by the names they are imported with."""
    Hidden.names |= set(names)
    sys.meta_path[:] = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]


def hide_all_but(*distributions):
    """Let everything be missing but these and what they require themselves."""
    kept, found = set(), list(distributions)
    while found:
        name = _normal(found.pop())
        if name in kept:
            continue
        kept.add(name)
        try:
            needed = [each for each in requires(name) or () if "extra ==" not in each]
        except PackageNotFoundError:  # for another system
            continue
        found += [re.match(r"[\w.-]+", each)[0] for each in needed]
    every = packages_distributions().items()
    missing = {name for name, owners in every if not kept & set(map(_normal, owners))}
    hide(*missing - {"visattn", "visattn_command", "tests"})


def _normal(distribution):
    return re.sub(r"[-_.]+", "-", distribution).lower()
