"""Print a table in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from visattn.files import printable

if TYPE_CHECKING:
    from visattn.tables import Table

WIDE = 10_000  # characters, more than any row has


def print_table(table: Table) -> None:
    """Print it with lines between the columns."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(caption=Text(table.caption), caption_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if number < table.texts else "right")
    for number, row in enumerate(table.rows):
        if number == table.line_after and number:
            drawn.add_section()
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    # In a pipe or a file there is no window to fit: keep every row on one line.
    Console(width=None if sys.stdout.isatty() else WIDE).print(drawn)
