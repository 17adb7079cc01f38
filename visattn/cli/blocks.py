"""``visattn blocks``: list the attention blocks with their size and cost, and where they go in a network."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from visattn.cli.tables import WIDE, print_table
from visattn.files import printable, say


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("blocks", help="list the attention blocks with their size and cost")
    parser.add_argument("pattern", nargs="?", default="*", help="only names matching this glob, e.g. 'nonlocal*'")
    parser.add_argument("--family", help="only this family: channel, spatial, mixed, self or hard")
    parser.add_argument("--for", metavar="MODEL", help="where they go in this model, and the cost there")
    parser.add_argument("--image-size", metavar="N", type=int, help="height and width, with --for [the network's own]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from visattn.blocks import unusable_announcements
    from visattn.models.advice import blocks_for, matching_blocks

    for line in unusable_announcements():
        say(printable(f"visattn: {line}"), error=True)
    network = getattr(arguments, "for")  # a word of Python's
    if network is not None:
        rows = blocks_for(network, arguments.pattern, family=arguments.family, image_size=arguments.image_size)
        print_table(rows.table())
        return 0
    if arguments.image_size is not None:
        raise ValueError("--image-size means nothing without --for")
    _print_blocks(matching_blocks(arguments.pattern, arguments.family), arguments.pattern)
    return 0


def _print_blocks(names: list[str], pattern: str) -> None:
    """Every block by itself, on a map of one size."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from visattn.blocks import block_info, create_block, is_imported
    from visattn.blocks.announced import says
    from visattn.counting import count_macs, count_parameters

    table = Table("name", "family", caption=f"{len(names)} blocks; parameters at C=256, MACs at 256x14x14")
    table.add_column("parameters", justify="right")
    table.add_column("MACs", justify="right")
    table.add_column("paper")
    for name in names:
        if name != pattern and not is_imported(name):
            table.add_row(name, "", "", "", Text(printable(f"{says(name)}: imported if it is named")))
            continue
        info = block_info(name)
        try:
            block = create_block(name, 256)
            parameters, macs = count_parameters(block), count_macs(block, 1, 256, 14, 14)
        except (Exception, SystemExit) as error:  # a plugin's block can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"block {name!r} failed on a feature map of 256 x 14 x 14: {reason}") from error
        table.add_row(name, info.family, f"{parameters:,}", f"{macs:,}", Text(printable(info.paper)))
    # In a pipe or a file there is no window to fit: keep every row on one line.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)
