"""Cells of a table as numbers, bounds or words: what a laboratory writes where a value belongs.

Nothing is guessed: what is neither a number nor text of one is NaN; signs and spaces of typesetting
are those of `plain_number`. R rows.
"""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_any_real_numeric_dtype

from abag.core.arrays import Floats
from abag.core.errors import LabelError
from abag.core.numbers import plain_number
from abag.embed.sequences.chains import MISSING_TEXT
from abag.embed.sequences.delimited import cell_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIDES = {">": 1, "≥": 1, "<": -1, "≤": -1, "": 0, "=": 0, "~": 0}
"""Relations by their first character: on which side of a number the value lies."""
_BOUND = re.compile(r"\s*([<>≥≤=~])=?\s*(?=[-+.\d])")
NO_BINDING = frozenset(
    "nb nobinding nobind nobinder nonbinder nonbinders nonbinding notbinding doesnotbind dnb "
    "nobindingdetected nobindingobserved nodetectablebinding nd notdetected nondetected "
    "notdetectable nonedetected undetectable undetected bdl belowdetection belowdetectionlimit "
    "belowlimitofdetection".split()
)
"""Words for a pair that does not bind, without spaces and signs."""
_CLASS_WORDS = frozenset(
    {
        "true",
        "false",
        "yes",
        "no",
        "y",
        "n",
        "+",
        "-",
        "binder",
        "positive",
        "negative",
        "pos",
        "neg",
        "binding",
        "high",
        "low",
    }
)
"""Words that classes are called by, beside `NO_BINDING`."""


def says_class(cell: object) -> bool:
    """Tell whether a cell is a truth value or a word for a class, not a measurement."""
    if isinstance(cell, bool | np.bool_):
        return True
    return isinstance(cell, str) and (cell.strip().lower() in _CLASS_WORDS or says_no_binding(cell))


def says_no_binding(cell: object) -> bool:
    """Tell whether a cell says in words that a pair does not bind."""
    if not isinstance(cell, str) or re.search(r"[1-9]", cell):  # a value, unlike "0, no binding"
        return False
    return re.sub(r"[^a-z]", "", cell.lower()) in NO_BINDING


def _read_plain_numbers(cells: pd.Series) -> Floats | None:
    """Convert a column of a text file in which each cell is a number or missing; None for others.

    It saves a loop over the cells.
    """
    if infer_dtype(cells, skipna=True) != "string":
        return None
    numbers = pd.to_numeric(cells, errors="coerce")
    if not (numbers.isna() == cells.isna()).all():
        return None
    return numbers.to_numpy(np.float64, na_value=np.nan, copy=True)  # pandas' is read-only


def read_texts(cells: pd.Series) -> pd.Series:
    """Return cells as text without spaces at their ends, (R,); empty where one is missing."""
    texts = cells.astype(object).map(cell_text).str.strip()
    return texts.mask(texts.isin(MISSING_TEXT), "")


def read_numbers(cells: pd.Series) -> Floats:
    """Convert cells to numbers, shape (R,); NaN for what is neither a number nor text of one."""
    plain = _read_plain_numbers(cells)
    if plain is not None:
        return plain

    def is_number(cell: object) -> bool:
        kinds = (str, int, float, Decimal, np.integer, np.floating)
        if isinstance(cell, int) and abs(cell) > sys.float_info.max:
            return False  # pandas would raise OverflowError
        return isinstance(cell, kinds) and not isinstance(cell, bool)

    if not is_any_real_numeric_dtype(cells.dtype):  # pandas converts dates and booleans too
        cells = cells.astype(object)
        cells = cells.where(cells.map(is_number).astype(bool))
        cells = cells.map(lambda cell: plain_number(cell) if isinstance(cell, str) else cell)
    return pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)


def read_bounds(cells: pd.Series) -> tuple[Floats, NDArray[np.int8]]:
    """Convert cells as `read_numbers` does, also those such as ``>1000``; each of shape (R,).

    The second result is the side of its number where each value lies: 1 above, -1 below, 0 exact.
    """
    plain = _read_plain_numbers(cells)
    if plain is not None:
        return plain, np.zeros(len(cells), np.int8)
    if is_any_real_numeric_dtype(cells.dtype):
        return read_numbers(cells), np.zeros(len(cells), np.int8)
    values = cells.tolist()
    sides = np.zeros(len(values), np.int8)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            continue
        text = plain_number(value)
        if match := _BOUND.match(text):
            values[i] = text[match.end() :]
            sides[i] = SIDES[match[1]]
    return read_numbers(pd.Series(values, dtype=object)), sides


def refuse_two_values(raw: Floats, where: str, what: str) -> None:
    """Refuse numbers, shape (R,), of which there are only two, as measurements of `what`."""
    numbers = raw[np.isfinite(raw)]
    distinct = np.unique(numbers)
    if len(distinct) == 2 and len(numbers) > 2:
        low, high = distinct
        msg = (
            f"{where} holds only {low:g} and {high:g}, which are two classes, not measurements of "
            f"{what}; abag predicts numbers, and expected more than two different ones. Choose a "
            "column of measurements with --column label=NAME."
        )
        raise LabelError(msg)
