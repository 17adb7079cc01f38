"""Files that come with visattn, and how it writes its own: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).parent


def configs_folder() -> Path:
    """``configs``: inside the package when it is installed, beside it in a clone of the repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes its place when it is complete; after an error nothing has changed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            error.errno, f"could not write {str(path)!r} ({error.strerror or error}); the file from before is untouched"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
