"""Settings from the command line and from files, with jsonargparse: all that can be said about them without torch."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace, set_loader, set_parsing_settings

from visattn.cli import notation
from visattn.cli.flags import check_flags, check_number, pairs, values_of
from visattn.cli.parser_messages import one_line
from visattn.cli.settings_files import check_config, check_stays, config_path, with_config_of_resumed_run
from visattn.cli.streams import Printing
from visattn.cli.trainer_flags import trainer_flags
from visattn.files import at_home, straight
from visattn.training.settings import ALONE, Settings

PATHS = ("root", "subset", "out", "resume")
NOTATION = "yaml_1.2"  # jsonargparse's name for our loader


class TrainingParser(ArgumentParser, Printing):
    """jsonargparse's parser, which says if its help cannot be printed."""


def create_parser(prog: str) -> ArgumentParser:
    """Create the parser, with one flag per setting."""
    set_parsing_settings(import_path_denylist=["*"], instantiate_subclass_spec_in_any=False)
    set_loader(NOTATION, notation.load, exceptions=(yaml.YAMLError, ValueError))
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
    return parser


def read_settings(argv: Sequence[str], prog: str) -> Settings:
    """Read the settings, or print the help; what Lightning's own flags are given is not looked at."""
    parser = create_parser(prog)
    lightning = parser.add_argument_group("options of Lightning's Trainer")
    lightning.add_argument("--trainer.help", action="help", help="the same, with all classes that can be named here")
    names = []
    for name, text in trainer_flags():
        lightning.add_argument(f"--trainer.{name}", default=SUPPRESS, help=text.replace("%", "%%"))
        names.append(f"trainer.{name}")
    known = {"trainer", *names, *(field.name for field in fields(Settings))}
    arguments = with_files(argv)
    check_flags(arguments, known)
    for path in map(Path, values_of(arguments, "--config")):
        check_config(path, known)
    for flag, value in pairs(arguments):
        check_number(*(value.split("=", 1) if value.startswith("--") and "=" in value else (flag, value)))
    values = parsed(parser, [*_without_trainer(arguments)])
    for field in fields(Settings):
        if values[field.name] is None and field.default is not None:
            raise ValueError(f"{field.name} is empty; omit it to use the default, {field.default!r}")
    given = {field.name: values[field.name] for field in fields(Settings)}
    paths = {key: at_home(given[key]) for key in PATHS if given[key] is not None}
    settings = Settings(**given | paths | {"out": straight(paths["out"])})
    check_stays(settings)
    return settings


def with_files(argv: Sequence[str]) -> list[str]:
    """The arguments, with those of a resumed run before them, and with the paths of all files."""
    found = []
    for before, value in pairs(list(with_config_of_resumed_run(list(argv)))):
        flag, equals, name = value.partition("=")
        if before == "--config":
            found.append(config_path(value))
        else:
            found.append(f"--config={config_path(name)}" if equals and flag == "--config" else value)
    return found


def parsed(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """What jsonargparse makes of the arguments; what it objects to is a `ValueError` in one line."""
    try:
        return parser.parse_args(arguments)
    except ArgumentError as error:
        raise ValueError(one_line(" ".join(str(error).split()))) from None


def _without_trainer(arguments: Sequence[str]) -> Iterator[str]:
    for before, value in pairs(arguments):
        is_value = before.startswith("--trainer.") and "=" not in before and not value.startswith("--")
        if not is_value and not value.startswith("--trainer."):
            yield value
