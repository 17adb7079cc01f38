"""The folder of a run: its name and its contents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visattn.files import check_writable, read_text, replacing, unwritable
from visattn.training import slurm
from visattn.training.claims import alone
from visattn.training.settings import ALONE, COMMAND, LARGEST_CONFIG, Settings

FOLDERS = ("checkpoints", "tensorboard", "film")  # inside that of a run


@dataclass(frozen=True)
class Run:
    """A run's folder.

    Args:
        folder: where the run writes.
        checkpoint: what to resume from, if the run is resumed.
        is_new: the folder must not exist yet.
        best_epoch: of the run to resume, the one that ``best.ckpt`` is of.
    """

    folder: Path
    checkpoint: Path | None = None
    is_new: bool = False
    best_epoch: int | None = None

    @property
    def last(self) -> Path:
        """Checkpoint after the last epoch, to resume from."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        """Checkpoint after the epoch with the best validation accuracy."""
        return self.folder / "checkpoints" / "best.ckpt"

    def summary(self, best: dict[str, Any], seconds: float) -> str:
        """Summary of the results, and where they are."""
        files = {
            "heatmaps.png": "what the model looks at on validation images",
            "fixations.png": "where it looks, step by step",
            "film.png": "how its attention formed, epoch by epoch",
            "curves.png": "loss and accuracy",
            "confusion.png": "the confusion matrix",
            "model.safetensors": "the weights of the best epoch; model.json is their model card",
            "checkpoints/": "last.ckpt to resume from, best.ckpt",
            "metrics.csv": "a row per epoch",
            "tensorboard/": "for tensorboard --logdir",
            "config.yaml": "to repeat the run",
        }
        minutes, rest = divmod(round(seconds), 60)
        accuracy = "" if best["val_top1"] is None else f"best validation accuracy {best['val_top1']:.1%} "
        lines = [f"{accuracy}(epoch {best['epoch']}), {minutes} min {rest} s in total", f"{self.folder}/"]
        return "\n".join(
            [*lines, *(f"  {name:18} {text}" for name, text in files.items() if (self.folder / name).exists())]
        )


def start(run: Run, config: str) -> None:
    """Write the settings to the folder, below the commands of a resumed run: each once, and the last that fit."""
    now = config.splitlines()
    commands = [line for line in _config_of(run.folder).splitlines() if line.startswith("#") and line not in now]
    if slurm.job() is not None and _job_line() not in commands:
        commands.append(_job_line())
    while commands and sum(len(f"{line}\n".encode()) for line in (*commands, *now)) > LARGEST_CONFIG:
        del commands[0]
    with replacing(run.folder / "config.yaml") as partial:
        partial.write_text("".join(f"{line}\n" for line in commands) + config, encoding="utf-8")


def _config_of(folder: Path) -> str:
    """Text of the settings in a folder; nothing if there are none that can be read."""
    with suppress(ValueError):
        return read_text(folder / "config.yaml", LARGEST_CONFIG)
    return ""


def default_name(settings: Settings) -> str:
    """Default name of a run: model and data.

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
    """Find the folder of a run to resume, or choose a new one that does not exist yet.

    A job that SLURM restarts resumes its own run, recognised by the job id and the ``config``.
    """
    name, out = str(Path(settings.name or default_name(settings))), Path(settings.out)  # x/ is x
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
    return Run(folder, is_new=True)


@contextmanager
def claimed(settings: Settings, config: str) -> Iterator[Run]:
    """Create the folder of the run of `find_run`, which no other process may train in meanwhile.

    Runs that start at the same time get one each. If an error occurs inside, folders that were created and are still
    empty are removed again.
    """
    while True:
        run = find_run(settings, config)
        _check_own(run.folder)
        made = [folder for folder in (run.folder, *run.folder.parents) if not os.path.lexists(folder)]
        try:
            run.folder.mkdir(parents=True, exist_ok=not run.is_new)
            break
        except OSError as error:
            if isinstance(error, FileExistsError) and run.is_new and os.path.lexists(run.folder):
                continue  # another run was faster
            _remove_empty(made)
            raise unwritable(error.filename, error) from error
    try:
        for folder in (run.folder, *(run.folder / name for name in FOLDERS)):
            if folder.is_dir():
                check_writable(folder)  # now, rather than after an epoch
        with alone(run.folder):
            yield run
    except BaseException:
        _remove_empty(made)
        raise


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _is_own(folder: Path, config: str) -> bool:
    text = _config_of(folder)
    return _job_line() in text.splitlines() and text.endswith(config)


def _check_own(folder: Path) -> None:
    """Raise if a folder has files in it, but not those of a run, which would be replaced."""
    if not folder.is_dir() or Run(folder).last.is_file() or all(path.name.startswith(".") for path in folder.iterdir()):
        return
    if not any(line.startswith(COMMAND) for line in _config_of(folder).splitlines()):
        raise ValueError(
            f"{str(folder)!r} is not the folder of a run, and its files might be replaced: give another --name, or "
            "--resume the folder of a run"
        )


def _named(path: Path) -> Run:
    if path.is_dir():
        run = Run(path)
        if not run.last.is_file():
            raise ValueError(f"{str(path)!r} has no checkpoint to resume from (checkpoints/last.ckpt)")
        if not (path / "config.yaml").is_file():
            raise ValueError(
                f"{str(path)!r} has lost its config.yaml, the settings of the run: give them again, with --resume "
                f"{str(run.last)!r}"
            )
        return Run(path, run.last)
    if not path.is_file():
        raise ValueError(f"--resume: no such run or checkpoint: {str(path)!r}")
    return Run(path.parent.parent if path.parent.name == "checkpoints" else path.parent, path)


def _number(folder: Path, name: str) -> int:
    suffix = folder.name.removeprefix(Path(name).name)
    return int(suffix.removeprefix("-run")) if suffix else 1


def _versions(out: Path, name: str) -> list[Path]:
    """Folders of the runs with a name, oldest first; the first one even if it does not exist yet."""
    pattern = re.compile(re.escape(Path(name).name) + r"-run\d+")
    folder = (out / name).parent
    later = [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []
    return [out / name, *sorted(later, key=lambda path: _number(path, name))]
