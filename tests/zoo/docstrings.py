"""What the docstring of a block's file says, part by part."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass, field

from visattn.blocks import list_blocks

MATH = ".. math::"


@dataclass
class Documentation:
    """The parts in their fixed order, in Markdown."""

    title: str
    paper: str
    equations: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    differences: str = ""
    notes: list[str] = field(default_factory=list)


def read(docstring: str) -> Documentation:
    """Take a docstring apart: title, paper, equations, symbols, differences, notes, and an example that is left out."""
    title, paper, *rest = re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip())
    found = Documentation(markdown(title).removesuffix("."), markdown(paper))
    awaited = False  # an equation whose body is a paragraph of its own
    for part in rest:
        if part.startswith(">>>"):
            break
        if part.startswith(MATH) or awaited:
            body = textwrap.dedent(part.removeprefix(MATH)).strip()
            awaited = not body
            if body:
                found.equations.append("\n".join(line.strip() for line in body.splitlines()))
        elif part.startswith("Differences"):
            found.differences = markdown(part)
        elif found.differences:
            found.notes.append(markdown(part))
        else:
            found.symbols.append(markdown(part))
    return found


def summary(docstring: str) -> str:
    """The first sentence of a class, without where to find its arguments."""
    line = " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())
    return markdown(re.sub(r" ?(Arguments: see|See) :\w+:`[^`]*`\.$", "", line))


def markdown(text: str) -> str:
    """reStructuredText as Markdown: a paragraph on one line, a table as it is."""
    if text.startswith("==="):
        return f"```text\n{text.strip()}\n```"
    text = " ".join(text.split())
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":mod:`visattn\.blocks\.(\w+)`", _link, text)
    text = re.sub(r":\w+:`~?([^`]*)`", lambda match: f"`{match[1].removeprefix('visattn.')}`", text)
    return text.replace("``", "`")


def _link(match: re.Match[str]) -> str:
    return f"[`{match[1]}`](#{match[1]})" if match[1] in list_blocks() else f"`visattn.blocks.{match[1]}`"
