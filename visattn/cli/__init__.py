"""The ``visattn`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import visattn
from visattn.cli import bench, blocks, evaluate, heatmap, places, predict
from visattn.cli.streams import Printing, make_writable, printed
from visattn.constants import NO_MEMORY
from visattn.files import at_home, printable, say, straight, without_empty_folders
from visattn.missing import MissingPackage, saying_what_to_install
from visattn_command import reading_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, return the exit code."""
    make_writable()
    try:
        with saying_what_to_install():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except MissingPackage as error:
        say(f"visattn: {error}", error=True)
        return 2


def _run(argv: list[str]) -> int:
    if argv[:1] == ["train"]:  # its flags are jsonargparse's
        from visattn.cli.train import main as train

        return train(argv[1:], prog="visattn train")
    parser = Printing(prog="visattn", description=visattn.__doc__)
    parser.add_argument("--version", action="version", version=f"visattn {visattn.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands.add_parser("train", help="train a model (visattn train --help)", add_help=False)
    heatmap.add_command(commands)
    evaluate.add_command(commands)
    predict.add_command(commands)
    blocks.add_command(commands)
    places.add_command(commands)
    bench.add_command(commands)
    for name, command in commands.choices.items():
        if name != "train":
            command.add_argument(
                "--plugin",
                metavar="CODE",
                action="append",
                default=[],
                help="your own code to load: my_file.py or my.module",
            )
    try:
        with printed():
            with reading_flags():
                arguments = parser.parse_args(argv)
                for name, value in vars(arguments).items():
                    if value == "" or (value == [] and name != "plugin"):  # --layers=-- is an empty list to argparse
                        flag = name if name in ("pattern", "network") else f"--{name.replace('_', '-')}"
                        raise ValueError(f"{flag} is empty")
            from visattn.models.plugins import load_plugin

            for name in ("weights", "out"):
                if getattr(arguments, name, None) is not None:
                    setattr(arguments, name, at_home(getattr(arguments, name)))
            if hasattr(arguments, "out"):
                arguments.out = straight(arguments.out)
            for name in arguments.plugin:
                load_plugin(at_home(name))
            with without_empty_folders(getattr(arguments, "out", ".")):
                return arguments.run(arguments)
    except (ValueError, OSError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        say(printable(f"visattn: {text}"), error=True)
        return 2 if isinstance(error, ValueError) else 1
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and NO_MEMORY not in str(error) and "out of memory" not in str(error):
            raise
        said = printable(str(error).rpartition(NO_MEMORY)[2])[:200]
        say(f"visattn: out of memory: lower --batch-size ({said})", error=True)
        return 1
    except KeyboardInterrupt:
        return 130
