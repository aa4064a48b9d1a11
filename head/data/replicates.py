"""Replicates: several labels of one pair, how far they disagree, and how they are merged.

R rows of a table with a label, in the columns that `labels.label_pairs` joins; P pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import Ints
from abag.core.errors import LabelError
from abag.head.data.label_options import Replicates
from abag.head.data.quantity import Quantity

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable


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
