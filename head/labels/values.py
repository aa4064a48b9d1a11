"""Cells of labels as numbers, bounds or words, and replicates of one pair.

Nothing is guessed: what is neither a number nor text of one is NaN. R rows of a table with a label;
P pairs.
"""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_any_real_numeric_dtype

from abag.core.arrays import Floats, Ints
from abag.core.errors import LabelError
from abag.core.numbers import plain_number
from abag.embed.tables.chains import MISSING_TEXT
from abag.embed.tables.formats import cell_text
from abag.head.labels.headers import Quantity
from abag.head.labels.options import Replicates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.tables.pairs import SequenceTable


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


def spread_of(exact: pd.Series[float]) -> float:
    """Return the standard deviation of exact labels; infinite if there are fewer than two."""
    return float(exact.std()) if len(exact) > 1 else np.inf


def replicate_noise(rows: pd.DataFrame) -> float | None:
    """Pool the standard deviation of exact replicates over all pairs."""
    # equal labels of a pair count once: they are copies of one measurement
    rows = rows[rows["censored"] == 0].drop_duplicates(["antibody", "antigen", "pkd"])
    exact = rows.groupby(["antibody", "antigen"])["pkd"]
    degrees_of_freedom = int((exact.size() - 1).sum())
    if degrees_of_freedom == 0:
        return None
    squares = ((rows["pkd"] - exact.transform("mean")) ** 2).sum()
    return float(np.sqrt(squares / degrees_of_freedom))


def disagreement(rows: pd.DataFrame) -> pd.Series[float]:
    """Return by how much the labels of each pair contradict each other in pKd, bounds included."""
    at_least = rows["pkd"].where(rows["censored"] >= 0)
    at_most = rows["pkd"].where(rows["censored"] <= 0)
    pair = [rows["antibody"], rows["antigen"]]
    return at_least.groupby(pair).max() - at_most.groupby(pair).min()


def merge_replicates(
    table: SequenceTable, rows: pd.DataFrame, how: Replicates, quantity: Quantity
) -> pd.DataFrame:
    """Join the rows of each pair into one, and count their different measurements.

    Parameters
    ----------
    table : SequenceTable
        Names rows in errors.
    rows : DataFrame
        R rows with a label.
    how : Replicates
        As ``--replicates``; ``error`` raises `LabelError` if labels of a pair differ.
    quantity : Quantity
        Of the labels.
    """
    if how == "keep":
        return rows.assign(measurements=1)
    if how == "error":
        _refuse_conflicts(table, rows, quantity)
    # Exact and censored labels of a pair stay separate: a bound cannot be averaged.
    groups = rows.groupby(_of_pair(rows), sort=False, as_index=False)
    averaged = how in ("median", "mean")
    chosen: dict[str, tuple[str, str]] = {}
    if "share" in rows:
        chosen["share"] = ("share", "mean" if averaged else "first")
    merged = groups.agg(
        row=("row", "first"),
        pkd=("pkd", how if averaged else "first"),
        measurements=("pkd", "nunique"),
        **chosen,
    )
    return merged if averaged else merged.assign(measurements=1)


def _of_pair(rows: pd.DataFrame) -> list[str]:
    """Return the columns in which the replicates of a pair are equal."""
    categories = [name for name in rows.columns if name.startswith("category ")]
    return ["antibody", "antigen", "censored", *categories]


def pair_of_row(rows: pd.DataFrame, pairs: pd.DataFrame, total: int) -> Ints:
    """Return the pair that each row of a table was merged into, (R,); -1 for rows of none."""
    of_row = np.full(total, -1, np.int64)
    if rows is pairs:  # of each pair the row that it was taken from
        of_row[pairs["row"].to_numpy()] = np.arange(len(pairs))
        return of_row
    names = _of_pair(rows)
    numbered = pairs[names].assign(pair=np.arange(len(pairs)))
    merged = rows[[*names, "row"]].merge(numbered, on=names, how="left")
    of_row[merged["row"].to_numpy()] = merged["pair"].to_numpy()
    return of_row


def _refuse_conflicts(table: SequenceTable, rows: pd.DataFrame, quantity: Quantity) -> None:
    spread = disagreement(rows)
    if spread.max() > 0:
        worst = rows.set_index(["antibody", "antigen"]).loc[[spread.idxmax()]]
        at = ", ".join(table.row_name(r) for r in worst["row"][:5])
        msg = (
            f"{table.source}: rows {at} measure the same pair and differ by up to "
            f"{quantity.show(spread.max())} {quantity}. Fix them, or use --replicates median."
        )
        raise LabelError(msg)
