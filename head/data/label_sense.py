"""The unit and the direction of a label column, and what in the table supports them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import numpy as np

from abag.embed.sequences.columns import names_kd, quote_names
from abag.head.data.label_units import (
    TO_PKD,
    USUAL_PKD,
    fitting_units,
    named_units,
    outside,
    read_bounds,
    read_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.label_options import Label

POSSIBLE_PKD = (0.0, 16.0)
"""Labels outside are certainly in another unit."""
SAME_PKD = 0.05
"""Largest median difference of two columns that hold the same measurements, from rounding."""
OPPOSITE = -0.5
"""Rank correlation from which a second measurement contradicts the direction of the label."""


def describe_columns(table: SequenceTable) -> str:
    """List the columns that play a role, and the others."""
    used = _used_columns(table)
    roles = [f"{role} {name!r}" for role, name in used.items()]
    unused = [name for name in map(str, table.names) if name not in used.values()]
    rest = f"; not used: {quote_names(unused)}" if unused else ""
    return f"columns: {', '.join(roles)}{rest}"


def label_sense(table: SequenceTable, label: Label) -> tuple[str, list[str]]:
    """Say whether a higher label means stronger binding, with the evidence, and what contradicts.

    Raises
    ------
    MissingColumn, AmbiguousColumn
        If no column, or more than one, can be the label.
    """
    column = table.column("pkd")
    raw, _ = read_bounds(table.frame[column])
    pkd = _converted(raw, label)
    known, impossible = np.isfinite(pkd), outside(pkd, POSSIBLE_PKD)
    named = named_units(column)
    usual = int((known & ~outside(pkd, USUAL_PKD)).sum())
    evidence = [f"{usual:,} of {known.sum():,} are in the usual range of pKd (2 to 14)"]
    if not known.any():
        evidence = ["no label can be read"]
    problems = []
    if label in named:
        evidence.append("the column is named so")
    elif named:
        problems.append(
            f"Column {column!r} is named like {named[0]}, but read as {label}. See --label."
        )
    for other, unit, same in _other_measurements(table, pkd):
        if same:
            evidence.append(f"column {other!r} read as {unit} gives the same values")
        else:
            problems.append(
                f"Column {other!r}, read as {unit}, ranks the rows the other way round than "
                f"{column!r}, read as {label}."
            )
    if 0 < 2 * impossible.sum() <= known.sum():  # more are refused
        problems.append(
            f"{impossible.sum():,} labels, such as {raw[impossible][0]:g}, are impossible as "
            f"{label}: mixed units?"
        )
    stronger = "higher" if label == "pkd" else "lower"
    text = f"labels: {column!r} read as {label}, {stronger} is stronger ({'; '.join(evidence)})"
    return text, problems


def quantity(table: SequenceTable, affinity_type: str | None) -> str:
    """Name what the labels are: pIC50 or pEC50 if their column or affinity type says so, or pKd."""
    says = [table.column("pkd"), affinity_type or ""]
    if affinity_type is None and table.has("affinity_type"):  # of one type: they are never mixed
        says += table.frame[table.column("affinity_type")].astype(str).unique().tolist()
    found = re.search("(ic|ec)50", " ".join(says).lower())
    return f"p{found[0].upper()}" if found else "pKd"


def suggest_label(table: SequenceTable) -> list[str]:
    """Name the columns that may be the label of a table without a column for pKd."""
    found = []
    for name in map(str, table.frame.columns):
        units: dict[str, str] = {unit: f"is named like {unit}" for unit in named_units(name)}
        if names_kd(name):
            fitting = fitting_units(read_bounds(table.frame[name])[0])
            fitting = [unit for unit in fitting if unit != "pkd"]  # would reverse the order
            units = {" or ".join(fitting) or "UNIT": "may be one"}
        use = f"use --column {shlex.quote(f'pkd={name}')} --label"
        found += [f"no column for pkd, but {name!r} {why}: {use} {u}." for u, why in units.items()]
    return found


def _other_measurements(
    table: SequenceTable, pkd: NDArray[np.float64]
) -> Iterator[tuple[str, Label, bool]]:
    """Yield other columns that hold the labels in some unit (True), or contradict them (False)."""
    used = _used_columns(table).values()
    for name in map(str, table.frame.columns):
        if name in used:
            continue
        raw = read_numbers(table.frame[name])
        both = np.isfinite(raw) & np.isfinite(pkd)
        if 2 * both.sum() <= np.isfinite(pkd).sum() or np.ptp(raw[both]) == 0:
            continue
        converted = {unit: _converted(raw, unit)[both] for unit in TO_PKD}
        away = {unit: np.median(abs(other - pkd[both])) for unit, other in converted.items()}
        same = [unit for unit, distance in away.items() if distance < SAME_PKD]
        named = named_units(name)
        if same:
            yield name, same[0], True
        elif named and _rank_correlation(converted[named[0]], pkd[both]) < OPPOSITE:
            yield name, named[0], False


def _rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    from scipy.stats import spearmanr  # takes half a second

    return float(spearmanr(one, other).statistic)


def _used_columns(table: SequenceTable) -> dict[str, str]:
    """Return role to column, without labels in another unit, which are read only as ``pkd``."""
    others = TO_PKD.keys() - {"pkd"}
    return {role: name for role, name in table.columns.items() if role not in others}


def _converted(raw: NDArray[np.float64], label: Label) -> NDArray[np.float64]:
    """Convert to pKd; what has no logarithm becomes NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        pkd = TO_PKD[label](raw)
    return np.where(np.isfinite(pkd), pkd, np.nan)
