"""What jsonargparse says, in one line for people."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import Parameter, signature

from visattn.registry import suggest

VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def one_line(message: str) -> str:
    """Condense an error message of jsonargparse into one readable line."""
    key = re.search(r'Parser key "([\w.]+)"', message)
    where = f"{key[1]}: " if key else ""
    if denied := re.search(r"Importing '([^']*)' is not allowed", message):
        return (
            f"{where}{denied[1]!r} is not one of Lightning's callbacks, loggers, profilers, strategies or plugins; "
            "load your own code with --plugin on the command line"
        )
    argument = r'Parser key "[\w.]+": Does not validate.*?Given value: .*?(?= - |$)'  # of the class
    end = r"(?= - Expected a| - Not a valid subclass| Given value|$)"
    problem = re.search(rf"Problem with given class_path '([\w.]+)': ({argument}|.*?{end})", message)
    if problem and (unknown := re.fullmatch(r"Option '([^']*)' is not accepted", problem[2])):
        known = _arguments_of(problem[1])
        hint = f": {suggest(unknown[1], known)}" if known else ""
        return f"{where}{problem[1].rpartition('.')[2]} has no argument {unknown[1]!r}{hint}"[:400]
    if problem and not re.match("Not a valid subclass|module '|No module named", problem[2]):  # there is such a class
        return f"{where}{problem[1].rpartition('.')[2]}: {one_line(problem[2])}"[:400]
    types, given = re.search(r"Subtypes: (\[.*?\]) Errors:", message), re.search(r"Given value: ?(.*)$", message)
    if key and types and given:
        names = re.sub(r"<class '([\w.]+)'>", r"\1", types[1][1:-1])
        names = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", names).replace("NoneType", "nothing")
        return f"{where}expected {names}; got {given[1][:100] or 'nothing at all'}"
    kind = r"Parser key \"([\w.]+)\": Expected a (?:<class '(\w+)'>|typing\.Literal(\[.*?\]))\."
    return re.sub(kind, r"\1: expected \2\3.", message)[:400]


def _arguments_of(path: str) -> list[str]:
    """What a class takes that the parser has imported, and its bases if it hands on what it does not know.

    Nothing if it is no class of a module: a function, say, or a class in another one.
    """
    module, _, name = path.rpartition(".")
    found: list[str] = []
    try:
        for base in getattr(import_module(module), name).__mro__:
            kinds = {each.name: each.kind for each in signature(base.__init__).parameters.values()}
            found += [key for key in [*kinds][1:] if kinds[key] not in VARIADIC]
            if Parameter.VAR_KEYWORD not in kinds.values():
                break
    except (ImportError, AttributeError, TypeError, ValueError):
        return []
    return [*dict.fromkeys(found)]
