"""Fetch something once for several processes."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

try:
    import fcntl
except ImportError:  # Windows: every process fetches for itself
    fcntl = None  # type: ignore[assignment]

UNLOCKABLE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # a file system without locks
STALLED = 60.0  # seconds without a byte, after which a download has failed
T = TypeVar("T")


def _not_through_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def fetched(find: Callable[[], T | None], fetch: Callable[[], None], lock: Path) -> T:
    """Return what ``find`` finds, fetching it first if necessary.

    One process fetches while the others wait for its lock, which is released when that process ends, however it ends.
    If fetching failed, the others read the reason from the lock file; if the process was killed, the next one fetches.
    Machines that share no file system fetch once each, and so does every process where files cannot be locked.

    Args:
        find: returns the complete result, or None if it is not there.
        fetch: fetches it, atomically.
        lock: lock file next to the result; deleted afterwards.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    while (found := find()) is None:
        with open(lock, "a+", opener=_not_through_a_link) as stream:
            if not _locked(stream):
                continue
            stream.seek(0)
            reason = stream.read()
            if not is_at(lock, stream):  # the previous holder has finished
                if reason:
                    raise ValueError(reason)
                continue
            stream.truncate(0)
            if find() is None:
                _fetch(fetch, stream, lock)
            else:
                lock.unlink(missing_ok=True)
    return found


def _fetch(fetch: Callable[[], None], stream: IO[str], lock: Path) -> None:
    try:
        with _impatient():
            fetch()
    except Exception as error:
        with suppress(OSError):
            stream.write(" ".join(str(error).split()) or type(error).__name__)
            stream.flush()
        raise
    finally:
        lock.unlink(missing_ok=True)


def _locked(stream: IO[str]) -> bool:
    """Wait for the lock; False if the file was deleted meanwhile."""
    if fcntl is not None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno == errno.ESTALE:  # deleted by another machine
                return False
            if error.errno not in UNLOCKABLE:
                raise
    return True


def is_at(path: Path, stream: IO[str]) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def _impatient() -> Iterator[Any]:
    """Make stalled connections fail."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
