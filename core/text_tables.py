"""Tables as text with aligned columns, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2
"""Blanks between two columns."""


def align(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Format a table as lines; with `numbers`, all columns but the first are right-justified."""
    widths = column_widths(rows)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if numbers and at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * GAP).join(cells).rstrip())
    return lines


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the characters of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
