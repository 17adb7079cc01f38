"""The ``visattn`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import visattn


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, return the exit code."""
    parser = argparse.ArgumentParser(prog="visattn", description=visattn.__doc__)
    parser.add_argument("--version", action="version", version=f"visattn {visattn.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    blocks = commands.add_parser("blocks", help="list the attention blocks with their size and cost")
    blocks.add_argument("pattern", nargs="?", default="*", help="only names that match this glob, e.g. 'nonlocal*'")
    blocks.add_argument("--family", help="only this family: channel, spatial, mixed, self or hard")
    blocks.set_defaults(run=_blocks)

    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except ValueError as error:
        print(f"visattn: {error}", file=sys.stderr)
        return 2


def _blocks(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from visattn.blocks import block_info, create_block, list_blocks
    from visattn.counting import count_macs, count_parameters
    from visattn.registry import suggest

    names = list_blocks(arguments.pattern, family=arguments.family)
    if not names:
        where = f"the family {arguments.family!r}" if arguments.family else "any family"
        raise ValueError(
            f"no block matches {arguments.pattern!r} in {where}: {suggest(arguments.pattern, list_blocks())}"
        )
    table = Table("name", "family", caption=f"{len(names)} blocks; parameters at C=256, MACs at 256x14x14")
    table.add_column("parameters", justify="right")
    table.add_column("MACs", justify="right")
    table.add_column("paper")
    for name in names:
        block, info = create_block(name, 256), block_info(name)
        table.add_row(
            name, info.family, f"{count_parameters(block):,}", f"{count_macs(block, 1, 256, 14, 14):,}", info.paper
        )
    # In a pipe or a file there is no window to fit: keep every row on one line.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0
