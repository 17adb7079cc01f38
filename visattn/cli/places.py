"""``visattn places``: list the places of a network where a block can go."""

from __future__ import annotations

import argparse
from typing import Any

from visattn.cli.tables import print_table

EPILOG = """\
examples:
  visattn places resnet50
  visattn places vit_small_patch16_224 --image-size 384
  visattn blocks --for resnet50        which blocks there are for it, and where their papers put them
"""


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "places",
        help="list the places of a network where a block can go",
        description="List the places of a network where a block can go.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", metavar="MODEL", help="name of a timm or visattn model; nothing is downloaded")
    parser.add_argument("--image-size", metavar="N", type=int, help="height and width [the network's own]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from visattn.models.placement import places

    found = places(arguments.network, image_size=arguments.image_size)
    if not found:
        raise ValueError(f"{arguments.network} has no feature map that a block could be put behind")
    print_table(found.table())
    return 0
