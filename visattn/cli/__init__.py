"""The ``visattn`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import visattn
from visattn.cli import blocks, evaluate, heatmap, predict
from visattn.files import printable
from visattn.models.plugins import load_plugin


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["train"]:  # its flags are jsonargparse's
        from visattn.cli.train import main as train

        return train(argv[1:], prog="visattn train")
    parser = argparse.ArgumentParser(prog="visattn", description=visattn.__doc__)
    parser.add_argument("--version", action="version", version=f"visattn {visattn.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands.add_parser("train", help="train a model (visattn train --help)", add_help=False)
    heatmap.add_command(commands)
    evaluate.add_command(commands)
    predict.add_command(commands)
    blocks.add_command(commands)
    for name, command in commands.choices.items():
        if name != "train":
            command.add_argument(
                "--plugin",
                metavar="CODE",
                action="append",
                default=[],
                help="code of your own: my_file.py or my.module",
            )
    arguments = parser.parse_args(argv)
    try:
        for name, value in vars(arguments).items():
            if value == "":
                raise ValueError(f"--{name.replace('_', '-')} is empty")
        for name in arguments.plugin:
            load_plugin(name)
        return arguments.run(arguments)
    except (ValueError, OSError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(printable(f"visattn: {text}"), file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except MemoryError as error:
        print(printable(f"visattn: out of memory: lower --batch-size ({error})"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
