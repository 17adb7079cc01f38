"""The arguments of Lightning's Trainer, read from its source: importing Lightning takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import docstring_parser

from visattn.cli.flags import MANAGED


def trainer_flags() -> Iterator[tuple[str, str]]:
    """Name and help of each argument that can be given as ``--trainer.NAME``."""
    package = find_spec("lightning")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'lightning'", name="lightning")
    source = Path(package.origin).parent / "pytorch" / "trainer" / "trainer.py"
    body = ast.parse(source.read_text(encoding="utf-8")).body
    trainer = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    init = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    described = docstring_parser.parse(ast.get_docstring(init) or "").params
    texts = {each.arg_name: " ".join((each.description or "").split()) for each in described}
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        if argument.arg not in MANAGED and argument.annotation is not None and default is not None:
            kind = f"type: {ast.unparse(argument.annotation)}, default: {ast.unparse(default)}"
            yield argument.arg, f"{texts.get(argument.arg, '')} ({kind})"
