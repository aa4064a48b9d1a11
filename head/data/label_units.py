"""The unit and the direction of a label column, what supports them, and censored labels.

A censored label has a relation, which says on which side of it the pKd of a row lies. A relation is
of Kd: ``>`` means a higher Kd, hence a lower pKd. Many tables write the relation of pKd instead,
which is the opposite. Where a number follows the relation, it is compared with the label in both
readings: ``<=7`` beside pKd 7 is of pKd, ``>1e-5`` beside pKd 5 is of Kd. A relation in the label
itself, ``>1000``, is in the unit of the label.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import is_any_real_numeric_dtype

from abag import AbagError
from abag.embed.sequences.columns import (
    MissingColumn,
    named_roles,
    names_kd,
    names_log10_nm,
    quote_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.label_options import Label

KCAL_PER_PKD = 1.987204259e-3 * 298.15 * np.log(10.0)
"""R T ln 10 at 298.15 K in kcal/mol: dG = -RT ln 10 * pKd."""
KJ_PER_KCAL = 4.184
ANTIBODY_G_PER_MOL = 150_000.0
"""Molar mass of IgG, for concentrations in ug/mL."""
USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""
DOUBLE_LOG = (0.3, 1.2)
"""Range of log10 of a pKd: labels there had their logarithm taken twice."""

TO_PKD: Mapping[Label, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "pkd": lambda x: x,
    "kd_m": lambda x: -np.log10(x),
    "kd_um": lambda x: 6.0 - np.log10(x),
    "kd_nm": lambda x: 9.0 - np.log10(x),
    "log10_kd_m": lambda x: -x,
    "log10_kd_nm": lambda x: 9.0 - x,
    "ug_ml": lambda x: np.log10(ANTIBODY_G_PER_MOL * 1e3) - np.log10(x),
    "dg_kcal": lambda x: -x / KCAL_PER_PKD,
    "dg_kj": lambda x: -x / KCAL_PER_PKD / KJ_PER_KCAL,
}
"""Conversions of arrays to pKd, by unit."""
POSITIVE: frozenset[Label] = frozenset({"kd_m", "kd_um", "kd_nm", "ug_ml"})
"""Units of which the logarithm is taken."""
FITTING_SHARE = 0.95
"""Share of usual values from which a unit is suggested."""
SIGNS = {">": 1, "≥": 1, "<": -1, "≤": -1, "": 0, "=": 0, "~": 0}
"""Relations by their first character: on which side of a number the value lies."""
_BOUND = re.compile(r"\s*([<>≥≤=~])=?\s*(?=[-+.\d])")
STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units of Kd in which bounds are written, besides that of the label."""
SAME_PKD = 0.1
"""Largest distance of a label from the bound that its relation states, from rounding."""
CLEARLY_CLOSER = 0.02
"""If the distances in both readings differ by less, the relation is ambiguous."""
POSSIBLE_PKD = (0.0, 16.0)
"""Labels outside are certainly in another unit."""
SAME_COLUMN = 0.05
"""Largest median difference of two columns that hold the same measurements, from rounding."""
OPPOSITE = -0.5
"""Rank correlation from which a second measurement contradicts the direction of the label."""


class BadLabel(AbagError):
    """A label is invalid, or the label column is not in the unit given."""


class UnclearLabel(MissingColumn):
    """No column is the label for sure, but some may be."""


def read_numbers(cells: pd.Series) -> NDArray[np.float64]:
    """Convert cells to numbers, shape (R,); NaN for what is neither a number nor text of one."""

    def is_number(cell: object) -> bool:
        kinds = (str, int, float, Decimal, np.integer, np.floating)
        if isinstance(cell, int) and abs(cell) > sys.float_info.max:
            return False  # pandas would raise OverflowError
        return isinstance(cell, kinds) and not isinstance(cell, bool)

    if not is_any_real_numeric_dtype(cells.dtype):  # pandas converts dates and booleans too
        cells = cells.astype(object)
        cells = cells.where(cells.map(is_number).astype(bool))
    return pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)


def read_bounds(cells: pd.Series) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Convert cells as `read_numbers` does, also those such as ``>1000``; each of shape (R,).

    The second result is on which side of its number each value lies: 1 above, -1 below, 0 exact.
    """
    if is_any_real_numeric_dtype(cells.dtype):
        return read_numbers(cells), np.zeros(len(cells), np.int8)
    values = cells.tolist()
    sides = np.zeros(len(values), np.int8)
    for i, value in enumerate(values):
        if isinstance(value, str) and (found := _BOUND.match(value)):
            values[i], sides[i] = value[found.end() :], SIGNS[found[1]]
    return read_numbers(pd.Series(values, dtype=object)), sides


def refuse_other_units(source: str, column: str, raw: NDArray[np.float64], label: Label) -> None:
    """Refuse labels that are classes, or of which over half are no affinities in the unit `label`.

    `raw` (N,) are finite numbers, positive where the unit requires it.
    """
    where, choose = f"{source}: column {column}", "Choose the column with --column pkd=NAME"
    if np.unique(raw).tolist() == [0, 1]:
        msg = f"{where} holds only 0 and 1, which are classes, not affinities. {choose}."
        raise BadLabel(msg)
    if label == "pkd" and ((raw > 0) & (raw < 1e-3)).all():
        msg = (
            f"{where} looks like Kd in M (all values below 1e-3), of which lower is stronger, but "
            f"pKd was expected. If it is Kd, use --label kd_m. {choose} otherwise."
        )
        raise BadLabel(msg)
    pkd = TO_PKD[label](raw)
    unusual = outside(pkd, USUAL_PKD)
    if 2 * unusual.sum() > len(pkd):
        twice = 2 * np.sum(~outside(pkd, DOUBLE_LOG)) > len(pkd)
        hint = " (was the logarithm taken twice?)" if twice else ""
        units = " or ".join(_likely_units(column, raw, label))
        lower = "if lower is stronger, " if label == "pkd" else ""
        unit = f"--label {units}" if units else f"{lower}the unit with --label"
        msg = (
            f"{where}: {unusual.sum()} of {len(pkd)} labels, such as {raw[unusual][0]:g}, are not "
            f"affinities if read as {label}{hint}: outside the usual range of pKd (2 to 14). "
            f"{choose}, or {unit}."
        )
        raise BadLabel(msg)


def _likely_units(column: str, raw: NDArray[np.float64], label: Label) -> list[Label]:
    """List the units that the name of a column states, or that fit its values, (N,).

    The values of a score or a melting temperature fit some unit too. Units that reverse the order
    of the rows are therefore listed only if the name supports them.
    """
    if named := [unit for unit in named_units(column) if unit != label]:
        return named
    if label == "pkd" and not names_kd(column):
        return []
    return [unit for unit in fitting_units(raw) if unit != "pkd"]


def named_units(column: str) -> list[Label]:
    """List the units that a column's name states."""
    roles = named_roles(column)
    return [unit for unit in TO_PKD if unit in roles]


def fitting_units(raw: NDArray[np.float64]) -> list[Label]:
    """List the units in which nearly all values, (N,), are usual affinities that differ."""
    fitting: list[Label] = []
    for unit, convert in TO_PKD.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            pkd = convert(raw)
        usual = (pkd >= USUAL_PKD[0]) & (pkd <= USUAL_PKD[1])
        if len(raw) and usual.mean() >= FITTING_SHARE and np.ptp(pkd[usual]) > 0.01:
            fitting.append(unit)
    return fitting


def outside(values: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.bool_]:
    """Return which values, (N,), are below or above the bounds."""
    return (values < bounds[0]) | (values > bounds[1])


def read_censored(table: SequenceTable, pkd: NDArray[np.float64], label: Label) -> NDArray[np.int8]:
    """Return on which side of each row's label the pKd lies: -1 below, +1 above, 0 exact.

    The relation is in the label, or in the column of the role ``censored``. `pkd` (N,) is NaN where
    there is no label, of which `label` is the unit; bounds can be given in it as well.
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


def describe_columns(table: SequenceTable) -> str:
    """List the columns that play a role, and the others."""
    used = _used_columns(table)
    roles = [f"{role} {name!r}" for role, name in used.items()]
    unused = [name for name in map(str, table.names) if name not in used.values()]
    rest = f"; not used: {quote_names(unused)}" if unused else ""
    return f"columns: {', '.join(roles)}{rest}"


def label_sense(table: SequenceTable, label: Label | None) -> tuple[str, list[str]]:
    """Say whether a higher label means stronger binding, why, and what contradicts it."""
    table, label = find_label(table, label)
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


def find_label(table: SequenceTable, label: Label | None) -> tuple[SequenceTable, Label]:
    """Return the table with a column for ``pkd``, and the unit of that column.

    Without such a column, the only one whose name states a unit is taken. A unit that the user
    chose takes precedence over the one that the name states.
    """
    if not table.has("pkd"):
        named = {
            name: unit
            for name in map(str, table.names)
            for unit in named_units(name)
            if label in (None, unit)
        }
        if len(named) == 1:
            table = replace(table, columns={**table.columns, "pkd": next(iter(named))})
        elif hints := _suggest_label(table):
            msg = f"{table.source}: no column for pkd, but {' '.join(hints)}"
            raise UnclearLabel(msg)
    stated: Label = next(iter(named_units(table.column("pkd"))), "pkd")
    return table, label or stated


def _suggest_label(table: SequenceTable) -> list[str]:
    """Name the columns that may be the label of a table without a column for pKd."""
    found = []
    for name in map(str, table.frame.columns):
        units: dict[str, str] = {unit: f"is named like {unit}" for unit in named_units(name)}
        if names_log10_nm(name):
            units = {"log10_kd_nm": "is log10 of Kd in nM, lower is stronger"}
        elif names_kd(name):
            fitting = fitting_units(read_bounds(table.frame[name])[0])
            fitting = [unit for unit in fitting if unit != "pkd"]  # would reverse the order
            units = {" or ".join(fitting) or "UNIT": "may be one"}
        use = f"use --column {shlex.quote(f'pkd={name}')} --label"
        found += [f"{name!r} {why}: {use} {unit}." for unit, why in units.items()]
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
        same = [unit for unit, distance in away.items() if distance < SAME_COLUMN]
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
