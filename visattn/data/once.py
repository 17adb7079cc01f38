"""What several processes need, and one of them fetches."""

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
except ImportError:  # Windows: there every process fetches for itself
    fcntl = None  # type: ignore[assignment]

STALLED = 60.0  # seconds without a byte, after which a download has failed
T = TypeVar("T")


def fetched(find: Callable[[], T | None], fetch: Callable[[], None], lock: Path) -> T:
    """What is there, or else is there after it was fetched.

    One process fetches, and the others wait for its lock, which goes with the process, however that ends. If it failed,
    they are told why by what it wrote into the lock; if it was killed, the next one fetches. Machines that share no
    file system fetch once each, and so does every process where files cannot be locked.

    Args:
        find: the thing, or None if it is not there; whole, or not at all.
        fetch: gets it.
        lock: a file where the thing will be; it is taken away afterwards.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    while (found := find()) is None:
        with lock.open("a+") as stream:
            if not _locked(stream):
                continue
            stream.seek(0)
            reason = stream.read()
            if not _is(lock, stream):  # the process that had it before is through
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
    """Wait for the lock; False if the file has gone meanwhile."""
    if fcntl is not None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno == errno.ESTALE:  # taken away by another machine
                return False
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
    return True


def _is(path: Path, stream: IO[str]) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def _impatient() -> Iterator[Any]:
    """Connections fail that do not move."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
