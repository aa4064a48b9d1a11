"""Excel files: the only sheet with values, written as a CSV export of it would be."""

from __future__ import annotations

import csv
import io
import shlex
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import pandas as pd

from abag.embed.sequences.columns import quote_some
from abag.embed.sequences.delimited import Chunk, ReadOptions, cell_text, read_separated

MOST_EMPTY = 50_000_000
"""Empty cells between the first and the last value of a sheet; a table has few."""


class MissingReader(Exception):
    """A package that reads a format is not installed."""


def read_excel(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read the only sheet that has values, as a CSV export of it would be read."""
    rows, first_row = _read_sheet(file, options.sheet)
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    yield from read_separated(text, ",", options, first_row)


def _read_sheet(file: IO[bytes], chosen: str | None) -> tuple[list[list[str]], int]:
    """Return the rows of a plain sheet from its header on, and the number of the second."""
    if not zipfile.is_zipfile(file):  # as a workbook with a password is not
        msg = "it is incomplete, has a password, or is not an .xlsx file; save it again as .xlsx"
        raise ValueError(msg)
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise MissingReader from error
    sheets: dict[str, pd.DataFrame] = {}
    with warnings.catch_warnings():  # of styles and extensions that openpyxl leaves out
        warnings.simplefilter("ignore")
        # data_only: the values that Excel computed last, in place of formulas; not read_only, in
        # which openpyxl does not say which cells are merged
        worksheets = openpyxl.load_workbook(file, data_only=True).worksheets
        for sheet in _choose_sheets(worksheets, chosen):
            merged = sheet.merged_cells.ranges
            if merged:  # all but the first of them are empty
                msg = f"cells {min(map(str, merged))} are merged; unmerge them and fill each one"
                raise ValueError(msg)
            cells = _filled_part(sheet)
            if cells is not None:
                sheets[sheet.title] = cells
    if not sheets:
        msg = "no cell has a value"
        raise ValueError(msg)
    if len(sheets) > 1:
        names = ", ".join(map(repr, sheets))
        example = shlex.quote(next(iter(sheets)))
        msg = (
            f"it has {len(sheets)} sheets with values, {names}; choose one with --sheet {example} "
            "or the like"
        )
        raise ValueError(msg)
    (cells,) = sheets.values()
    header = int(cells.index[0]) + 1
    unnamed = [column for column in cells.columns[1:] if cells[column].iloc[0] == ""]
    if unnamed:  # only the first may lack a name: pandas writes its index so
        letters = openpyxl.utils.get_column_letter(int(unnamed[0]) + 1)
        msg = (
            f"cell {letters}{header} is empty, but its column is not; expected the names of the "
            "columns in the first row"
        )
        raise ValueError(msg)
    return cells.to_numpy().tolist(), header + 1


def _filled_part(sheet: Any) -> pd.DataFrame | None:  # noqa: ANN401  # openpyxl ships no types
    """Return the text of the cells of a sheet, less empty columns and the empty rows around."""
    # not sheet.values, which makes a cell of every place up to a stray one in row 1,048,576
    filled: dict[tuple[int, int], str] = {}
    for (row, column), cell in sheet._cells.items():
        text = cell_text(cell.value)
        if text:
            filled[row - 1, column - 1] = text
    if not filled:
        return None
    first_row, _ = min(filled)
    last_row, _ = max(filled)
    columns = sorted({column for _, column in filled})
    empty = (last_row + 1 - first_row) * len(columns) - len(filled)
    if empty > MOST_EMPTY:
        msg = (
            f"row {last_row + 1} has a value, with {empty:,} empty cells above; expected the rows "
            "of one table. Delete what is far below the table"
        )
        raise ValueError(msg)
    place = {column: number for number, column in enumerate(columns)}
    cells = np.full((last_row + 1 - first_row, len(columns)), "", object)
    for (row, column), text in filled.items():
        cells[row - first_row, place[column]] = text
    rows = range(first_row, last_row + 1)
    return pd.DataFrame(cells, index=rows, columns=columns)


def _choose_sheets(sheets: Sequence[Any], chosen: str | None) -> list[Any]:
    """Return the sheet that the user chose, or all."""
    if chosen is None:
        return [*sheets]
    exact = [sheet for sheet in sheets if sheet.title == chosen]
    alike = [sheet for sheet in sheets if sheet.title.strip().lower() == chosen.strip().lower()]
    if not exact and len(alike) != 1:
        titles = quote_some([sheet.title for sheet in sheets])
        msg = f"it has no sheet {chosen!r}; choose another with --sheet, of {titles}"
        raise ValueError(msg)
    return exact or alike
