"""The two kinds of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command line that must end with one clear line.

    It runs in a folder that holds ``a.png`` and ``b.png``, ``photos/`` (two classes of four images each) and ``model/``
    (a saved ``test_resnet`` of two classes).

    Args:
        line: what a person types after ``visattn``.
        says: part of the last line on stderr.
        code: the exit code.
        prepare: changes the folder before.
    """

    line: str
    says: str
    code: int = 2
    prepare: Callable[[Path], Any] | None = None


@dataclass(frozen=True)
class Call:
    """Python that must raise.

    Args:
        name: for the report of the tests.
        do: the call.
        says: part of the message.
        raises: of this type.
    """

    name: str
    do: Callable[[], Any]
    says: str
    raises: type[Exception] = ValueError
