"""Where the commands print to."""

from __future__ import annotations

import io
import os
import sys


def make_writable() -> None:
    """Let everything be printed: nowhere if a stream is closed, with ``?`` for letters that its encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
