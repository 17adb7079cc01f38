"""Turn the command line and configuration files into settings, with jsonargparse.

Files are data. They may name only Lightning's own classes; anything else is rejected before it is imported, and the
same holds on the command line. Your own code is loaded with ``--plugin`` (:mod:`visattn.models.plugins`).
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace, set_loader, set_parsing_settings
from lightning.pytorch import Trainer

from visattn.cli import notation
from visattn.cli.flags import MANAGED, check_flags, check_number, pairs, values_of
from visattn.cli.parser_messages import one_line
from visattn.cli.settings_files import check_config, check_stays, config_path, with_config_of_resumed_run
from visattn.cli.streams import Printing
from visattn.files import at_home, straight
from visattn.listing import shown
from visattn.models.plugins import load_plugin
from visattn.training.runs import ALONE
from visattn.training.settings import Settings

PATHS = ("root", "subset", "out", "resume")
ABOVE_ZERO = {"check_val_every_n_epoch", "limit_train_batches", "val_check_interval"}

# Packages whose classes a trainer setting may name.
CLASSES = (
    *(f"lightning.pytorch.{kind}" for kind in ("accelerators", "callbacks", "loggers", "plugins", "profilers")),
    *("lightning.pytorch.strategies", "lightning.fabric.plugins"),
)
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
        print_config=None,  # a run writes its config.yaml
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
    next(action for action in parser._actions if action.dest == "trainer").help = SUPPRESS  # `check_flags` refuses it
    return parser


def parse(argv: Sequence[str], prog: str = "train.py") -> CommandLine:
    """Parse a command line: ``--config`` files first, in order, then flags."""
    plugins = [load_plugin(at_home(name)).module for name in values_of(argv, "--plugin")]
    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[*CLASSES, *plugins],
        instantiate_subclass_spec_in_any=False,
    )
    set_loader(NOTATION, notation.load, exceptions=(yaml.YAMLError, ValueError))
    parser = create_parser(prog)
    defaults = parser.get_defaults()
    known = set(_keys(defaults.as_dict())) - {"config", "plugin"}
    arguments = list(with_config_of_resumed_run(list(argv)))
    check_flags(arguments, known)
    arguments = [config_path(value) if before == "--config" else value for before, value in pairs(arguments)]
    arguments = [
        f"--config={config_path(value.partition('=')[2])}" if value.startswith("--config=") else value
        for value in arguments
    ]
    for path in map(Path, values_of(arguments, "--config")):
        check_config(path, known)
    for flag, value in pairs(arguments):
        check_number(*(value.split("=", 1) if value.startswith("--") and "=" in value else (flag, value)))
    try:
        values = parser.parse_args(arguments)
    except ArgumentError as error:
        raise ValueError(one_line(" ".join(str(error).split()))) from None
    chosen = {key: value for key, value in values.trainer.as_dict().items() if value != defaults.trainer.as_dict()[key]}
    for key in ABOVE_ZERO & chosen.keys():
        if isinstance(chosen[key], int | float) and not chosen[key] > 0:
            raise ValueError(f"--trainer.{key} must be above 0, got {chosen[key]}")
    try:
        objects = parser.instantiate(Namespace(trainer=Namespace(**{key: values.trainer[key] for key in chosen})))
    except Exception as error:  # a class of Lightning's or of a plugin can raise anything
        reason = one_line(" ".join(str(error).split()))[:300]
        raise ValueError(f"--trainer: {type(error).__name__}: {reason}") from error
    for field in fields(Settings):
        if values[field.name] is None and field.default is not None:
            raise ValueError(f"{field.name} is empty; omit it to use the default, {field.default!r}")
    given = {field.name: values[field.name] for field in fields(Settings)}
    paths = {key: at_home(given[key]) for key in PATHS if given[key] is not None}
    settings = Settings(**given | paths | {"out": straight(paths["out"])})
    check_stays(settings)
    return CommandLine(settings, {key: objects.trainer[key] for key in chosen}, chosen)


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield prefix + key
        if key == "trainer":
            yield from _keys(value, "trainer.")
