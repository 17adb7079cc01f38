"""Imagenette and Imagewoof: found on disk, or downloaded once."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

from torchvision.datasets.utils import download_url, extract_archive

from visattn.data.once import fetched


@dataclass(frozen=True)
class Archive:
    """An archive of fast.ai's images, 320 pixels on the shorter side (https://github.com/fastai/imagenette)."""

    folder: str
    algorithm: str
    digest: str

    @property
    def url(self) -> str:
        """Address of the archive."""
        return f"https://s3.amazonaws.com/fast-ai-imageclas/{self.folder}.tgz"


ARCHIVES = {
    "imagenette": Archive("imagenette2-320", "md5", "3df6f0d01a2c9592104656642f5e78a3"),
    "imagewoof": Archive(
        "imagewoof2-320", "sha256", "4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d"
    ),
}


def find_or_download(name: str, root: Path) -> Path:
    """Return the folder that contains ``train`` and ``val``; one process downloads it while the others wait."""
    return fetched(lambda: _find(name, root), lambda: _download(ARCHIVES[name], root), root / f".{name}.lock")


def _find(name: str, root: Path) -> Path | None:
    candidates = [root, *(root / f"{name}2{size}" for size in ("", "-320", "-160"))]
    return next((each for each in candidates if (each / "train").is_dir() and (each / "val").is_dir()), None)


def _download(archive: Archive, root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
        file = Path(scratch, f"{archive.folder}.tgz")
        try:
            download_url(archive.url, scratch, file.name)
        except (URLError, OSError, RuntimeError) as error:
            raise ValueError(
                f"could not download {archive.url} ({error}); if you are offline, unpack that file into {str(root)!r}, "
                "or pass the folder that contains train/ and val/ with --root"
            ) from None
        if (digest := _digest(file, archive.algorithm)) != archive.digest:
            raise ValueError(f"{archive.url} has changed: its {archive.algorithm} is {digest}")
        extract_archive(str(file), scratch)
        try:
            Path(scratch, archive.folder).rename(root / archive.folder)  # atomic
        except OSError:
            if not (root / archive.folder).is_dir():  # another process was faster, where files cannot be locked
                raise


def _digest(file: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
