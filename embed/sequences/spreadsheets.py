"""Excel files (.xlsx) as rows of text, the way a CSV export would write them.

A workbook can hold more than one plain table. Whatever would be lost by reading it as one is
refused: further sheets, merged cells, formulas without a stored value, and values without a name.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from typing import IO, TypeAlias

Cells: TypeAlias = dict[tuple[int, int], tuple[str, bool]]
"""By row and column, from 1: the text of a cell, and whether it is a formula; no empty cells."""

_MERGED = re.compile(rb'<(?:\w+:)?mergeCell [^>]*ref="([^"]+)"')


def read_sheet(file: IO[bytes]) -> list[list[str]]:
    """Read the only sheet of a workbook that has values: rows of text.

    The first row with a value has the names of the columns; only column A may lack one. An empty
    row between others is one empty text, so that rows keep their numbers. Other empty rows, and
    empty columns, are left out. Empty cells are empty text.

    Raises
    ------
    ValueError
        The file is not a whole Excel file, or does not hold one plain table.
    """
    _check_archive(file)
    sheets = {name: cells for name, cells in _read_cells(file, formulas=True).items() if cells}
    if len(sheets) > 1:
        names = ", ".join(map(repr, sheets))
        msg = f"it has {len(sheets)} sheets with values, {names}; save the table as its own file"
        raise ValueError(msg)
    if not sheets:
        msg = "no cell has a value"
        raise ValueError(msg)
    ((name, cells),) = sheets.items()
    if any(is_formula for _, is_formula in cells.values()):
        stored = _read_cells(file, formulas=False)[name]
        if missing := sorted(cells.keys() - stored.keys()):
            msg = (
                f"the formula in cell {_coordinate(*missing[0])} has no stored value; replace "
                "formulas by their values, or save the file in a spreadsheet program"
            )
            raise ValueError(msg)
        cells = stored
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    for column in columns:
        if (rows[0], column) not in cells and column > 1:  # pandas writes its index without a name
            msg = (
                f"cell {_coordinate(rows[0], column)} is empty, but its column is not; expected "
                "the names of the columns in the first row"
            )
            raise ValueError(msg)
    filled = {*rows}
    return [
        [cells.get((row, column), ("", False))[0] for column in columns] if row in filled else [""]
        for row in range(rows[0], rows[-1] + 1)
    ]


def _check_archive(file: IO[bytes]) -> None:
    """Refuse what is not an archive, or has merged cells, which openpyxl drops."""
    if file.read(4) == b"\xd0\xcf\x11\xe0":
        msg = "it has a password or is an old .xls file; save it as .xlsx without a password"
        raise ValueError(msg)
    if not zipfile.is_zipfile(file):
        msg = "it is not an Excel file (.xlsx), or it is incomplete"
        raise ValueError(msg)
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/") and (at := _MERGED.search(archive.read(name))):
                msg = f"cells {at[1].decode()} are merged; unmerge them and fill each one"
                raise ValueError(msg)


def _read_cells(file: IO[bytes], *, formulas: bool) -> dict[str, Cells]:
    """Return the cells of every sheet, with formulas or with the values stored for them."""
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        msg = "Excel files need openpyxl, which is not installed; run pip install 'abag[excel]'"
        raise ValueError(msg) from error
    sheets: dict[str, Cells] = {}
    with warnings.catch_warnings():  # of styles and extensions that openpyxl leaves out
        warnings.simplefilter("ignore")
        book = openpyxl.load_workbook(file, read_only=True, data_only=not formulas)
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # the file may state too few rows and columns
            cells = sheets[sheet.title] = {}
            for row in sheet.rows:
                for cell in row:
                    if cell.value not in (None, ""):
                        found = str(cell.value), cell.data_type == "f"
                        cells[cell.row, cell.column] = found
    return sheets


def _coordinate(row: int, column: int) -> str:
    from openpyxl.utils import get_column_letter

    return f"{get_column_letter(column)}{row}"
