"""Settings as text: YAML's data, read as YAML 1.2 says.

PyYAML reads YAML 1.1, in which ``010`` is eight, ``1:30`` is ninety and ``on`` is true, and of a key that stands there
twice it keeps the last without a word.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

DEEPEST = 20  # levels
MOST_DIGITS = 300  # of a number
NOTHING = ("", "~", "null", "Null", "NULL")
CLOCK = re.compile(r"[-+]?[0-9_]+(:[0-9_]+)+(\.[0-9_]*)?")  # ninety, to YAML 1.1 and to jsonargparse, is 1:30

# The plain words that are no text, the letters they can begin with, and what they are.
WORDS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


class Loader(yaml.SafeLoader):
    """Plain values, and every key once."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - filled below, for this class only

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A dictionary; a key that is given twice is an error."""
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(None, None, "a key is a word", key_node.start_mark)
            if key in found:
                raise yaml.MarkedYAMLError(None, None, f"{key!r} is given twice", key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=deep)
        return found

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Ten digits, eight after ``0o``, sixteen after ``0x``."""
        text = str(node.value)
        if len(text) > MOST_DIGITS:
            raise yaml.MarkedYAMLError(None, None, f"a number of {len(text):,} digits", node.start_mark)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


for kind, (pattern, letters) in WORDS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), letters)
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)


class Dumper(yaml.SafeDumper):
    """Texts in quotation marks wherever they would be read as something else, here or by PyYAML."""


for kind, (pattern, letters) in WORDS.items():
    Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), letters)


def dump(content: Any) -> str:
    """The text of plain values.

    >>> dump({"name": "1e3", "out": "on"})
    "name: '1e3'\\nout: 'on'\\n"
    """
    return yaml.dump(content, Dumper=Dumper, sort_keys=False)


def load(text: str) -> Any:
    """The data of a text: no tags that could name code, no aliases, and not too much of anything."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"uses an anchor or alias (line {_line(event)}): write the value out")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"uses a tag, {event.tag!r} (line {_line(event)}): use plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"is nested too deeply (line {_line(event)})")
    value = yaml.load(text, Loader=Loader)
    return text if value is None and text.strip() not in NOTHING else value  # "#1" is a name, not a comment on nothing


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
