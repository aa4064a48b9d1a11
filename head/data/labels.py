"""Measured pairs: the label column as pKd, censoring, replicates, and vectors standardised.

A pair is two indices and a number; the vectors stay one a sequence, never one a pair.
Pairs come in the order of their keys, so the order of the rows in the file changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag import AbagError
from abag.head.data.options import Floor, Label, LabelOptions, Replicates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from abag.embed.sequences.pairs import SequenceTable

# R T ln 10 at 298.15 K in kcal/mol: dG = -RT ln 10 * pKd
KCAL_PER_PKD = 1.987204259e-3 * 298.15 * np.log(10.0)
FLOOR_SHARE = 0.05
MOST_NAMED = 8
"""Affinity types that a message lists."""

_TO_PKD: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "pkd": lambda x: x,
    "kd_m": lambda x: -np.log10(x),
    "kd_nm": lambda x: 9.0 - np.log10(x),
    "log10_kd_nm": lambda x: 9.0 - x,
    "dg_kcal": lambda x: -x / KCAL_PER_PKD,
}


class BadLabel(AbagError):
    """A label, or the whole label column, cannot be what it is said to be."""


class MixedAffinityTypes(BadLabel):
    """The labels are of several affinity types, or none is of the type asked for."""


class ConflictingReplicates(AbagError):
    """One pair has several labels and ``--replicates error`` was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPairs:
    """Pairs with a measured affinity, P of them."""

    antibody: NDArray[np.int64]
    """(P,) index into ``table.antibodies``."""
    antigen: NDArray[np.int64]
    """(P,) index into ``table.antigens``."""
    pkd: NDArray[np.float64]
    """(P,) -log10 of Kd in M."""
    censored: NDArray[np.int8]
    """(P,) 0 exact, -1 the true pKd is below the label, +1 above."""
    row: NDArray[np.int64]
    """(P,) row of ``table.frame`` that stands for the pair: the first of its replicates."""
    table: SequenceTable
    noise: float | None
    """Pooled standard deviation of exact replicates in pKd; None without any."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows that were skipped, averaged, censored or dropped, by reason."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pkd)

    def antibody_keys(self) -> NDArray[np.uint8]:
        """Return each pair's antibody key, shape (P, 16)."""
        return self.table.antibodies.keys[self.antibody]

    def antigen_keys(self) -> NDArray[np.uint8]:
        """Return each pair's antigen key, shape (P, 16)."""
        return self.table.antigens.keys[self.antigen]


def label_pairs(table: SequenceTable, options: LabelOptions | None = None) -> LabelledPairs:
    """Read the labels of a table and bring each pair to one row.

    Parameters
    ----------
    table : SequenceTable
        Checked table; its roles ``pkd`` and, if they are there, ``censored`` and
        ``affinity_type`` are read. The result's ``table`` is this one with its unique sequences
        in the order of their keys.
    options : LabelOptions, optional

    Returns
    -------
    LabelledPairs
        In the order of (antibody key, antigen key), whatever the order of the rows.

    Raises
    ------
    BadLabel
        If there is no label column, a value is no finite number, or the unit cannot be right.
    MixedAffinityTypes
        If there are several and none was chosen.
    ConflictingReplicates
        Under ``replicates="error"``.
    """
    options = options or LabelOptions()
    table = table.sorted_by_key()  # every draw over sequences is then the same for any row order
    wanted = _of_type(table, options.affinity_type)
    pkd, usable = _read_labels(table, wanted, options)
    rows = pd.DataFrame(
        {
            "row": np.arange(len(pkd)),
            "antibody": table.antibodies.of_row,
            "antigen": table.antigens.of_row,
            "pkd": pkd,
            "censored": _read_censored(table),
        }
    )[usable]
    rows, floored = _apply_floor(rows, options.floor)
    noise = _replicate_noise(rows)
    pairs = _merge_replicates(table, rows, options.replicates)
    pairs = pairs.sort_values(["antibody", "antigen", "censored", "pkd"], kind="stable")
    return LabelledPairs(
        antibody=pairs["antibody"].to_numpy(np.int64, copy=True),
        antigen=pairs["antigen"].to_numpy(np.int64, copy=True),
        pkd=pairs["pkd"].to_numpy(np.float64, copy=True),
        censored=pairs["censored"].to_numpy(np.int8, copy=True),
        row=pairs["row"].to_numpy(np.int64, copy=True),
        table=table,
        noise=noise,
        counts={
            "rows": len(pkd),
            "rows_of_other_affinity_types": int((~wanted).sum()),
            "skipped_labels": int((wanted & ~usable).sum()),
            "floor_rows": floored,
            "replicate_rows": len(rows) - len(pairs),
            "censored_pairs": int((pairs["censored"] != 0).sum()),
        },
    )


def _of_type(table: SequenceTable, affinity_type: str | None) -> NDArray[np.bool_]:
    """Tell which rows are of the affinity type asked for; several are never mixed."""
    if affinity_type is None and not table.has("affinity_type"):
        return np.ones(len(table.frame), np.bool_)
    column = table.column("affinity_type")
    types = table.frame[column].astype("string").fillna("").str.strip()
    labelled = table.frame[table.column("pkd")].notna()
    counts = types[labelled].value_counts()
    if affinity_type is None and len(counts) < 2:
        return np.ones(len(table.frame), np.bool_)
    if affinity_type not in counts.index:
        found = ", ".join(f"{n} of {name!r}" for name, n in counts.head(MOST_NAMED).items())
        more = f" and {len(counts) - MOST_NAMED} more types" if len(counts) > MOST_NAMED else ""
        what = "several affinity types" if affinity_type is None else f"none of {affinity_type!r}"
        msg = (
            f"{table.source}: column {column} has {what} among the labelled rows: {found}{more}; "
            "expected one. Choose it with --affinity-type NAME."
        )
        raise MixedAffinityTypes(msg)
    return (types == affinity_type).to_numpy(np.bool_)


def _read_labels(
    table: SequenceTable, wanted: NDArray[np.bool_], options: LabelOptions
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return every row's pKd and whether it is wanted and can be used."""
    column = table.column("pkd")
    raw = pd.to_numeric(table.frame[column], errors="coerce").to_numpy(np.float64)
    usable = np.isfinite(raw)
    if options.label in ("kd_m", "kd_nm"):
        usable &= raw > 0
    if options.bad_rows == "error" and not usable[wanted].all():
        _refuse_first(table, column, usable | ~wanted, options.label)
    usable &= wanted
    if not usable.any():
        msg = f"{table.source}: column {column} holds no usable label. Choose another with --column pkd=NAME."  # noqa: E501
        raise BadLabel(msg)
    _check_unit(table.source, column, raw[usable], options.label)
    pkd = np.full(len(raw), np.nan)
    pkd[usable] = _TO_PKD[options.label](raw[usable])
    return pkd, usable


def _refuse_first(
    table: SequenceTable, column: str, usable: NDArray[np.bool_], label: Label
) -> None:
    at = int(np.flatnonzero(~usable)[0])
    wanted = "a positive number" if label in ("kd_m", "kd_nm") else "a finite number"
    msg = (
        f"{table.source}: row {table.row_numbers[at]}, column {column}: "
        f"{table.frame[column].iloc[at]!r} is no label; expected {wanted} "
        f"({int((~usable).sum())} such rows). Mend them, or leave them out with --bad-rows skip."
    )
    raise BadLabel(msg)


def _check_unit(source: str, column: str, raw: NDArray[np.float64], label: Label) -> None:
    if label == "pkd" and (raw > 0).all() and (raw < 1e-3).all():
        msg = (
            f"{source}: column {column} looks like Kd in M (all values below 1e-3), "
            "but pKd was expected. Give --label kd_m."
        )
        raise BadLabel(msg)


def _read_censored(table: SequenceTable) -> NDArray[np.int8]:
    """Turn the Kd relation of each row into the side on which its pKd lies."""
    column = table.columns.get("censored")
    if column is None:
        return np.zeros(len(table.frame), dtype=np.int8)
    text = table.frame[column].fillna("").astype(str).str.strip()
    first = text.str[:1]
    known = first.isin(["", ">", "<", "=", "~", "≥", "≤"])
    if not known.all():
        at = int(np.flatnonzero(~known.to_numpy())[0])
        msg = (
            f"{table.source}: row {table.row_numbers[at]}, column {column}: {text.iloc[at]!r} is "
            "no relation; expected > or < (of Kd), = or nothing. Mend it, or name another column "
            "with --column censored=NAME."
        )
        raise BadLabel(msg)
    # Kd above the limit means pKd below the label, and the reverse
    sides = first.map({">": -1, "≥": -1, "<": 1, "≤": 1}).fillna(0)
    return np.asarray(sides, dtype=np.int8)


def _apply_floor(rows: pd.DataFrame, floor: Floor) -> tuple[pd.DataFrame, int]:
    """Find the floor: the lowest value, when more than 5 % of the rows share it."""
    at_floor = (rows["pkd"] == rows["pkd"].min()) & (rows["censored"] == 0)
    count = int(at_floor.sum())
    if count <= FLOOR_SHARE * len(rows) or count == len(rows):
        return rows, 0
    if floor == "drop":
        return rows[~at_floor], count
    if floor == "censor":
        return rows.assign(censored=rows["censored"].where(~at_floor, -1)), count
    return rows, count


def _replicate_noise(rows: pd.DataFrame) -> float | None:
    """Pool the spread of exact replicates over pairs: the noise ceiling of any metric."""
    exact = rows[rows["censored"] == 0].groupby(["antibody", "antigen"])["pkd"]
    freedom = int((exact.size() - 1).sum())
    if freedom == 0:
        return None
    squares = ((rows["pkd"] - exact.transform("mean")) ** 2).sum()
    return float(np.sqrt(squares / freedom))


def _merge_replicates(table: SequenceTable, rows: pd.DataFrame, how: Replicates) -> pd.DataFrame:
    if how == "keep":
        return rows
    _refuse_conflicts(table, rows, how)
    # Exact and censored are separate rows of one pair: a bound is no measurement to average with.
    groups = rows.groupby(["antibody", "antigen", "censored"], sort=False, as_index=False)
    value = how if how in ("median", "mean") else "first"
    return groups.agg(row=("row", "first"), pkd=("pkd", value))


def _refuse_conflicts(table: SequenceTable, rows: pd.DataFrame, how: Replicates) -> None:
    if how != "error":
        return
    groups = rows.groupby(["antibody", "antigen"])
    spread = groups["pkd"].transform("max") - groups["pkd"].transform("min")
    if (spread > 0).any():
        worst = rows[spread == spread.max()]
        at = ", ".join(str(table.row_numbers[r]) for r in worst["row"][:5])
        msg = (
            f"{table.source}: rows {at} measure one pair and differ by up to {spread.max():.2f} "
            "pKd. Mend them, or choose --replicates median."
        )
        raise ConflictingReplicates(msg)


def report_counts(pairs: LabelledPairs, say: Callable[[str], None]) -> None:
    """Say how many pairs a table gave, and what became of the other rows."""
    for note in pairs.table.notes:
        say(f"{pairs.table.source}: {note}")
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in pairs.counts.items() if n)
    noise = "" if pairs.noise is None else f"; replicates differ by sd {pairs.noise:.2f} pKd"
    say(f"{pairs.table.source}: {len(pairs)} pairs ({counts}){noise}")


class NothingToLearn(AbagError):
    """The training pairs have no exact label, or all labels are the same."""


def training_labels(pairs: LabelledPairs, training: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the exact labels of the training pairs, or their bounds if none is exact.

    Parameters
    ----------
    pairs : LabelledPairs
    training : NDArray, shape=(R,), dtype=int64
        Indices of the training pairs.

    Returns
    -------
    NDArray, shape=(at most R,), dtype=float64
        pKd.

    Raises
    ------
    NothingToLearn
        If all labels have the same value.
    """
    exact = training[pairs.censored[training] == 0]
    labels = pairs.pkd[exact if len(exact) else training]
    if np.ptp(labels) == 0:
        msg = (
            f"{pairs.table.source}: all {len(labels)} training labels are {labels[0]:g}; "
            "expected different values. Check --label, --column pkd=NAME and the split."
        )
        raise NothingToLearn(msg)
    return labels
