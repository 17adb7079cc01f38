"""Files that come with visattn."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def configs_folder() -> Path:
    """``configs``: inside the package when it is installed, beside it in a clone of the repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
