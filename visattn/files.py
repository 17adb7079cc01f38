"""Files bundled with visattn, atomic writes, and safe reads of other people's files."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
JOINERS = "\u200c\u200d"  # zero-width joiners, needed in Persian, for example
LARGEST_MANIFEST = 256_000_000  # bytes: heatmaps of several hundred thousand images

SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def configs_folder() -> Path:
    """``configs``: inside the package when it is installed, beside it in a clone of the repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def at_home(path: str) -> str:
    """A path with the home folder for its ``~/``, which a shell leaves alone in ``--out=~/runs``, and a file always."""
    return os.path.expanduser(path) if path.startswith("~/") else path


def straight(path: str) -> str:
    """A path to a folder that may have to be created, without detours: ``new/../x`` would create ``new`` as well."""
    return os.path.relpath(os.path.realpath(path)) if ".." in Path(path).parts else path


@contextmanager
def without_empty_folders(path: str | Path) -> Iterator[None]:
    """At the end remove a folder, and those above it, if they were created inside and are empty."""
    new = [folder for folder in (Path(path), *Path(path).parents) if not os.path.lexists(folder)]
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # something is in it, or it cannot be the name of a folder
            for folder in new:
                folder.rmdir()


def check_writable(folder: str | Path) -> None:
    """Raise `ValueError` if no file can be created in a folder."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise unwritable(folder, error) from error


def check_replaceable(path: Path) -> None:
    """Raise `ValueError` if a file cannot be written atomically, whether there is one already or not."""
    try:
        if path.exists():
            check_regular(path.stat().st_mode)
        _partial(path).touch()
        _partial(path).unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def check_own(path: Path, maker: str) -> None:
    """Raise `ValueError` if there is a file that somebody else wrote; an empty one has nothing to lose."""
    if path.is_file() and path.stat().st_size and made_by(path) != maker:
        raise ValueError(f"{str(path)!r} was not written by {maker}: name another file")


def _partial(path: Path) -> Path:
    """Where a file is written before it is moved into place."""
    return path.parent / f".{path.name}.{os.getpid()}.partial"


def unwritable(path: str | Path, error: OSError) -> ValueError:
    """The same error about what was asked for."""
    return ValueError(f"cannot write to {str(path)!r} ({error.strerror})")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes; anything else raises `OSError`.

    Reading a pipe could block, and a device never ends.
    """
    check_regular(os.stat(path).st_mode)
    with open(path, "rb", opener=_open_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        check_regular(status.st_mode)  # it may have been replaced meanwhile
        content = stream.read(limit + 1) if status.st_size <= limit else b""
        if status.st_size > limit or len(content) > limit:
            raise OSError(None, f"larger than the limit of {limit / 1e6:g} MB")
        return content


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_regular(mode: int) -> None:
    """Raise `OSError` unless the mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        raise OSError(None, f"{SPECIAL.get(stat.S_IFMT(mode), 'something else')}, not a file")


def reason(error: Exception) -> str:
    """Message of an error, without its number and file name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def printable(text: str) -> str:
    """Put untrusted text on one line, replacing what is not printable or would control a terminal.

    >>> printable("two\\nlines, and a byte: \\udcff"), printable("\\x1b[31mred")
    ('two lines, and a byte: \ufffd', '\ufffd[31mred')
    """
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() or letter in JOINERS else "\ufffd" for letter in line)


def visible(text: str) -> str:
    """Replace what would control a terminal, but leave lines and columns as they are.

    >>> visible("a  b\\n\\x1b[31mred"), visible("1\\xa0000\\r")
    ('a  b\\n�[31mred', '1 000 ')
    """
    kept = (*JOINERS, "\n", "\t")
    return "".join(
        letter if letter.isprintable() or letter in kept else " " if letter.isspace() else "\ufffd" for letter in text
    )


def say(text: object, *, error: bool = False, flush: bool = False) -> None:
    """Print something that may have names in it which others chose, on stdout or on stderr."""
    print(visible(str(text)), file=sys.stderr if error else sys.stdout, flush=flush)


def in_words(error: BaseException) -> str:
    """An error as one line, with the file that it is about, and without its number."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename!r}" if error.filename else ""
        return f"{error.strerror}{where}"
    return printable(str(error)) or type(error).__name__


def read_text(path: str | Path, limit: int) -> str:
    """Read a UTF-8 text file of at most ``limit`` bytes; anything else raises `ValueError`."""
    try:
        return read_bytes(path, limit).decode()
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {reason(error)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is not a text file (UTF-8)") from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path that replaces ``path`` on success; on error nothing changes."""
    path = Path(path)
    partial = _partial(path)
    try:
        if path.exists():
            check_regular(path.stat().st_mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            error.errno, f"could not write {str(path)!r} ({error.strerror or error}); any earlier version is untouched"
        ) from error
    finally:
        with suppress(OSError):  # it was moved, or never written
            partial.unlink()


def to_json(content: Any) -> str:
    """Serialise to strict JSON; NaN and infinite numbers, which JSON lacks, raise `ValueError`."""
    try:
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        raise ValueError("JSON cannot represent a number that is not finite (NaN or infinite)") from error


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file atomically."""
    text = to_json(content)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_manifest(path: Path) -> dict[str, Any]:
    """What a manifest says; nothing if it cannot be read."""
    try:
        content = json.loads(read_text(path, LARGEST_MANIFEST))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def made_by(manifest: Path) -> str | None:
    """The ``made_by`` entry of a manifest; None if the manifest cannot be read or has none."""
    return read_manifest(manifest).get("made_by")
