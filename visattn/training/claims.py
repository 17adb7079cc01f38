"""One process at a time trains in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from visattn.data.once import UNLOCKABLE, is_at
from visattn.files import unwritable

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
HAS_LOCKS: bool = fcntl is not None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; raises if one of them is in it.

    The system frees the lock when this process ends, however it ends. Processes that it starts, such as the workers of
    a loader, do not inherit it (unlike one of flock's), so that none of them can keep a killed run from being resumed.
    Where files cannot be locked, nobody is kept out.
    """
    if not HAS_LOCKS:
        yield
        return
    lock = folder / LOCK
    while True:
        with _opened(lock) as stream:
            _lock(stream, folder)
            if not is_at(lock, stream):  # the previous holder has removed it
                continue
            try:
                yield
            finally:
                with suppress(OSError):  # somebody has removed the folder, say
                    lock.unlink()  # while it is ours
            return


def _opened(lock: Path) -> IO[str]:
    """The file, new or as a killed process left it; never one elsewhere that a link leads to."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.fdopen(os.open(lock, flags, 0o666), "w")
    except OSError as error:
        raise unwritable(lock, error) from error


def _lock(stream: IO[str], folder: Path) -> None:
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        raise ValueError(f"{folder} is being trained by another process") from None
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
