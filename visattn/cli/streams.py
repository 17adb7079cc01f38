"""Where the commands print to."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from visattn.files import visible


def make_writable() -> None:
    """Let everything be printed: nowhere if a stream is closed, with ``?`` for letters that its encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


@contextmanager
def printed() -> Iterator[None]:
    """Raise `OSError` at the end, while it can still be reported, if stdout does not take what was printed."""
    try:
        yield
    except SystemExit:  # after --help
        _flush()
        raise
    except BaseException:
        with suppress(OSError):  # there is something else to report
            _flush()
        raise
    _flush()


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:  # the disk is full, or nobody reads on
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes once more when it ends
        os.close(nowhere)
        raise


class Printing(argparse.ArgumentParser):
    """A parser whose help is an error if it cannot be printed, which argparse keeps to itself."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.color = False  # from Python 3.14 on argparse has colours, which would be printed as letters

    def _print_message(self, message: str, file: Any = None) -> None:
        (sys.stderr if file is None else file).write(visible(message))
