"""Labelled pairs: the label column as pKd, censored values and replicates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core.messages import say
from abag.embed.sequences.changes import BadCell, SkippedRows
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.label_options import Floor, Label, LabelOptions, Replicates
from abag.head.data.label_units import (
    POSITIVE,
    TO_PKD,
    BadLabel,
    find_label,
    outside,
    read_bounds,
    read_censored,
    refuse_other_units,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.options import TableOptions
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.sequences.tables import TableLike

CONFLICT_PKD = 1.0
"""Labels of one pair, or assay means of one antigen, that differ by more are a conflict."""
FLOOR_SHARE = 0.05
"""A lowest value that more than this share of the rows have is a floor."""
MOST_PKD = 1e6
"""Larger values, such as times in seconds, are no affinities and exceed what training can add."""
LISTED_TYPES = 8
"""Affinity types that a message lists."""
_WITH_COMMA = re.compile(r"[<>≥≤=~ ]*[-+]?[\d.]+(,\d+)+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
_WITH_UNIT = re.compile(r"[<>≥≤=~ ]*[-+]?[\d.,]+(e[-+]?\d+)? ?[a-zµμ]+(/[a-z]+)?", re.IGNORECASE)


class MixedAffinityTypes(BadLabel):
    """The labels have several affinity types, or none has the requested one."""


class ConflictingReplicates(AbagError):
    """A pair has different labels and ``--replicates error`` is set."""


class NothingToLearn(AbagError):
    """The training pairs have no exact label, or all labels are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPairs:
    """P pairs with a measured affinity, in the order of (antibody key, antigen key)."""

    antibody: NDArray[np.int64]
    """Shape (P,); index into ``table.antibodies``."""
    antigen: NDArray[np.int64]
    """Shape (P,); index into ``table.antigens``."""
    pkd: NDArray[np.float64]
    """Shape (P,); -log10 of Kd in M."""
    censored: NDArray[np.int8]
    """Shape (P,); 0: exact, -1: the true pKd is below the label, +1: above."""
    row: NDArray[np.int64]
    """Shape (P,); row of ``table.frame``: that of the pair's first replicate."""
    table: SequenceTable
    """The table, its unique sequences in the order of their keys."""
    measurements: NDArray[np.int64]
    """Shape (P,); how many different measurements the label is the median or mean of."""
    noise: float | None
    """Pooled standard deviation of exact replicates in pKd; None if there are none."""
    unit: Label = "pkd"
    """Of the label column."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows, and how many of them were skipped, merged, censored or dropped."""
    antigen_cluster: NDArray[np.int64] | None = None
    """Shape (P,); equal for near-duplicate antigens. None: antigens were not clustered."""
    antibody_cluster: NDArray[np.int64] | None = None
    """Shape (P,); equal for near-duplicate antibodies. None: antibodies were not clustered."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pkd)

    def index(self, kind: Kind) -> NDArray[np.int64]:
        """Return the index of each pair's antibody or antigen, shape (P,)."""
        return self.antibody if kind == "antibody" else self.antigen

    def keys(self, kind: Kind) -> NDArray[np.uint8]:
        """Return the key of each pair's antibody or antigen, shape (P, 16)."""
        return self.table.sequences[kind].keys[self.index(kind)]


def read_labelled_pairs(
    table: TableLike, reading: TableOptions, labels: LabelOptions
) -> LabelledPairs:
    """Read the pairs of a table and their labels; an error lists bad sequences and bad labels."""
    read = read_pairs(table, replace(reading, bad_rows="skip"))
    return label_pairs(read, labels, refuse_sequences=labels.bad_rows == "error")


def label_pairs(
    table: SequenceTable, options: LabelOptions | None = None, *, refuse_sequences: bool = False
) -> LabelledPairs:
    """Read the labels of a table and merge replicates.

    The columns ``pkd`` and, if present, ``censored`` and ``affinity_type`` are read. With
    `refuse_sequences`, rows that were skipped for their sequences are refused with those of bad
    labels.

    Raises
    ------
    MissingColumn, AmbiguousColumn
        If no column, or more than one, can be the label.
    BadLabel
        If a label is not a finite number, no label is usable, or the unit cannot be right.
    MixedAffinityTypes
        If there are several affinity types and none was chosen, or no row has the chosen one.
    ConflictingReplicates
        If a pair has different labels and ``options.replicates`` is ``"error"``.
    """
    options = options or LabelOptions()
    table, unit = find_label(table, options.label)
    table = table.sorted_by_key()  # every draw over sequences is then the same for any row order
    wanted = _of_type(table, options.affinity_type)
    pkd, usable, bad = _read_labels(table, wanted, unit, options.label_bounds)
    refused = SkippedRows([*bad] if options.bad_rows == "error" else [])
    if refuse_sequences:
        refused.update(table.skipped)
    if refused.bad:
        raise refused.refusal(table.source, kept=int(usable.sum()))
    column = table.column("pkd")
    if not usable.any():
        msg = (
            f"{table.source}: column {column} has no usable label. Choose another column with "
            "--column pkd=NAME."
        )
        raise BadLabel(msg)
    raw, _ = read_bounds(table.frame[column])
    refuse_other_units(table.source, column, raw[usable], unit)
    table = replace(table, skipped=SkippedRows([*table.skipped.rows, *bad]))
    rows = pd.DataFrame(
        {
            "row": np.arange(len(pkd)),
            "antibody": table.antibodies.of_row,
            "antigen": table.antigens.of_row,
            "pkd": pkd,
            "censored": read_censored(table, pkd, unit),
        }
    )[usable]
    rows, floored = _apply_floor(rows, options.floor)
    noise, conflicts = _replicate_noise(rows), int((_disagreement(rows) > CONFLICT_PKD).sum())
    pairs = _merge_replicates(table, rows, options.replicates)
    pairs = pairs.sort_values(["antibody", "antigen", "censored", "pkd"], kind="stable")
    types = {"pkd": np.float64, "censored": np.int8}
    columns = {
        name: pairs[name].to_numpy(types.get(name, np.int64), copy=True)
        for name in ("antibody", "antigen", "pkd", "censored", "row", "measurements")
    }
    counts = {
        "rows": len(pkd),
        "rows_of_other_affinity_types": int((~wanted).sum()),
        "skipped_labels": len(bad),
        "floor_rows": floored,
        "replicate_rows": len(rows) - len(pairs),
        "conflicting_pairs": conflicts,
        "censored_pairs": int((pairs["censored"] != 0).sum()),
    }
    return LabelledPairs(**columns, table=table, noise=noise, unit=unit, counts=counts)


def _of_type(table: SequenceTable, affinity_type: str | None) -> NDArray[np.bool_]:
    """Return which rows have the requested affinity type; types are never mixed."""
    if affinity_type is None and not table.has("affinity_type"):
        return np.ones(len(table.frame), np.bool_)
    column = table.column("affinity_type")
    types = table.frame[column].astype("string").fillna("").str.strip()
    counts = types[table.frame[table.column("pkd")].notna()].value_counts()
    if affinity_type is None and len(counts) < 2:
        return np.ones(len(table.frame), np.bool_)
    if affinity_type not in counts.index:
        found = ", ".join(f"{n} of {name!r}" for name, n in counts.head(LISTED_TYPES).items())
        more = f" and {len(counts) - LISTED_TYPES} more types" if len(counts) > LISTED_TYPES else ""
        problem = "several affinity types" if affinity_type is None else f"no {affinity_type!r}"
        msg = (
            f"{table.source}: column {column} has {problem} among the labelled rows: "
            f"{found}{more}; expected one type. Choose it with --affinity-type NAME."
        )
        raise MixedAffinityTypes(msg)
    return (types == affinity_type).to_numpy(np.bool_)


def _read_labels(
    table: SequenceTable,
    wanted: NDArray[np.bool_],
    unit: Label,
    bounds: tuple[float, float] | None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[tuple[int, BadCell]]]:
    """Return the pKd of every row, which rows are wanted and usable, and the bad ones of these."""
    column = table.column("pkd")
    raw, _ = read_bounds(table.frame[column])
    readable = np.isfinite(raw) & ((raw > 0) if unit in POSITIVE else True)
    pkd = np.full(len(raw), np.nan)
    pkd[readable] = TO_PKD[unit](raw[readable])
    usable = readable & (np.abs(pkd) <= MOST_PKD)
    if (wanted & readable & ~usable).any() and (wanted & usable).any():  # of another unit, perhaps
        refuse_other_units(table.source, column, raw[readable & wanted], unit)
    outside_bounds = usable & outside(pkd, bounds or (-np.inf, np.inf))
    number = "a positive" if unit in POSITIVE else "a finite"
    bad = []
    for at in np.flatnonzero(wanted & (~usable | outside_bounds)).tolist():
        cell = table.frame[column].iloc[at]
        where = f"column {column}: {table.cell_text(at, column)}"
        if bounds is not None and outside_bounds[at]:
            reason = "label outside the range"
            error = (
                f"{where} is pKd {pkd[at]:.4g}; expected {bounds[0]:g} to {bounds[1]:g}, as "
                "--label-range says."
            )
        else:
            reason = "invalid label"
            error = (
                f"{where} is not a valid label; expected {number} number, and a pKd within "
                f"+-{MOST_PKD:g}. {_how_to_fix(cell)}."
            )
        bad.append(
            (int(table.row_numbers[at]), BadCell("label", reason, str(cell), error, BadLabel))
        )
    usable &= wanted & ~outside_bounds
    return np.where(usable, pkd, np.nan), usable, bad


def _how_to_fix(label: object) -> str:
    """Say what to do about a label that is not a number."""
    text = str(label).strip()
    if _WITH_COMMA.fullmatch(text):  # of decimals or of thousands: only the user knows which
        return "Write numbers without commas, such as 1234.5 (or save as .xlsx)"
    if _WITH_UNIT.fullmatch(text):
        return "Write the number alone, in the unit that --label names"
    return "Fix it"


def _apply_floor(rows: pd.DataFrame, floor: Floor) -> tuple[pd.DataFrame, int]:
    """Drop or censor the rows at the floor if there is one, and count them."""
    exact = rows["censored"] == 0
    at_floor = exact & (rows["pkd"] == rows["pkd"][exact].min())
    count = int(at_floor.sum())
    if count <= FLOOR_SHARE * exact.sum() or count == exact.sum():
        return rows, 0
    if floor == "drop":
        rows = rows[~at_floor]
    elif floor == "censor":
        rows = rows.assign(censored=rows["censored"].where(~at_floor, -1))
    return rows, count


def _replicate_noise(rows: pd.DataFrame) -> float | None:
    """Pool the standard deviation of exact replicates over all pairs.

    Equal labels of a pair count once: they are copies of one measurement.
    """
    rows = rows[rows["censored"] == 0].drop_duplicates(["antibody", "antigen", "pkd"])
    exact = rows.groupby(["antibody", "antigen"])["pkd"]
    degrees_of_freedom = int((exact.size() - 1).sum())
    if degrees_of_freedom == 0:
        return None
    squares = ((rows["pkd"] - exact.transform("mean")) ** 2).sum()
    return float(np.sqrt(squares / degrees_of_freedom))


def _disagreement(rows: pd.DataFrame) -> pd.Series[float]:
    """Return by how much the labels of each pair contradict each other in pKd, bounds included."""
    at_least = rows["pkd"].where(rows["censored"] >= 0)
    at_most = rows["pkd"].where(rows["censored"] <= 0)
    pair = [rows["antibody"], rows["antigen"]]
    return at_least.groupby(pair).max() - at_most.groupby(pair).min()


def _merge_replicates(table: SequenceTable, rows: pd.DataFrame, how: Replicates) -> pd.DataFrame:
    if how == "keep":
        return rows.assign(measurements=1)
    if how == "error":
        _refuse_conflicts(table, rows)
    # Exact and censored labels of a pair stay separate: a bound cannot be averaged.
    groups = rows.groupby(["antibody", "antigen", "censored"], sort=False, as_index=False)
    averaged = how in ("median", "mean")
    merged = groups.agg(
        row=("row", "first"),
        pkd=("pkd", how if averaged else "first"),
        measurements=("pkd", "nunique"),
    )
    return merged if averaged else merged.assign(measurements=1)


def _refuse_conflicts(table: SequenceTable, rows: pd.DataFrame) -> None:
    spread = _disagreement(rows)
    if spread.max() > 0:
        worst = rows.set_index(["antibody", "antigen"]).loc[[spread.idxmax()]]
        at = ", ".join(str(table.row_numbers[r]) for r in worst["row"][:5])
        msg = (
            f"{table.source}: rows {at} measure the same pair and differ by up to "
            f"{spread.max():.2f} pKd. Fix them, or use --replicates median."
        )
        raise ConflictingReplicates(msg)


def report_counts(pairs: LabelledPairs) -> None:
    """Report how many pairs a table has, and what happened to its other rows."""
    pairs.table.report_notes()
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in pairs.counts.items() if n)
    text = f"{pairs.table.source}: {len(pairs)} pairs ({counts})"
    if pairs.unit != "pkd":
        text += f"; column {pairs.table.column('pkd')!r} read as {pairs.unit}"
    if pairs.noise is not None:
        text += f"; standard deviation of replicates {pairs.noise:.2f} pKd"
    say(text)


def training_labels(pairs: LabelledPairs, training: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the exact labels of the training pairs in pKd.

    `training` holds the indices of the pairs, shape (R,).

    Raises
    ------
    NothingToLearn
        If no label is exact, or all of them have the same value.
    """
    labels: NDArray[np.float64] = pairs.pkd[training[pairs.censored[training] == 0]]
    if not len(labels):
        msg = (
            f"{pairs.table.source}: all labels of the training part are censored; expected exact "
            "labels too. Use another split or more data."
        )
        raise NothingToLearn(msg)
    if np.ptp(labels) == 0:
        msg = (
            f"{pairs.table.source}: all {len(labels)} training labels are {labels[0]:g}; "
            "expected different values. Check --label, --column pkd=NAME and the split."
        )
        raise NothingToLearn(msg)
    return labels
