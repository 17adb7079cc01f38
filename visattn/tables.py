"""Tables of cells as text, for a terminal, for plain text and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Columns, rows of cells, and after which row a line is drawn.

    Args:
        columns: their names.
        rows: cells.
        caption: a sentence on what the cells mean.
        line_after: the number of rows above a line; none is drawn by default.
        texts: how many columns from the left are text; the others are numbers, flush right.
    """

    columns: list[str]
    rows: list[list[str]]
    caption: str
    line_after: int | None = None
    texts: int = field(default=1, kw_only=True)


def as_text(table: Table) -> str:
    """Plain text, one line per row."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    lines = []
    for row in (table.columns, *table.rows):
        cells = zip(row, widths, range(len(row)), strict=True)
        padded = (cell.ljust(width) if at < table.texts else cell.rjust(width) for cell, width, at in cells)
        lines.append("  ".join(padded).rstrip())
    if table.line_after is not None:
        lines.insert(1 + table.line_after, "-" * max(map(len, lines)))
    return "\n".join([*lines, table.caption])


def as_markdown(table: Table) -> str:
    """A Markdown table, without the caption."""
    rules = ["---" if at < table.texts else "---:" for at in range(len(table.columns))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (table.columns, rules, *table.rows))
