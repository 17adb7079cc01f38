"""All heatmap methods: every file in this folder registers its own, and is found here by itself."""

from importlib import import_module
from pkgutil import iter_modules

from visattn.heatmaps.methods.base import METHODS, register_method

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "register_method"]
