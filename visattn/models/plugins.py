"""Plugins: code of your own, ``--plugin my_file.py`` or ``--plugin my.module``.

This is the only way for the commands to import code that did not come with visattn, and only the user can open it: no
file that visattn reads (card, configuration or checkpoint) can. What a plugin registers (``visattn.register_block``,
``visattn.register_method``, ``timm.register_model``) are names like any others. A card records which plugins a model
needs, so that whoever opens it without them is told.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import timm

from visattn.blocks import block_info, list_blocks
from visattn.blocks.announced import announced, from_same_package
from visattn.listing import first_few

OWN = (
    "visattn",
    "timm",
    "torch",
    "torchvision",
    "functools",
    "builtins",
)  # packages that need no plugin, or say nothing about where a name comes from


@dataclass(frozen=True)
class Plugin:
    """A plugin that was loaded.

    Args:
        name: as it was given.
        module: its name in Python.
        sha256: of its file.
        registers: the blocks and models that it registered.
    """

    name: str
    module: str
    sha256: str
    registers: frozenset[str]


loaded: dict[str, Plugin] = {}  # by the name of the module


def load_plugin(name: str) -> Plugin:
    """Import a file (``my_file.py``) or an installed module (``my.module``); a second time does nothing.

    Whatever is wrong with it raises a ValueError in one line that names the line of the file.
    """
    file = Path(name) if name.endswith(".py") or (name and Path(name).exists()) else None
    module = _module_of_file(name, file) if file is not None else _module_of_name(name)
    if module in loaded:
        return loaded[module]
    before = _registered()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Overwriting .* in registry")  # timm would let a name change its meaning
            imported = _run(module, file) if file is not None else importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, or whatever else a plugin makes of it
        raise ValueError(f"--plugin {name}: {_reason(error, module, file)}") from None
    source = getattr(imported, "__file__", None)
    digest = hashlib.sha256(Path(source).read_bytes() if source else b"").hexdigest()
    loaded[module] = Plugin(name, module, digest, frozenset(_registered() - before))
    return loaded[module]


def _registered() -> set[str]:
    return {*list_blocks(), *timm.list_models()}


def _module_of_file(name: str, file: Path) -> str:
    if file.is_dir():
        raise ValueError(f"--plugin {name} is a folder: give a file, {name.rstrip('/')}/….py, or an installed module")
    if not file.is_file():
        raise ValueError(f"--plugin {name}: there is no such file")
    module = file.stem
    if not name.endswith(".py") or not module.isidentifier():
        raise ValueError(f"--plugin {name}: a plugin is a Python file, with a name such as my_plugin.py")
    known, found = sys.modules.get(module), None
    if known is None:
        found = importlib.util.find_spec(module)
    origin = getattr(known, "__file__", None) if known is not None else found.origin if found is not None else str(file)
    if module in sys.stdlib_module_names or origin is None or not Path(origin).exists() or not file.samefile(origin):
        raise ValueError(f"--plugin {name}: there is another Python module called {module!r}: rename the file")
    return module


def _module_of_name(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"--plugin {name!r}: there is no such file, and a module is called like my.module")
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"--plugin {name}: this is a module of Python's own; a file is given with its ending, {name}.py"
        )
    return name


def _run(module: str, file: Path) -> ModuleType:
    """Import a file under its name, without searching the import path."""
    spec = importlib.util.spec_from_file_location(module, file.resolve())
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    sys.modules[module] = imported
    try:
        spec.loader.exec_module(imported)
    except BaseException:
        del sys.modules[module]
        raise
    return imported


def _reason(error: BaseException, module: str, file: Path | None) -> str:
    """What went wrong in a plugin, and where."""
    if file is None and isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return "there is no such module where Python looks for modules; a file is given with its ending, .py"
    said = " ".join(str(error).split())
    if isinstance(error, Warning) and (taken := re.match(r"Overwriting (\S+) in registry", said)):  # timm's
        said = f"there is a model called {taken[1]!r} already"
    elif isinstance(error, SystemExit):
        said = "it ends the program (sys.exit)"
    else:
        said = f"{type(error).__name__}: {said}"
    if isinstance(error, SyntaxError) and error.lineno is not None:
        place = f"line {error.lineno}: " if error.lineno else ""  # 0 if the encoding is unknown
        return f"{place}{type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and Path(frame.filename) == file.resolve()]
    outside = [frame for frame in frames if not frame.filename.startswith("<") and frame.filename != __file__]
    where = own[-1:] or [frame for frame in outside if Path(frame.filename).parent.name != "importlib"][:1]
    place = f"line {where[0].lineno}" if own else f"{where[0].filename}, line {where[0].lineno}" if where else ""
    return f"{place}: {said}" if place else said


def needed_plugins(names: Iterable[str]) -> list[dict[str, Any]]:
    """For a card: where those names come from that are not visattn's or timm's own."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        source = _source(name)
        if source is not None:
            entry = found.setdefault(source["name"], {**source, "registers": []})
            entry["registers"] = sorted({*entry["registers"], name})
    return list(found.values())


def check_plugins(card: Mapping[str, Any], source: str | Path) -> None:
    """Raise if a model needs a plugin that is not loaded, and say which."""
    known = _registered()
    for plugin in card.get("plugins", ()):
        missing = [name for name in plugin["registers"] if name not in known]
        if missing:
            named = first_few([repr(name[:40]) for name in missing], 2)
            if "package" in plugin:
                package = plugin["package"][:100]
                raise ValueError(f"this model needs {named}: install the package {package!r}: {str(source)!r}")
            raise ValueError(
                f"this model needs --plugin {plugin['name'][:100]}, which has {named} "
                f"(in Python: import it before): {str(source)!r}"
            )


def changed_plugins(card: Mapping[str, Any]) -> list[str]:
    """Names of the plugins that have changed since the card was written."""
    now = {name: plugin.sha256 for plugin in loaded.values() for name in plugin.registers}
    return [
        each["name"]
        for each in card.get("plugins", ())
        if any(now.get(name, each.get("sha256")) != each.get("sha256") for name in each["registers"])
    ]


def _source(name: str) -> dict[str, Any] | None:
    for plugin in loaded.values():
        if name in plugin.registers:
            return {"name": plugin.name, "sha256": plugin.sha256}
    if timm.is_model(name):
        thing: Any = timm.model_entrypoint(name)
    elif name in list_blocks():
        thing = block_info(name).factory
    else:
        return None  # a patch attention
    while isinstance(thing, functools.partial):
        thing = thing.func
    module = getattr(thing, "__module__", None) or "builtins"
    if module.partition(".")[0] in OWN:
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":
        return {"name": Path(file).name if file else "the code that registers it", **_digest(file)}
    source = {"name": module, **_digest(file)}
    for entry in announced().get(name, ()):
        if entry.dist is not None and from_same_package(thing, entry):
            source["package"] = entry.dist.name
    return source


def _digest(file: str | None) -> dict[str, str]:
    return {"sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()} if file and Path(file).is_file() else {}
