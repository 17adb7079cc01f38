"""The folder of a run: what it is called and what lies in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visattn.files import replacing
from visattn.training import slurm
from visattn.training.settings import Settings

ALONE = "last"  # what --resume without a value stands for


@dataclass(frozen=True)
class Run:
    """A run's folder.

    Args:
        folder: all that the run writes.
        checkpoint: where to go on, if the run is resumed.
    """

    folder: Path
    checkpoint: Path | None = None

    @property
    def last(self) -> Path:
        """The state after the last epoch, to resume from."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        """The state after the epoch with the best validation accuracy."""
        return self.folder / "checkpoints" / "best.ckpt"

    def summary(self, best: dict[str, Any], seconds: float) -> str:
        """What came of it, and where it lies."""
        files = {
            "heatmaps.png": "validation images with what the model looks at",
            "fixations.png": "where it looks, step by step",
            "film.png": "how that came about",
            "curves.png": "loss and accuracy",
            "confusion.png": "the confusion matrix: which classes are mistaken for which",
            "model.safetensors": "the weights of the best epoch, with model.json",
            "checkpoints/": "last.ckpt to resume from, best.ckpt",
            "metrics.csv": "a row per epoch",
            "tensorboard/": "for tensorboard --logdir",
            "config.yaml": "to repeat the run",
        }
        minutes, rest = divmod(round(seconds), 60)
        accuracy = "" if best["val_top1"] is None else f"best validation accuracy {best['val_top1']:.1%} "
        lines = [f"{accuracy}(epoch {best['epoch']}), {minutes} min {rest} s in all", f"{self.folder}/"]
        return "\n".join(
            [*lines, *(f"  {name:18} {text}" for name, text in files.items() if (self.folder / name).exists())]
        )


def start(run: Run, config: str) -> None:
    """Note the settings in the folder, below the commands of a run that is resumed."""
    path = run.folder / "config.yaml"
    before = path.read_text().splitlines() if path.is_file() else []
    commands = [line for line in before if line.startswith("#")]
    if slurm.job() is not None and _job_line() not in commands:
        commands.append(_job_line())
    with replacing(path) as partial:
        partial.write_text("".join(f"{line}\n" for line in commands) + config)


def default_name(settings: Settings) -> str:
    """Model and data.

    >>> default_name(Settings(model="resnet50", attn="cbam", data="imagenette"))
    'resnet50_cbam-imagenette'
    """
    model = settings.model if settings.attn is None else f"{settings.model}_{settings.attn}"
    data = settings.data if settings.subset is None else f"{settings.data}-{Path(settings.subset).stem}"
    if settings.data == "folder" and settings.root is not None:
        data = Path(settings.root).resolve().name
    return re.sub(r"[^\w.-]+", "-", f"{model}-{data}")


def _job_line() -> str:
    return f"# SLURM job {slurm.job()}"


def find_run(settings: Settings, config: str) -> Run:
    """The folder of a run to resume, or of a new one: never one that has something in it already.

    A job that SLURM starts again resumes its own run, which is known by the job's number and the ``config``.
    """
    name, out = settings.name or default_name(settings), Path(settings.out)
    if settings.resume == ALONE:
        runs = [Run(folder) for folder in _versions(out, name)]
        begun = [run for run in runs if run.last.is_file()]
        return Run(begun[-1].folder, begun[-1].last) if begun else runs[-1]
    if settings.resume is not None:
        return _named(Path(settings.resume))
    folder = out / name
    taken = [version for version in _versions(out, name) if os.path.lexists(version)]
    own = [Run(version) for version in taken if slurm.is_restarted() and _is_own(version, config)]
    if own:
        return Run(own[-1].folder, own[-1].last if own[-1].last.is_file() else None)
    if taken:
        folder = out / f"{name}-run{_number(taken[-1], name) + 1}"
    return Run(folder)


@contextmanager
def claimed(settings: Settings, config: str) -> Iterator[Run]:
    """The run of `find_run` with its folder made, so that runs that start at once have one each.

    If it comes to an error inside, folders that were made and are still empty are taken away again.
    """
    while True:
        run = find_run(settings, config)
        made = [folder for folder in (run.folder, *run.folder.parents) if not os.path.lexists(folder)]
        try:
            run.folder.mkdir(parents=True, exist_ok=run.folder not in made)
            break
        except FileExistsError:
            if run.folder not in made:  # a file is in the way
                raise
    try:
        yield run
    except BaseException:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


def _is_own(folder: Path, config: str) -> bool:
    path = folder / "config.yaml"
    text = path.read_text() if path.is_file() else ""
    return _job_line() in text.splitlines() and text.endswith(config)


def _named(path: Path) -> Run:
    if path.is_dir():
        run = Run(path)
        if not run.last.is_file():
            raise ValueError(f"{str(path)!r} has no checkpoint to resume from (checkpoints/last.ckpt)")
        return Run(path, run.last)
    if not path.is_file():
        raise ValueError(f"--resume: there is no run and no checkpoint {str(path)!r}")
    return Run(path.parent.parent if path.parent.name == "checkpoints" else path.parent, path)


def _number(folder: Path, name: str) -> int:
    suffix = folder.name.removeprefix(Path(name).name)
    return int(suffix.removeprefix("-run")) if suffix else 1


def _versions(out: Path, name: str) -> list[Path]:
    """The runs of a name, oldest first; the first one even if it is not there yet."""
    pattern = re.compile(re.escape(Path(name).name) + r"-run\d+")
    folder = (out / name).parent
    later = [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []
    return [out / name, *sorted(later, key=lambda path: _number(path, name))]
