"""Matrices of labels, a row per antibody and a column per antigen, read as a row per pair.

Promises that each cell that is not empty becomes one row, with the row number of the matrix, and
that empty cells become none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from abag.core.messages import counted
from abag.core.numbers import plain_number
from abag.embed.sequences.airr import ReaderNotes
from abag.embed.sequences.chains import MISSING_TEXT
from abag.embed.sequences.columns import find_columns, quote_some

ANTIGEN_COLUMN = "antigen"
LABEL_COLUMN = "label"
_OF_ANTIBODIES = ("heavy", "light", "antibody", "antibody_name", "id", "mutations")
"""Roles of columns that say which antibody a row has."""
_NUMBER = re.compile(r"\s*[<>=~≤≥]*\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", re.IGNORECASE)
"""A label or bound."""


def read_matrix(
    cells: pd.DataFrame, chosen: Mapping[str, str], source: str, first_row: int
) -> tuple[pd.DataFrame, dict[str, str], ReaderNotes]:
    """Make a row per antibody and antigen of a matrix of text.

    Parameters
    ----------
    cells : DataFrame
        Text of all cells; the index is ignored.
    chosen : mapping
        Column names by role, as the user gave them.
    source : str
        Name of the file.
    first_row : int
        Number of the first row.

    Returns
    -------
    frame : DataFrame
        The columns without labels, and `ANTIGEN_COLUMN` and `LABEL_COLUMN`.
    roles : dict
        Columns of the roles that the layout says.
    notes : ReaderNotes
        Row numbers of the matrix, and what was read.

    Raises
    ------
    ValueError
        If no column holds labels, or the names of the new columns are taken.
    """
    cells = cells.reset_index(drop=True)
    texts = cells.mask(cells.isin(MISSING_TEXT)).apply(lambda column: column.str.strip())
    texts = texts.mask(texts == "")
    names = [str(name) for name in cells]
    columns, ties = find_columns(names, chosen, source)
    named: set[str] = set()
    for role in _OF_ANTIBODIES:
        if role in columns:
            named.add(columns[role])
        named.update(ties.get(role, ()))
    antigens = [name for name in names if name not in named and _holds_labels(texts[name])]
    others = [name for name in names if name not in antigens]
    if not antigens or not others:
        missing = "columns of labels" if not antigens else "column that names the antibodies"
        msg = (
            f"it has no {missing}; --matrix expects a row per antibody and a column per antigen "
            "with numbers in the cells. Leave --matrix out for a table with a row per pair"
        )
        raise ValueError(msg)
    taken = {ANTIGEN_COLUMN, LABEL_COLUMN}.intersection(others)
    if taken:
        msg = (
            f"it has a column {min(taken)!r}, which --matrix makes of the other columns; rename or "
            "remove that column, or leave --matrix out for a table with a row per pair"
        )
        raise ValueError(msg)
    labels = texts[antigens].to_numpy(object)
    row, column = np.nonzero(pd.notna(labels))
    frame = cells[others].iloc[row].reset_index(drop=True)
    frame[ANTIGEN_COLUMN] = np.array(antigens, object)[column]
    frame[LABEL_COLUMN] = labels[row, column]
    roles = {"antigen": ANTIGEN_COLUMN, "pkd": LABEL_COLUMN}
    if len(others) == 1 and not named:
        roles["antibody"] = others[0]
    empty = labels.size - len(row)
    size = f"{counted(len(cells), 'row')} and {counted(len(antigens), 'antigen')}"
    remark = (
        f"matrix of {size}, read from the headers ({quote_some(antigens)}): "
        f"{counted(len(row), 'label')}, {counted(empty, 'empty cell')} left out as not measured"
    )
    return frame, roles, ReaderNotes(remarks=(remark,), numbers=tuple((row + first_row).tolist()))


def _holds_labels(cells: pd.Series) -> bool:
    """Tell whether at least half of the cells that are filled are numbers or bounds."""
    filled = cells.dropna()
    is_number = filled.map(lambda text: bool(_NUMBER.fullmatch(plain_number(text))))
    return 0 < len(filled) <= 2 * int(is_number.sum())
