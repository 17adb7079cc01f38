"""Entry point of the ``visattn`` command, in charge while imports run, which takes seconds.

It is outside the package, because anything inside runs only after ``import visattn``.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def leaving_at_once(last_words: bytes = b"") -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process at once, after writing ``last_words``."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        with suppress(OSError):  # stderr may be closed
            os.write(2, last_words)
        os._exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_folder(prog: str) -> None:
    """End with a word if the folder that one is in was deleted: torch's libraries end without one."""
    try:
        os.getcwd()
    except OSError:
        sys.exit(f"{prog}: the current folder is not there any more: change to another one")


RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # which Lightning reads while it is imported


def check_environment(prog: str) -> None:
    """End with a word if a variable would stop an import, and have matplotlib draw without a window."""
    for name in RANKS:
        if not os.environ.get(name, "0").isdecimal():
            sys.exit(f"{prog}: the environment variable {name} is no number: {os.environ[name]!r}")
    os.environ["MPLBACKEND"] = "agg"


def main() -> int:
    """Import the command and run it."""
    check_folder("visattn")
    check_environment("visattn")
    with leaving_at_once():
        from visattn.cli import main as command

        if sys.argv[1:2] == ["train"]:
            with suppress(ModuleNotFoundError):  # the command says which package is missing
                import visattn.cli.train  # noqa: F401
    return command()


if __name__ == "__main__":
    sys.exit(main())
