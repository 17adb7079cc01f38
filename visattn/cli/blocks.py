"""``visattn blocks``: list the attention blocks with their size and cost."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("blocks", help="list the attention blocks with their size and cost")
    parser.add_argument("pattern", nargs="?", default="*", help="only names matching this glob, e.g. 'nonlocal*'")
    parser.add_argument("--family", help="only this family: channel, spatial, mixed, self or hard")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from visattn.blocks import block_info, create_block, list_blocks
    from visattn.counting import count_macs, count_parameters
    from visattn.files import printable
    from visattn.listing import shown
    from visattn.registry import suggest

    names = list_blocks(arguments.pattern, family=arguments.family)
    if not names:
        where = f"the family {arguments.family!r}" if arguments.family else "any family"
        raise ValueError(
            f"no block matches {shown(arguments.pattern)} in {where}: {suggest(arguments.pattern, list_blocks())}"
        )
    table = Table("name", "family", caption=f"{len(names)} blocks; parameters at C=256, MACs at 256x14x14")
    table.add_column("parameters", justify="right")
    table.add_column("MACs", justify="right")
    table.add_column("paper")
    for name in names:
        info = block_info(name)
        try:
            block = create_block(name, 256)
            parameters, macs = count_parameters(block), count_macs(block, 1, 256, 14, 14)
        except (Exception, SystemExit) as error:  # a plugin's block can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"block {name!r} failed on a feature map of 256 x 14 x 14: {reason}") from error
        table.add_row(name, info.family, f"{parameters:,}", f"{macs:,}", Text(printable(info.paper)))
    # In a pipe or a file there is no window to fit: keep every row on one line.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0
