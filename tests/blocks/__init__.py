"""Which blocks and settings the tests run on: rows of oracles, settings and mistakes, a file per group of blocks.

A file of rows has ``OUTPUT`` (block -> oracle of its output), ``WEIGHTS`` (block -> oracle of what ``attention()``
returns, where the output is not simply the input times that), ``MUTATIONS`` (block, options, line as it is, line with a
mistake), and if needed ``DEFAULTS`` (blocks that do not take 16 channels and all sizes), ``VARIANTS`` (settings that
change the computation) and ``NO_PRODUCT`` (blocks without an oracle of ``attention()`` that do not multiply by it).
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import visattn
from tests.blocks.case import Case, randomise
from tests.blocks.parts import Oracle, array, mask

__all__ = [
    "CASES",
    "DEFAULTS",
    "MULTIPLIES",
    "MUTATIONS",
    "OF_EVERY_FAMILY",
    "OUTPUT",
    "WEIGHTS",
    "Case",
    "array",
    "mask",
    "randomise",
]

OF_EVERY_FAMILY = ("se", "residual", "cbam", "nonlocal", "mhsa", "hard")  # a sample

modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
rows = [vars(module) for module in modules if hasattr(module, "OUTPUT")]

OUTPUT: dict[str, Oracle] = {name: oracle for each in rows for name, oracle in each["OUTPUT"].items()}
WEIGHTS: dict[str, Oracle] = {name: oracle for each in rows for name, oracle in each["WEIGHTS"].items()}
MUTATIONS: list[tuple[str, dict[str, Any], str, str]] = [row for each in rows for row in each["MUTATIONS"]]
special: dict[str, Case] = {case.name: case for each in rows for case in each.get("DEFAULTS", ())}
DEFAULTS = [special.get(name, Case(name)) for name in visattn.list_blocks()]
CASES = DEFAULTS + [case for each in rows for case in each.get("VARIANTS", ())]

# Blocks whose attention() is a map that the input is multiplied by.
MULTIPLIES = sorted(set(OUTPUT) - set(WEIGHTS) - {name for each in rows for name in each.get("NO_PRODUCT", ())})
