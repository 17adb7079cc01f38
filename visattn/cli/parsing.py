"""Turn the command line and configuration files into settings, with jsonargparse.

Files are data. They may name only Lightning's own classes; anything else is rejected before it is imported, and the
same holds on the command line. Your own code is loaded with ``--plugin`` (:mod:`visattn.models.plugins`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace, set_loader, set_parsing_settings
from lightning.pytorch import Trainer

from visattn.cli import notation
from visattn.cli.streams import Printing
from visattn.files import at_home, configs_folder, read_text, straight
from visattn.listing import shown
from visattn.models.plugins import load_plugin
from visattn.registry import suggest
from visattn.training.runs import ALONE
from visattn.training.settings import Settings

# Trainer arguments that visattn manages itself, and what to do instead.
MANAGED = {
    "accumulate_grad_batches": "use --accumulate",
    "barebones": "a run always keeps its logs and checkpoints",
    "default_root_dir": "use --out and --name",
    "devices": "use --devices",
    "enable_checkpointing": "a run always saves its last and best epochs",
    "fast_dev_run": "try --epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 2",
    "gradient_clip_val": "use --clip-grad",
    "max_epochs": "use --epochs",
    "num_nodes": "use --num-nodes",
    "overfit_batches": "try --trainer.limit_train_batches 2 --augment none",
    "precision": "use --precision",
    "use_distributed_sampler": "images are always split among the processes",
}

PATHS = ("root", "subset", "out", "resume")
ABOVE_ZERO = {"check_val_every_n_epoch", "limit_train_batches", "val_check_interval"}

# Packages whose classes a trainer setting may name.
CLASSES = (
    *(f"lightning.pytorch.{kind}" for kind in ("accelerators", "callbacks", "loggers", "plugins", "profilers")),
    *("lightning.pytorch.strategies", "lightning.fabric.plugins"),
)
LARGEST = 100_000  # bytes of a configuration
NOTATION = "yaml_1.2"  # jsonargparse's name for our loader


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Args:
        settings: settings of the run.
        trainer: non-default arguments of Lightning's Trainer, as objects.
        trainer_config: the same arguments as they are written in a file.
    """

    settings: Settings
    trainer: dict[str, Any]
    trainer_config: dict[str, Any]

    def to_yaml(self, command: Sequence[str]) -> str:
        """Serialise everything needed to repeat the run."""
        settings = {key: value for key, value in asdict(self.settings).items() if key not in ("resume",)}
        body = {**settings, **({"trainer": self.trainer_config} if self.trainer_config else {})}
        try:
            return f"# python train.py {' '.join(' '.join(command).split())}\n" + yaml.safe_dump(body, sort_keys=False)
        except yaml.representer.RepresenterError as error:
            name = getattr(error.args[-1], "__qualname__", shown(error.args[-1]))
            raise ValueError(f"--trainer: {name} cannot be written to a config.yaml") from None


class TrainingParser(ArgumentParser, Printing):
    """jsonargparse's parser, which says if its help cannot be printed."""


def create_parser(prog: str) -> ArgumentParser:
    """Create the parser: one flag per setting, and ``--trainer.*`` for Lightning's own options."""
    parser = TrainingParser(
        prog=prog,
        description="Train any visattn or timm model. Without arguments: a ResNet-18 with CBAM on the bundled digits.",
        exit_on_error=False,
        parser_mode=NOTATION,
    )
    parser.add_argument("--config", action="config", help="a file of settings, or a bundled one by name: imagenette")
    parser.add_argument("--plugin", action="append", default=[], help="your own code to load: my_file.py or my.module")
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


def parse(argv: Sequence[str], prog: str = "train.py") -> CommandLine:
    """Parse a command line: ``--config`` files first, in order, then flags."""
    plugins = [load_plugin(at_home(name)).module for name in _values(argv, "--plugin")]
    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[*CLASSES, *plugins],
        instantiate_subclass_spec_in_any=False,
    )
    set_loader(NOTATION, notation.load, exceptions=(yaml.YAMLError, ValueError))
    parser = create_parser(prog)
    defaults = parser.get_defaults()
    known = set(_keys(defaults.as_dict())) - {"config", "plugin"}
    arguments = list(_with_config_of_resumed_run(list(argv)))
    _check_flags(arguments, known)
    arguments = [_config_path(value) if before == "--config" else value for before, value in _pairs(arguments)]
    arguments = [
        f"--config={_config_path(value.partition('=')[2])}" if value.startswith("--config=") else value
        for value in arguments
    ]
    for path in map(Path, _values(arguments, "--config")):
        _check_config(path, known)
    for flag, value in _pairs(arguments):
        _check_number(*(value.split("=", 1) if value.startswith("--") and "=" in value else (flag, value)))
    try:
        values = parser.parse_args(arguments)
    except ArgumentError as error:
        raise ValueError(_one_line(" ".join(str(error).split()))) from None
    chosen = {key: value for key, value in values.trainer.as_dict().items() if value != defaults.trainer.as_dict()[key]}
    for key in ABOVE_ZERO & chosen.keys():
        if isinstance(chosen[key], int | float) and not chosen[key] > 0:
            raise ValueError(f"--trainer.{key} must be above 0, got {chosen[key]}")
    try:
        objects = parser.instantiate(Namespace(trainer=Namespace(**{key: values.trainer[key] for key in chosen})))
    except Exception as error:  # a class of Lightning's or of a plugin can raise anything
        reason = _one_line(" ".join(str(error).split()))[:300]
        raise ValueError(f"--trainer: {type(error).__name__}: {reason}") from error
    for field in fields(Settings):
        if values[field.name] is None and field.default is not None:
            raise ValueError(f"{field.name} is empty; omit it to use the default, {field.default!r}")
    given = {field.name: values[field.name] for field in fields(Settings)}
    paths = {key: at_home(given[key]) for key in PATHS if given[key] is not None}
    settings = Settings(**given | paths | {"out": straight(paths["out"])})
    return CommandLine(settings, {key: objects.trainer[key] for key in chosen}, chosen)


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
        if key == "trainer":
            raise ValueError("--trainer takes no value: use --trainer.NAME, or 'trainer:' in a --config file")
        if key in known | {"help", "config", "plugin"} or key.removeprefix("no_") in known:
            continue
        if any(key.startswith(f"{each}.") for each in known - {"trainer"}):
            continue  # a key inside a dictionary or class: jsonargparse checks it
        if (reason := MANAGED.get(key.removeprefix("trainer."))) is not None:
            raise ValueError(f"{argument.partition('=')[0]!r} cannot be set here: {reason}")
        flags = {f"--{each}" if "." in each else f"--{each.replace('_', '-')}" for each in known}
        raise ValueError(f"unknown flag {argument.partition('=')[0]!r}: {_closest(argument.partition('=')[0], flags)}")


def _check_number(flag: str, value: Any) -> None:
    """Raise for the time of a day where a number is expected."""
    types = get_type_hints(Settings).get(_key(flag), int if flag.count(".") == 1 else str)
    wanted = {types, *get_args(types)} & {int, float}
    if wanted and flag != "--trainer.max_time" and isinstance(value, str) and notation.CLOCK.fullmatch(value):
        raise ValueError(f"{_key(flag)}: expected {wanted.pop().__name__}. Got value: {value}")


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
    """Path of a file, or of a configuration bundled with visattn."""
    name = at_home(name)
    if Path(name).is_file():
        return name
    stem = Path(name).name.removesuffix(".yaml")
    known = {file.stem: str(file) for file in configs_folder().glob("*.yaml")}
    if stem not in known:
        raise ValueError(f"unknown configuration {name!r}: {suggest(stem, known)}")
    return known[stem]


def _values(arguments: Sequence[str], flag: str) -> Iterator[str]:
    """All values given for a flag."""
    for before, value in _pairs(arguments):
        if before == flag:
            yield value
        elif value.startswith(f"{flag}="):
            yield value.partition("=")[2]


def _one_line(message: str) -> str:
    """Condense an error message of jsonargparse into one readable line."""
    key = re.search(r'Parser key "([\w.]+)"', message)
    where = f"{key[1]}: " if key else ""
    if denied := re.search(r"Importing '([^']*)' is not allowed", message):
        return (
            f"{where}{denied[1]!r} is not one of Lightning's callbacks, loggers, profilers, strategies or plugins; "
            "load your own code with --plugin on the command line"
        )
    argument = r'Parser key "[\w.]+": Does not validate.*?Given value: .*?(?= - |$)'  # of the class
    end = r"(?= - Expected a| Given value|$)"
    problem = re.search(rf"Problem with given class_path '([\w.]+)': ({argument}|.*?{end})", message)
    if problem and "Not a valid subclass" not in problem[2]:
        return f"{where}{problem[1].rpartition('.')[2]}: {_one_line(problem[2])}"[:400]
    types, given = re.search(r"Subtypes: (\[.*?\]) Errors:", message), re.search(r"Given value: ?(.*)$", message)
    if key and types and given:
        names = re.sub(r"<class '([\w.]+)'>", r"\1", types[1][1:-1])
        names = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", names).replace("NoneType", "nothing")
        return f"{where}expected {names}; got {given[1][:100] or 'nothing at all'}"
    kind = r"Parser key \"([\w.]+)\": Expected a (?:<class '(\w+)'>|typing\.Literal(\[.*?\]))\."
    return re.sub(kind, r"\1: expected \2\3.", message)[:400]


def _read_config(path: Path) -> Any:
    """Read a settings file as plain data."""
    text = read_text(path, LARGEST)
    try:
        return notation.load(text)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ValueError(f"{path} is not YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def _check_config(path: Path, known: set[str]) -> None:
    values = _read_config(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a settings file: expected 'key: value' on every line")
    if "plugin" in values:
        raise ValueError(f"{path} names a plugin, which a file may not do: use --plugin on the command line")
    for key in values:
        if "." in str(key) and key in known:
            raise ValueError(f"{key!r} in {path}: write {str(key).partition('.')[2]!r} below 'trainer:'")
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {path}: {_closest(str(key), known)}")
        _check_number(f"--{key}", values[key])
        if get_type_hints(Settings).get(key) is bool and not isinstance(values[key], bool):
            raise ValueError(f"{key!r} in {path} is {shown(values[key])}, not true or false")
    trainer = values.get("trainer") or {}
    if not isinstance(trainer, dict):
        raise ValueError(f"'trainer' in {path} must map Trainer arguments to values, got {shown(trainer)}")
    for key in trainer:
        if key in MANAGED:
            raise ValueError(f"'trainer.{key}' in {path} cannot be set there: {MANAGED[key]}")
        if f"trainer.{key}" not in known:
            raise ValueError(f"unknown key 'trainer.{key}' in {path}: {_closest(f'trainer.{key}', known)}")
        _check_number(f"--trainer.{key}", trainer[key])


def _with_config_of_resumed_run(arguments: list[str]) -> Iterator[str]:
    """Prepend the settings of a resumed run, so that ``--resume FOLDER`` alone is enough."""
    for before, value in _pairs(arguments):
        path = value.partition("=")[2] if value.startswith("--resume=") else value if before == "--resume" else ""
        path = at_home(path)
        if not path or path.startswith("--"):
            continue
        for folder in (Path(path), Path(path).parent, Path(path).parent.parent):
            if (folder / "config.yaml").is_file():
                yield from ("--config", str(folder / "config.yaml"))
                break
    yield from arguments
