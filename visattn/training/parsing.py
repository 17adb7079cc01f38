"""Command line and configuration files to settings, with jsonargparse."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace
from lightning.pytorch import Trainer

from visattn.files import configs_folder
from visattn.registry import suggest
from visattn.training.runs import ALONE
from visattn.training.settings import Settings

# The trainer's arguments that do not fit a run of visattn, and what to do instead.
MANAGED = {
    "default_root_dir": "--out and --name say where a run is written",
    "enable_checkpointing": "a run always keeps its last and its best epoch",
    "fast_dev_run": "try --epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 2",
    "overfit_batches": "try --trainer.limit_train_batches 2 --augment none",
    "use_distributed_sampler": "images are always shared out among the processes",
}


@dataclass(frozen=True)
class Request:
    """What a person asked for.

    Args:
        settings: of the run.
        trainer: arguments of Lightning's trainer that differ from Lightning's defaults, as objects,
        trainer_config: and as they are written in a file.
    """

    settings: Settings
    trainer: dict[str, Any]
    trainer_config: dict[str, Any]

    def to_yaml(self, command: Sequence[str]) -> str:
        """Everything needed to repeat the run."""
        settings = {key: value for key, value in asdict(self.settings).items() if key not in ("resume",)}
        body = {**settings, **({"trainer": self.trainer_config} if self.trainer_config else {})}
        return f"# python train.py {' '.join(command)}\n" + yaml.safe_dump(body, sort_keys=False)


def create_parser(prog: str) -> ArgumentParser:
    """The parser: one flag per setting, and ``--trainer.*`` for all that Lightning has."""
    parser = ArgumentParser(
        prog=prog,
        description="Train any visattn or timm model. Without arguments: a ResNet-18 with CBAM on the embedded digits.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="a file of settings, or the name of one: imagenette")
    types = get_type_hints(Settings)
    defaults = Settings()
    for field in fields(Settings):
        flag, text, default = f"--{field.name.replace('_', '-')}", field.metadata["help"], getattr(defaults, field.name)
        if types[field.name] is bool:
            parser.add_argument(flag, action=ActionYesNo(yes_prefix="", no_prefix="no-"), default=default, help=text)
        elif field.name == "resume":
            parser.add_argument(flag, type=types[field.name], nargs="?", const=ALONE, default=default, help=text)
        else:
            parser.add_argument(flag, type=types[field.name], default=default, help=text)
    parser.add_class_arguments(Trainer, "trainer", skip=set(MANAGED), instantiate=False)
    return parser


def parse(argv: Sequence[str], prog: str = "train.py") -> Request:
    """Settings from a command line; ``--config`` files first, in order, then flags."""
    parser = create_parser(prog)
    defaults = parser.get_defaults()
    known = set(_keys(defaults.as_dict()))
    arguments = list(_with_config_of_resumed_run(list(argv)))
    _check_flags(arguments, known)
    arguments = [_config_path(value) if before == "--config" else value for before, value in _pairs(arguments)]
    arguments = [
        f"--config={_config_path(value.partition('=')[2])}" if value.startswith("--config=") else value
        for value in arguments
    ]
    for path in _config_files(arguments):
        _check_config(path, known)
    try:
        values = parser.parse_args(arguments)
    except ArgumentError as error:
        message = " ".join(str(error).split())
        raise ValueError(
            re.sub(r"Parser key \"([\w.]+)\": Expected a <class '(\w+)'>\.", r"\1: expected \2.", message)
        ) from None
    chosen = {key: value for key, value in values.trainer.as_dict().items() if value != defaults.trainer.as_dict()[key]}
    objects = parser.instantiate(Namespace(trainer=Namespace(**{key: values.trainer[key] for key in chosen})))
    settings = Settings(**{field.name: values[field.name] for field in fields(Settings)})
    return Request(settings, {key: objects.trainer[key] for key in chosen}, chosen)


def devices(value: str) -> Any:
    """How many, or which ones.

    >>> devices("auto"), devices("2"), devices("[0, 2]")
    ('auto', 2, [0, 2])
    """
    try:
        return value if value == "auto" else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise ValueError(f"--devices {value!r}: a number, a list such as '[0, 2]', or auto") from None


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from zip(["", *arguments], arguments, strict=False)


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield prefix + key
        if key == "trainer":
            yield from _keys(value, "trainer.")


def _key(flag: str) -> str:
    return flag.removeprefix("--").partition("=")[0].removesuffix("+").replace("-", "_")


def _check_flags(arguments: Sequence[str], known: set[str]) -> None:
    for argument in arguments:
        if argument == "-h" or not argument.startswith("-") or _is_number(argument):
            continue
        key = _key(argument)
        if key in known | {"help", "config"} or key.removeprefix("no_") in known:
            continue
        if any(key.startswith(f"{each}.") for each in known - {"trainer"}):
            continue  # into a dictionary or a class: jsonargparse's business
        if (reason := MANAGED.get(key.removeprefix("trainer."))) is not None:
            raise ValueError(f"{argument.partition('=')[0]!r} cannot be set here: {reason}")
        flags = {f"--{each}" if "." in each else f"--{each.replace('_', '-')}" for each in known}
        raise ValueError(f"unknown flag {argument.partition('=')[0]!r}: {_closest(argument.partition('=')[0], flags)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _closest(key: str, known: set[str]) -> str:
    said = suggest(key, known)
    return said if said.startswith("did you mean") else "see --help"


def _config_path(name: str) -> str:
    """A file, or a configuration that comes with visattn."""
    if Path(name).is_file():
        return name
    stem = Path(name).name.removesuffix(".yaml")
    known = {file.stem: str(file) for file in configs_folder().glob("*.yaml")}
    if stem not in known:
        raise ValueError(f"there is no configuration {name!r}: {suggest(stem, known)}")
    return known[stem]


def _config_files(arguments: Sequence[str]) -> Iterator[Path]:
    for before, value in _pairs(arguments):
        if before == "--config":
            yield Path(value)
        elif value.startswith("--config="):
            yield Path(value.partition("=")[2])


def _check_config(path: Path, known: set[str]) -> None:
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a file of settings, 'key: value' in every line")
    for key in values:
        if key not in known or "." in str(key):
            raise ValueError(f"unknown key {key!r} in {path}: {_closest(str(key), known)}")
    for key in values.get("trainer") or {}:
        if f"trainer.{key}" not in known:
            raise ValueError(f"unknown key 'trainer.{key}' in {path}: {_closest(f'trainer.{key}', known)}")


def _with_config_of_resumed_run(arguments: list[str]) -> Iterator[str]:
    """``--resume FOLDER`` alone is enough: its own settings come first."""
    for before, value in _pairs(arguments):
        path = value.partition("=")[2] if value.startswith("--resume=") else value if before == "--resume" else ""
        if not path or path.startswith("--"):
            continue
        for folder in (Path(path), Path(path).parent, Path(path).parent.parent):
            if (folder / "config.yaml").is_file():
                yield from ("--config", str(folder / "config.yaml"))
                break
    yield from arguments
