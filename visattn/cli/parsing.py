"""Turn the command line and configuration files into a run: its settings, and arguments of Lightning's Trainer.

Files are data. They may name only Lightning's own classes; anything else is rejected before it is imported, and the
same holds on the command line. Your own code is loaded with ``--plugin`` (:mod:`visattn.models.plugins`).
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Union, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from lightning.pytorch import Trainer

from visattn.cli import notation
from visattn.cli.flags import MANAGED, values_of
from visattn.cli.parser_messages import one_line
from visattn.cli.settings_parser import NOTATION, create_parser, parsed, read_settings, with_files
from visattn.constants import ORIGIN
from visattn.files import at_home, printable
from visattn.listing import shown
from visattn.models.plugins import load_plugin
from visattn.training.settings import COMMAND, LARGEST_CONFIG, LONGEST_COMMAND, Settings

ABOVE_ZERO = {"check_val_every_n_epoch", "limit_train_batches", "val_check_interval"}

# Packages whose classes a trainer setting may name.
CLASSES = (
    *(f"lightning.pytorch.{kind}" for kind in ("accelerators", "callbacks", "loggers", "plugins", "profilers")),
    *("lightning.pytorch.strategies", "lightning.fabric.plugins"),
)


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
        if settings["model_options"]:  # where weights come from is in the command alone: no file may say it
            kept = {key: value for key, value in settings["model_options"].items() if key not in ORIGIN}
            settings["model_options"] = kept
        body = {**settings, **({"trainer": self.trainer_config} if self.trainer_config else {})}
        try:
            text = notation.dump(body)
        except yaml.representer.RepresenterError as error:
            name = getattr(error.args[-1], "__qualname__", shown(error.args[-1]))
            raise ValueError(f"--trainer: {name} cannot be written to a config.yaml") from None
        said = printable(" ".join(command))
        config = f"{COMMAND} {said[:LONGEST_COMMAND]}{'…' if len(said) > LONGEST_COMMAND else ''}\n{text}"
        if len(config.encode()) > LARGEST_CONFIG // 2:  # commands that resume it will be added
            raise ValueError(f"the settings are {len(config):,} letters long, too much for a config.yaml: give fewer")
        return config


def parse(argv: Sequence[str], prog: str = "train.py") -> CommandLine:
    """Parse a command line: ``--config`` files first, in order, then flags."""
    settings = read_settings(argv, prog)
    plugins = [load_plugin(at_home(name)).module for name in values_of(argv, "--plugin")]
    set_parsing_settings(import_path_allowlist=[*CLASSES, *plugins])
    parser = create_parser(prog)
    parser.add_class_arguments(Trainer, "trainer", skip=set(MANAGED), instantiate=False)
    next(action for action in parser._actions if action.dest == "trainer").help = SUPPRESS  # `check_flags` refuses it
    parser.add_argument("--trainer.help", action="help", help=SUPPRESS)
    defaults = parser.get_defaults().trainer.as_dict()
    given = parsed(parser, with_files(argv)).trainer
    chosen = {key: value for key, value in given.as_dict().items() if value != defaults[key]}
    for key in chosen:
        if key in ABOVE_ZERO and isinstance(chosen[key], int | float) and not chosen[key] > 0:
            raise ValueError(f"--trainer.{key} must be above 0, got {chosen[key]}")
        if isinstance(chosen[key], str) and chosen[key].lstrip().startswith(("{", "[")):
            _check_class(parser, f"trainer.{key}", chosen[key])
    try:
        objects = parser.instantiate(Namespace(trainer=Namespace(**{key: given[key] for key in chosen})))
    except Exception as error:  # a class of Lightning's or of a plugin can raise anything
        reason = one_line(" ".join(str(error).split()))[:300]
        raise ValueError(f"--trainer: {type(error).__name__}: {reason}") from error
    config = {key: _without_defaults(value) for key, value in chosen.items()}
    return CommandLine(settings, {key: objects.trainer[key] for key in chosen}, config)


def _check_class(parser: ArgumentParser, key: str, value: str) -> None:
    """Raise for a class that could not be read, and was taken for a word, where words are possible too."""
    hint = next(action for action in parser._actions if action.dest == key)._typehint  # type: ignore[attr-defined]
    strict = ArgumentParser(exit_on_error=False, parser_mode=NOTATION)
    strict.add_argument(f"--{key}", type=Union[tuple(each for each in get_args(hint) if each is not str)])  # noqa: UP007
    parsed(strict, [f"--{key}={value}"])


def _without_defaults(value: Any) -> Any:
    """A setting without the arguments of classes that have their default, which need not be something YAML can hold."""
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if not isinstance(value, dict) or "class_path" not in value:
        return value
    module, _, name = value["class_path"].rpartition(".")
    bases = getattr(import_module(module), name).__mro__  # the parser has checked and imported it
    defaults = {
        key: each.default for base in reversed(bases) for key, each in signature(base.__init__).parameters.items()
    }
    given = {
        key: each for key, each in value.get("init_args", {}).items() if each != defaults.get(key, Parameter.empty)
    }
    return {**value, "init_args": {key: _without_defaults(each) for key, each in given.items()}}
