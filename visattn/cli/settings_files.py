"""Files of settings: where they are, and whether what they say is known, before jsonargparse sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from visattn.cli import notation
from visattn.cli.flags import MANAGED, check_number, closest, pairs
from visattn.files import at_home, configs_folder, read_text
from visattn.listing import shown
from visattn.registry import suggest
from visattn.training.settings import ALONE, LARGEST_CONFIG, Settings, origin_in


def config_path(name: str) -> str:
    """Path of a file, or of a configuration bundled with visattn."""
    name = at_home(name)
    if Path(name).is_file():
        return name
    stem = name.removeprefix("configs/").removesuffix(".yaml")
    known = {file.stem: str(file) for file in configs_folder().glob("*.yaml")}
    if stem not in known:
        raise ValueError(f"unknown configuration {name!r}: {suggest(stem, known)}")
    return known[stem]


def _read_config(path: Path) -> Any:
    """Read a settings file as plain data."""
    text = read_text(path, LARGEST_CONFIG)
    try:
        return notation.load(text)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ValueError(f"{path} is not YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def check_config(path: Path, known: set[str]) -> None:
    """Raise for a key or a value that cannot be a setting, with the name of the file."""
    values = _read_config(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a settings file: expected 'key: value' on every line")
    for key, what in (("plugin", "a plugin"), ("resume", "a run to resume")):
        if key in values:
            raise ValueError(f"{path} names {what}, which a file may not do: use --{key} on the command line")
    for key in values:
        if "." in str(key) and key in known:
            raise ValueError(f"{key!r} in {path}: write {str(key).partition('.')[2]!r} below 'trainer:'")
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {path}: {closest(str(key), known)}")
        check_number(f"--{key}", values[key])
        if key == "model_options" and (named := origin_in(values[key])) is not None:
            raise ValueError(
                f"{path} cannot set {named!r}: where weights come from is said on the command line (--model-options); "
                "delete it from the file, also if an earlier version wrote it"
            )
        if get_type_hints(Settings).get(key) is bool and not isinstance(values[key], bool):
            raise ValueError(f"{key!r} in {path} is {shown(values[key])}, not true or false")
    trainer = values.get("trainer", {})
    if not isinstance(trainer, dict):
        raise ValueError(f"'trainer' in {path} must map Trainer arguments to values, got {shown(trainer)}")
    for key in trainer:
        if key in MANAGED:
            raise ValueError(f"'trainer.{key}' in {path} cannot be set there: {MANAGED[key]}")
        if f"trainer.{key}" not in known:
            raise ValueError(f"unknown key 'trainer.{key}' in {path}: {closest(f'trainer.{key}', known)}")
        check_number(f"--trainer.{key}", trainer[key])


def with_config_of_resumed_run(arguments: list[str]) -> Iterator[str]:
    """Prepend the settings of a resumed run, so that ``--resume FOLDER`` alone is enough."""
    for before, value in pairs(arguments):
        path = value.partition("=")[2] if value.startswith("--resume=") else value if before == "--resume" else ""
        path = at_home(path)
        if path and not path.startswith("--") and (config := _config_of_run(path)) is not None:
            yield from ("--config", str(config))
    yield from arguments


def _config_of_run(path: str) -> Path | None:
    """The settings of a run, given its folder or one of its checkpoints."""
    folders = (Path(path), Path(path).parent, Path(path).parent.parent)
    return next((folder / "config.yaml" for folder in folders if (folder / "config.yaml").is_file()), None)


def check_stays(settings: Settings) -> None:
    """Raise if a run that is resumed by its folder is given another one to write to."""
    config = None if settings.resume in (None, ALONE) else _config_of_run(settings.resume)
    if config is None:
        return
    own = _read_config(config)
    for key in ("name", "out"):
        if (value := getattr(settings, key)) not in (getattr(Settings, key), own.get(key, value)):
            raise ValueError(f"--{key} {value!r}: a resumed run stays in its folder, {str(config.parent)!r}")
