"""Censored labels: on which side of its label the pKd of a row lies.

A relation is of Kd: ``>`` means a higher Kd, hence a lower pKd. Many tables write the relation of
pKd instead, which is the opposite. Where a number follows the relation, it is compared with the
label in both readings: ``<=7`` beside pKd 7 is of pKd, ``>1e-5`` beside pKd 5 is of Kd. A relation
in the label itself, ``>1000``, is in the unit of the label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.head.data.label_units import SIGNS, TO_PKD, BadLabel, read_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.label_options import Label

STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units of Kd in which bounds are written, besides that of the label."""
SAME_PKD = 0.1
"""Largest distance of a label from the bound that its relation states, from rounding."""
CLEARLY_CLOSER = 0.02
"""If the distances in both readings differ by less, the relation is ambiguous."""


def read_censored(table: SequenceTable, pkd: NDArray[np.float64], label: Label) -> NDArray[np.int8]:
    """Return on which side of each row's label the pKd lies: -1 below, +1 above, 0 exact.

    The relation is in the label, or in the column of the role ``censored``.

    Parameters
    ----------
    pkd : NDArray, shape=(N,), dtype=float64
        Label of each row; NaN where there is none.
    label : str
        Unit of the label column, in which bounds can be given as well.

    Returns
    -------
    NDArray, shape=(N,), dtype=int8

    Raises
    ------
    BadLabel
        If a relation is invalid, or can be read as of pKd and as of Kd.
    """
    own, column = _read_labels(table, pkd, label), table.columns.get("censored")
    if column is None:
        return own
    given = _read_column(table, column, pkd, label)
    rows = own * given < 0
    if rows.any():
        at = int(np.flatnonzero(rows)[0])
        relation = table.frame[column].iloc[at]
        problem = f"contradicts {relation!r} in column {column}"
        raise _bad_label(table, rows, f"{problem}; expected one relation. Remove the other.")
    return np.where(own == 0, given, own)


def _read_labels(table: SequenceTable, pkd: NDArray[np.float64], label: Label) -> NDArray[np.int8]:
    """As `read_censored`, from the relations in the labels, which are of their unit."""
    _, sides = read_bounds(table.frame[table.column("pkd")])
    own = np.where(np.isfinite(pkd), sides if label == "pkd" else -sides, 0).astype(np.int8)
    least, most = np.nanmin(pkd, initial=np.inf), np.nanmax(pkd, initial=-np.inf)
    if label == "pkd" and least < most:
        for side, end in ((-1, most), (1, least)):
            rows = own == side
            if rows.any() and (pkd[rows] == end).all():
                problem = "is at the end of the labels, as if its relation were of Kd"
                raise _bad_label(table, rows, f"{problem}; expected bounds of pKd. Write these.")
    return own


def _bad_label(table: SequenceTable, rows: NDArray[np.bool_], problem: str) -> BadLabel:
    """Make the error about the labels of some rows, (N,), which names the first."""
    cell = table.describe_cell(np.flatnonzero(rows)[0], table.column("pkd"))
    return BadLabel(f"{cell} ({rows.sum()} such rows) {problem}")


def _read_column(
    table: SequenceTable, column: str, pkd: NDArray[np.float64], label: Label
) -> NDArray[np.int8]:
    """As `read_censored`, from the relations in a column of their own."""
    text = table.frame[column].fillna("").astype(str).str.strip()
    relation = text.str[:1].map(SIGNS)
    if relation.isna().any():
        at = int(np.flatnonzero(relation.isna())[0])
        msg = (
            f"{table.source}: row {table.row_numbers[at]}, column {column}: {text.iloc[at]!r} is "
            "not a valid relation; expected > or < (of Kd), = or an empty cell. Fix it, or choose "
            "another column with --column censored=NAME."
        )
        raise BadLabel(msg)
    sign = np.where(np.isfinite(pkd), relation, 0)
    number = pd.to_numeric(text.str.extract(r"^[<>=≥≤~]+\s*([-+.\deE]+)")[0], errors="coerce")
    bound = np.where(sign != 0, number, np.nan)
    readings = [convert for unit, convert in TO_PKD.items() if unit in (*STATED, label)]
    with np.errstate(invalid="ignore", divide="ignore"):
        # fmin: a reading that does not apply, such as the logarithm of a negative number, is NaN
        of_kd = np.fmin.reduce([abs(c(bound) - pkd) for c in readings if c is not TO_PKD["pkd"]])
    of_pkd = abs(bound - pkd)
    distance = np.fmin(of_pkd, of_kd)
    is_pkd, is_kd = (d <= distance + CLEARLY_CLOSER for d in (of_pkd, of_kd))

    def refuse(rows: NDArray[np.bool_], problem: str) -> None:
        if rows.any():
            at = int(np.flatnonzero(rows)[0])
            msg = (
                f"{table.source}: row {table.row_numbers[at]}, column {column}: {text.iloc[at]!r} "
                f"beside pKd {pkd[at]:.4g} {problem} ({rows.sum()} such rows); expected a relation "
                "of Kd, or one with its bound (>1e-5 in M, <=5 as pKd). Write the bounds."
            )
            raise BadLabel(msg)

    refuse(distance > SAME_PKD, "states another bound than the label")
    clear, unclear = is_pkd != is_kd, (sign != 0) & (is_pkd == is_kd)
    if is_pkd[clear].any() != is_kd[clear].any():
        return np.where(is_pkd[clear].any(), sign, -sign).astype(np.int8)
    refuse(unclear & (clear.any() | is_pkd), "can be of pKd or of Kd")
    for side, end in ((-1, np.nanmin(pkd)), (1, np.nanmax(pkd))):
        rows = unclear & (sign == side)
        if np.nanmin(pkd) < np.nanmax(pkd) and (pkd[rows] == end).all():
            refuse(rows, "is at the end of the labels, as if it were of pKd")
    return np.where(is_pkd, sign, -sign).astype(np.int8)
