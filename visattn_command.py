"""Entry point of the ``visattn`` command, in charge while imports run, which takes seconds.

It is outside the package, because anything inside runs only after ``import visattn``.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Whether visattn/__init__.py leaves out all that needs torch, because a command has not read its flags yet. Python
# imports the package before it runs ``python -m visattn``.
flags_first = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("visattn", "-mvisattn")


@contextmanager
def reading_flags(last_words: bytes = b"") -> Iterator[None]:
    """Let a command read its flags; at the end visattn is imported in full, if that was left out.

    Until then Ctrl-C and SIGTERM end the process at once. In a command that is called from Python nothing was left out.
    """
    global flags_first
    if not flags_first:
        yield
        return
    with leaving_at_once(last_words):
        yield
        flags_first = False
        import visattn

        assert visattn.__spec__ is not None
        assert visattn.__spec__.loader is not None
        visattn.__spec__.loader.exec_module(visattn)  # once more, and now in full


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


RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # which Lightning reads while it is imported


def begin(prog: str) -> None:
    """Get ready to run as a command; what would stop an import without a word ends the process with one."""
    global flags_first
    try:
        os.getcwd()
    except OSError:  # torch's libraries end without a word
        sys.exit(f"{prog}: the current folder is not there any more: change to another one")
    for name in RANKS:
        if not os.environ.get(name, "0").isdecimal():
            sys.exit(f"{prog}: the environment variable {name} is no number: {os.environ[name]!r}")
    os.environ["MPLBACKEND"] = "agg"  # matplotlib draws without a window
    if os.path.exists("matplotlibrc"):
        _import_matplotlib_elsewhere()
    flags_first = True


def _import_matplotlib_elsewhere() -> None:
    """Import matplotlib now, in a folder without settings for it: pictures do not depend on where they are made.

    Those of the current folder come before all others, whatever the environment says, and are read only on import.
    """
    for name in ("MATPLOTLIBRC", "MPLCONFIGDIR"):
        if os.environ.get(name):  # empty is as good as not set
            os.environ[name] = os.path.abspath(os.environ[name])
    here = os.getcwd()
    os.chdir(os.path.dirname(os.__file__))
    try:
        with suppress(ImportError):  # whoever needs it says that it is missing
            import matplotlib  # noqa: F401
    finally:
        os.chdir(here)


def main() -> int:
    """Import the command and run it."""
    begin("visattn")
    from visattn.cli import main as command

    return command()


if __name__ == "__main__":
    import visattn_command  # the module that visattn asks, not this copy of it

    sys.exit(visattn_command.main())
