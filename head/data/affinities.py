"""The one reader of labels: which column is the label or prediction, its unit, and its pKd.

Every command that needs labels, or the predictions of another tool, reads them here, and here it
is decided what they measure: an affinity, or another quantity (`head.data.quantity`), whose values
stay as they are. R rows.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import is_any_real_numeric_dtype

from abag.core.arrays import Bools, Floats
from abag.core.errors import ColumnError, LabelError
from abag.core.messages import counted
from abag.embed.sequences.columns import quote_names, with_found
from abag.head.data.options import Better, Label, LabelOptions
from abag.head.data.quantity import PKD, Quantity, read_value_header
from abag.head.data.units import (
    HIGHER_IS_STRONGER,
    OF_MASS,
    TO_PKD,
    is_of_alphaseq,
    read_header,
    stronger,
    to_pkd,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.tables import Table

AS_IN_THE_RUN = "as in the run"
"""Why a column has a unit."""
USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""
SIDES = {">": 1, "≥": 1, "<": -1, "≤": -1, "": 0, "=": 0, "~": 0}
"""Relations by their first character: on which side of a number the value lies."""
_BOUND = re.compile(r"\s*([<>≥≤=~])=?\s*(?=[-+.\d])")
RANK_COLUMNS = ("rank", "score", "expected_best", "probability_above")
PREDICT_COLUMNS = ("pkd_predicted", "sigma", "regime", "far", "why_far")
STRONG_COLUMN = "p_strong"
SCAN_MEASURED = ("pkd_measured", "measured")
WRITTEN_BY = {
    "rank": RANK_COLUMNS,
    "predict": (*PREDICT_COLUMNS, STRONG_COLUMN, "predicted"),
    "scan": ("difference", "difference_sigma", *SCAN_MEASURED),
}
"""Columns that commands add to tables, which come back with measurements from the laboratory."""
_CERTAIN = frozenset(
    {"rank", "expected_best", "probability_above", "pkd_predicted", "why_far", "p_strong",
     "difference_sigma", "pkd_measured"}
)  # fmt: skip
"""Of these, names that no other table has; the others are of a command only beside one."""
NO_BINDING = frozenset(
    "nb nobinding nobind nobinder nonbinder nonbinders nonbinding notbinding doesnotbind dnb "
    "nobindingdetected nobindingobserved nodetectablebinding nd notdetected nondetected "
    "notdetectable nonedetected undetectable undetected bdl belowdetection belowdetectionlimit "
    "belowlimitofdetection".split()
)
"""Words for a pair that does not bind, without spaces and signs."""
BOUND_OF_A_NON_BINDER: dict[Label, str] = {
    "pkd": "<5", "kd_m": ">1e-5", "kd_mm": ">0.01", "kd_um": ">10", "kd_nm": ">10000",
    "kd_pm": ">1e7", "log10_kd_m": ">-5", "log10_kd_um": ">1", "log10_kd_nm": ">4",
    "log10_kd_pm": ">7", "neg_log10_kd_nm": "<-4", "ln_kd_m": ">-11.5", "ln_kd_nm": ">9.2",
    "ka_per_m": "<1e5", "ka_per_um": "<0.1", "ka_per_nm": "<1e-4", "ug_ml": ">1500",
    "ng_ml": ">1.5e6", "dg_kcal": ">-6.8", "dg_kj": ">-28.5",
}  # fmt: skip
"""How a pair without binding at 10 uM is written."""
_UNNAMED = re.compile(r"Unnamed: \d+|index", re.IGNORECASE)
"""Columns of the index that pandas writes."""
_CLASS_WORDS = frozenset({"true", "false", "yes", "no", "y", "n", "+", "-", "binder", "positive",
                          "negative", "pos", "neg", "binding", "high", "low"})  # fmt: skip
"""Words that classes are called by, beside `NO_BINDING`."""
_MOST_PROPOSED = 4
_IN_THE_NAME = "the column is named so"


class UnclearLabel(ColumnError):
    """No column is the label for sure, but some may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """How a run read its labels, for tables that say nothing else."""

    column: str
    unit: Label
    no_binding_pkd: float | None = None
    no_binding_empty: bool = False
    quantity: Quantity = PKD


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinities:
    """Values of a column as pKd, or of another quantity as they are, and what was read."""

    source: str
    column: str
    unit: Label
    why: str
    """What says that the column has this unit."""
    raw: Floats
    """Shape (R,); the numbers of the cells, NaN for other cells."""
    pkd: Floats
    """Shape (R,); NaN for what is no affinity. Of another quantity, its values."""
    side: NDArray[np.int8]
    """Shape (R,); 0: exact, -1: the true pKd (or value) is below, +1: above."""
    no_binding: Bools
    """Shape (R,); the rows whose cells say that nothing binds, read as a bound."""
    molar_mass_kda: float
    words: tuple[str, ...] = ()
    """Some of these cells."""
    bound: str = ""
    """What they are read as."""
    quantity: Quantity = PKD

    def describe(self, rows: Bools | None = None, noun: str = "labels") -> str:
        """Say in one line what was read and why."""
        known = np.isfinite(self.pkd) & ~self.no_binding
        known = known if rows is None else known & rows
        evidence = [self._range(known)] if self.quantity.affinity or known.any() else []
        evidence += [self.why] if self.why else []
        if self.no_binding.any():
            such = f" such as {', '.join(map(repr, self.words))}" if self.words else ""
            count = int(self.no_binding.sum())
            evidence.append(f"{count:,} cells{such} read as {self.bound}")
        if self.quantity.affinity:
            read = f"{self.unit}, {stronger(self.unit)} is stronger"
        else:
            read = self.quantity.description
        return f"{noun}: {self.column!r} read as {read} ({'; '.join(evidence)})"

    def _range(self, known: Bools) -> str:
        """Say where the known values lie, (R,)."""
        if self.quantity.affinity:
            usual = int((known & ~outside(self.pkd, USUAL_PKD)).sum())
            return f"{usual:,} of {known.sum():,} are in the usual range of pKd (2 to 14)"
        low, high = (self.quantity.show(float(end)) for end in (self.pkd[known].min(),
                                                                self.pkd[known].max()))  # fmt: skip
        return f"{counted(int(known.sum()), 'value')}, {low} to {high}"

    def refuse_other_units(self, rows: Bools, noun: str = "labels") -> None:
        """Refuse values that are classes, or of which over half of `rows` are no affinities."""
        rows = rows & ~self.no_binding
        raw, pkd = self.raw[rows], self.pkd[rows]
        if not len(raw):
            return
        where = f"{self.source}: column {self.column}"
        if not self.quantity.affinity:
            refuse_two_values(raw, where, str(self.quantity))
            return
        role = "pkd" if noun == "labels" else "prediction"
        choose = f"Choose the column with --column {role}=NAME"
        if np.unique(raw).tolist() == [0, 1]:
            msg = f"{where} holds only 0 and 1, which are classes, not affinities. {choose}."
            raise LabelError(msg)
        unusual = outside(pkd, USUAL_PKD)
        if 2 * unusual.sum() > len(raw):
            msg = (
                f"{where}: {unusual.sum()} of {len(raw)} {noun}, such as {raw[unusual][0]:g}, are "
                f"not affinities if read as {self.unit}: outside the usual range of pKd (2 to 14). "
                f"{choose}, or the unit with --label; another quantity than an affinity needs "
                "--label value --better higher, or lower."
            )
            raise LabelError(msg)


def refuse_two_values(raw: Floats, where: str, what: str) -> None:
    """Refuse numbers, shape (R,), of which there are only two, as measurements of `what`."""
    distinct = np.unique(raw[np.isfinite(raw)])
    if len(distinct) == 2 < np.isfinite(raw).sum():
        low, high = (f"{value:g}" for value in distinct)
        msg = (
            f"{where} holds only {low} and {high}, which are two classes, not measurements of "
            f"{what}; abag predicts numbers, and expected more than two different ones. Choose a "
            "column of measurements with --column label=NAME."
        )
        raise LabelError(msg)


def outside(values: Floats, bounds: tuple[float, float]) -> Bools:
    return (values < bounds[0]) | (values > bounds[1])


# --- which column ---------------------------------------------------------------------------------


def read_affinities(
    table: Table, options: LabelOptions, *, remembered: Remembered | None = None
) -> Affinities:
    """Find the label of a table and its unit, and convert it to pKd.

    Parameters
    ----------
    table : Table
        With ``pkd`` or ``label`` among its roles if the user named the column; with ``label``,
        what it measures has to be stated.
    options : LabelOptions
    remembered : Remembered, optional
        Used for a column of the same name that states no unit.

    Returns
    -------
    Affinities

    Raises
    ------
    ColumnError
        If no column is the label, or the unit is not known.
    LabelError
        If the name of the column contradicts ``--label``, or the column is no measurement.
    """
    column = table.columns.get("label", table.columns.get("pkd"))
    if column is None and remembered is not None and remembered.column in map(str, table.names):
        column = remembered.column
    elif column is None and remembered is not None and not remembered.quantity.affinity:
        column = _find_same(table, remembered.quantity)
    elif column is None:
        column = _find_label(table, options, of_run=remembered is not None)
    unit, why, quantity = _unit_of(table, column, "pkd", options, remembered)
    return _read_column(table, column, unit, why, options, remembered, quantity)


def read_predictions(table: Table, options: LabelOptions, quantity: Quantity = PKD) -> Affinities:
    """Find the predictions of another tool and their unit, and convert them to pKd.

    Those of another `quantity` than an affinity are taken as they are. Raises as `read_affinities`.
    """
    if not quantity.affinity:
        _refuse_affinity_options(table, options, quantity)
        column = table.column("prediction")
        _refuse_affinity(table, column, quantity)
        return _read_column(table, column, "value", AS_IN_THE_RUN, options, None, quantity)
    column, unit, why = choose_prediction(table, options.label)
    return _read_column(table, column, unit, why, options, None, quantity)


def choose_prediction(table: Table, label: Label | None = None) -> tuple[str, Label, str]:
    """Return the column of predictions, its unit, and what says so."""
    column = table.columns.get("prediction")
    if column is None and "prediction" not in table.ties:
        headers = {name: read_header(name) for name in map(str, table.names)}
        named = [name for name, one in headers.items() if one.predicted and one.units]
        column = named[0] if len(named) == 1 else None
    column = table.column("prediction") if column is None else column
    unit, why, _ = _unit_of(table, column, "prediction", LabelOptions(label=label), None)
    return column, unit, why


def _unit_of(
    table: Table,
    column: str,
    role: str,
    options: LabelOptions,
    remembered: Remembered | None,
) -> tuple[Label, str, Quantity]:
    """Return the unit of a column, what says so, and its quantity; refuse contradicted ones."""
    header, where = read_header(column), f"{table.source}: column {column!r}"
    command = written_by(column, table.names)
    label = options.label
    if role == "pkd" and command and column not in SCAN_MEASURED:
        msg = (
            f"{where} is a column of abag {command}, not a measurement; expected measured "
            f"affinities. {' '.join(_propose_numbers(table)) or 'Use --column pkd=NAME.'}"
        )
        raise LabelError(msg)
    if role == "pkd":
        other = _other_quantity(table, column, options, remembered)
        if other is not None:
            return "value", *other
    if header.not_label:
        msg = (
            f"{where} is named like {header.not_label}, not like an affinity; expected pKd, Kd, Ka "
            f"or dG. Choose another with --column {role}=NAME, or rename it"
            + (
                "; to learn it as it is, add --label value --better higher, or lower."
                if role == "pkd"
                else "."
            )
        )
        raise LabelError(msg)
    if label is not None:
        if header.units and label not in header.units:
            stated = " or ".join(header.units)
            msg = (
                f"{where} is named like {stated}, but --label says {label}; expected the unit of "
                "the name. Leave --label out, or rename the column."
            )
            raise LabelError(msg)
        return label, "given by --label", PKD
    if remembered is not None and remembered.column == column and len(header.units) != 1:
        return remembered.unit, AS_IN_THE_RUN, PKD
    if header.units:
        return header.units[0], _IN_THE_NAME, PKD
    if header.affinity:
        given = ", ".join(unit for unit in TO_PKD if unit != "pkd")
        msg = (
            f"{where} names no unit that is understood; expected one of {given}. Give it with "
            f"--column {shlex.quote(f'{role}={column}')} --label UNIT"
            + (
                "; a quantity that is no affinity needs --label value --better higher, or lower."
                if role == "pkd"
                else "."
            )
        )
        raise UnclearLabel(msg)
    is_words = all(map(says_class, table.frame[column].dropna()))  # which are refused later
    if role == "pkd" and table.columns.get("label") == column and not is_words:
        refuse_two_values(read_bounds(table.frame[column])[0], where, "an affinity")
        msg = (
            f"{where} does not say what it measures; expected an affinity in a unit, or another "
            "quantity. Add --label pkd, or another unit such as kd_nm, or for a quantity that is "
            "no affinity --label value --better higher, or lower."
        )
        raise UnclearLabel(msg)
    return "pkd", "" if role == "prediction" else "no unit is stated", PKD


def name_affinity(table: Table, affinity_type: str | None) -> str:
    """Name affinities: pIC50 or pEC50 if their column or affinity type says so, or pKd."""
    says = [table.column("pkd"), affinity_type or ""]
    if affinity_type is None and table.has("affinity_type"):  # of one type: they are never mixed
        says += table.frame[table.column("affinity_type")].astype(str).unique().tolist()
    found = re.search("(ic|ec)50", " ".join(says).lower())
    return f"p{found[0].upper()}" if found else "pKd"


# ---- other quantities than affinities ------------------------------------------------------------


def _other_quantity(
    table: Table, column: str, options: LabelOptions, remembered: Remembered | None
) -> tuple[str, Quantity] | None:
    """Return what says that a column is no affinity, and its quantity; None if it is one.

    Of a run, it has to be the quantity of the run.
    """
    of_run = None if remembered is None else remembered.quantity
    if of_run is not None and not of_run.affinity:
        _refuse_affinity_options(table, options, of_run)
        _refuse_affinity(table, column, of_run)
        _refuse_other_kind(table, column, of_run)
        return AS_IN_THE_RUN, of_run
    header = read_header(column)
    value = read_value_header(column)
    is_affinity = header.affinity and not header.unit_alone and not header.not_label
    asked = options.label == "value" or options.better is not None or options.unit is not None
    is_known = value.better is not None and not is_affinity
    if not asked and not is_known:
        return None
    where = f"{table.source}: column {column!r}"
    if is_affinity and header.units:
        msg = (
            f"{where} is named like {header.units[0]}, an affinity, which is learned as pKd, and "
            "--label value, --better or --unit is of other quantities; expected one or the other. "
            "Leave these options out, or choose another column with --column label=NAME."
        )
        raise LabelError(msg)
    if options.label not in (None, "value"):
        msg = (
            f"{where} is named like another quantity than an affinity, but --label says "
            f"{options.label}; expected --label value. Leave --label out, or rename the column."
        )
        raise LabelError(msg)
    if of_run is not None:
        msg = (
            f"{where} is {value.name!r}, not an affinity, which the run predicts; expected labels "
            "of its kind. Choose another column with --column label=NAME."
        )
        raise LabelError(msg)
    better = options.better or value.better
    if better is None:
        refuse_two_values(read_bounds(table.frame[column])[0], where, value.name)
        msg = (
            f"{where}: which of its values are better is not known; expected higher or lower. Add "
            "--better higher, or --better lower."
        )
        raise UnclearLabel(msg)
    unit = value.unit if options.unit is None else options.unit.strip()
    quantity = Quantity(name=value.name, unit=unit, better=better, affinity=False)
    return "given by the options" if asked else _IN_THE_NAME, quantity


def _refuse_affinity(table: Table, column: str, quantity: Quantity) -> None:
    if _is_named_affinity(column):
        msg = (
            f"{table.source}: column {column!r} is named like {read_header(column).unit}, an "
            f"affinity; expected {quantity}, which the run predicts. Choose another with --column."
        )
        raise LabelError(msg)


def _refuse_affinity_options(table: Table, options: LabelOptions, quantity: Quantity) -> None:
    better: Better | None = options.better
    if options.label not in (None, "value") or better not in (None, quantity.better):
        given = f"--label {options.label}" if better is None else f"--better {better}"
        msg = (
            f"{table.source}: {given}: the run predicts {quantity.description}; expected labels "
            "of that. Leave the option out."
        )
        raise LabelError(msg)


def _refuse_other_kind(table: Table, column: str, quantity: Quantity) -> None:
    """Refuse a column whose name says another direction, or another unit, than the run has."""
    value = read_value_header(column)
    unit = value.unit
    same = value.name.casefold() == quantity.name.casefold()
    if not same and value.better not in (None, quantity.better):
        msg = (
            f"{table.source}: column {column!r} is named like a quantity of which {value.better} "
            f"is better; expected {quantity.description}, as in the run. Choose another with "
            "--column label=NAME, or rename it."
        )
        raise LabelError(msg)
    if unit and quantity.unit and _spelled(unit) != _spelled(quantity.unit):
        msg = (
            f"{table.source}: column {column!r} is in {unit}; expected {quantity.unit}, as in the "
            "run. Convert it, and name it so."
        )
        raise LabelError(msg)


def _spelled(unit: str) -> str:
    return re.sub(r"[\s.*·^]|deg(?:rees?)?|°", "", unit.casefold())


def _find_same(table: Table, quantity: Quantity) -> str:
    """Return the only column of numbers with the name of a quantity, that of a run."""
    same = [
        name
        for name in _number_columns(table)
        if read_value_header(name).name.casefold() == quantity.name.casefold()
    ]
    if len(same) == 1:
        return same[0]
    problem = f"{table.source}: no column for {quantity}, which the run predicts"
    how = "Name it with --column label=NAME."
    raise ColumnError(with_found(problem, table.names, how))


def _find_value(table: Table) -> str | None:
    """Return the only column of numbers, if its name says that it is no affinity but a quantity."""
    numbers = _number_columns(table)
    return numbers[0] if len(numbers) == 1 and read_value_header(numbers[0]).better else None


def has_numbers(table: Table) -> bool:
    """Tell whether a column that plays no role holds numbers, so that one may be the label."""
    return bool(_number_columns(table))


def _number_columns(table: Table) -> list[str]:
    """List the free columns of numbers that no command has written.

    Constants, such as the pH of an assay, are left out if there are others.
    """
    numbers = [
        name
        for name in _free_columns(table)
        if not written_by(name, table.names)
        and not _UNNAMED.fullmatch(name)
        and not read_value_header(name).describes_another
        and holds_numbers(table, name)
    ]
    varied = [name for name in numbers if len(table.frame[name].dropna().unique()) > 1]
    return varied or numbers


def _is_named_affinity(name: str) -> bool:
    header = read_header(name)
    return bool(header.units) and header.affinity and not header.unit_alone


def _refuse_unclear_value(table: Table, options: LabelOptions) -> None:
    """Raise an error that lists the columns that may be another quantity than an affinity."""
    numbers = _number_columns(table)
    asked = options.label == "value"
    known = [name for name in numbers if asked or read_value_header(name).better]
    if not known and asked:
        problem = f"{table.source}: no column of numbers for the label"
        how = "Name it with --column label=NAME."
        raise ColumnError(with_found(problem, table.names, how))
    if not known:
        return
    listed = known[:_MOST_PROPOSED]
    more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
    named = f"--column {shlex.quote(f'label={listed[0]}')}"
    empty = int(table.frame[listed[0]].isna().sum())
    skip = f" Its empty cells, {empty:,}, need --bad-rows skip." if empty else ""
    msg = (
        f"{table.source}: no column for {'the label' if asked else 'pkd'}, but "
        f"{quote_names(listed)}{more} may be another quantity; expected one to be chosen. Use "
        f"{named}"
        + (" --label value --better higher, or lower." if asked and not options.better else ".")
        + skip
    )
    raise UnclearLabel(msg)


def _advise_value(table: Table) -> str:
    """Say how a column of numbers is read whose name says nothing; empty without one."""
    numbers = _number_columns(table)  # rates and differences come last
    numbers.sort(key=lambda name: bool(read_header(name).not_label))
    if not numbers:
        return ""
    named = shlex.quote(f"label={numbers[0]}")
    return (
        f", or a quantity that is no affinity with --column {named} --label value --better higher, "
        "or lower"
    )


def _find_label(table: Table, options: LabelOptions, *, of_run: bool = False) -> str:
    """Return the only column whose name says that it is the label, in the unit of `label`.

    For a table of a run of affinities (`of_run`), other quantities are neither taken nor proposed.
    """
    label = options.label
    asked = options.better is not None or options.unit is not None
    if label == "value" or asked:
        numbers = [name for name in _number_columns(table) if not _is_named_affinity(name)]
        if len(numbers) == 1:
            return numbers[0]
        _refuse_unclear_value(table, replace(options, label="value"))
    headers = {
        name: read_header(name)
        for name in _free_columns(table)
        if not written_by(name, table.names)
    }
    stated = {
        name: one
        for name, one in headers.items()
        if one.sure and one.units and (label is None or label in one.units)
    }
    first = min((one.order for one in stated.values()), default=0)
    best = [name for name, one in stated.items() if one.order == first]
    if len(best) == 1:
        return best[0]
    if len(best) > 1 and first < 2:
        msg = (
            f"{table.source}: columns {quote_names(best)} fit pkd equally well; expected one. "
            f"Choose with {' or '.join(_as_label(name) for name in best)}; for a run of each, give "
            "each its own --run folder, and compare them with abag runs."
        )
        raise ColumnError(msg)
    if label is not None and not best:
        bare = [
            name for name, one in headers.items() if one.affinity and one.sure and not one.units
        ]
        plain = [name for name, one in headers.items() if one.plain]
        for names in (bare, plain):
            if len(names) == 1:
                return names[0]
        others = [name for name, one in headers.items() if one.sure and one.units]
        if not bare and not plain and len(others) == 1:
            return others[0]  # its name contradicts the option, which is refused
    written = [
        f"{name!r} is a column of abag {command}."
        for name in map(str, table.names)
        if (command := written_by(name, table.names))
        and (read_header(name).plain or read_header(name).units)
    ]
    stated_too = any(one.units and not one.unit_alone for one in headers.values())
    hints = [
        hint
        for name, one in headers.items()
        if one.units or is_of_alphaseq(name) or not stated_too
        for hint in _propose(table, name)
    ]
    if written and not hints:
        hints = _propose_numbers(table)
    takes_value = label is None and not of_run
    if not hints and not written and takes_value and (value := _find_value(table)) is not None:
        return value
    if hints:
        quantities = _propose_quantities(table) if takes_value else []
        msg = f"{table.source}: no column for pkd, but {' '.join([*quantities, *hints, *written])}"
        raise UnclearLabel(msg)
    if written:
        msg = (
            f"{table.source}: no column for pkd. {' '.join(written)} Add a column of measurements, "
            "and name it with --column pkd=NAME."
        )
        raise ColumnError(msg)
    if takes_value:
        _refuse_unclear_value(table, options)
    return table.column("pkd", "" if of_run else _advise_value(table))


def _as_label(name: str) -> str:
    return f"--column {shlex.quote(f'pkd={name}')}"


def _free_columns(table: Table) -> list[str]:
    """List the columns that have no role."""
    used = {*table.columns.values()}
    return [name for name in map(str, table.names) if name not in used]


def _propose(table: Table, name: str) -> list[str]:
    """Say how a column is read that may be the label by its name; nothing for others."""
    header = read_header(name)
    if header.not_label or not (header.affinity or header.plain):
        return []
    if not (header.sure or holds_numbers(table, name)):
        return []
    use = f"use --column {shlex.quote(f'pkd={name}')} --label"
    if is_of_alphaseq(name):
        return [f"{name!r} is log10 of Kd in nM, lower is stronger: {use} log10_kd_nm."]
    if header.unit_alone:
        return []
    if header.units:
        return [f"{name!r} is named like {header.units[0]}: {use} {header.units[0]}."]
    hint = "." if header.affinity else " (value --better higher: if it is no affinity)."
    return [f"{name!r} may be one: {use} UNIT{hint}"]


def _propose_quantities(table: Table) -> list[str]:
    """Say how the columns are read that are named like another quantity than an affinity."""
    named = [name for name in _number_columns(table) if read_value_header(name).better]
    return [
        f"{name!r} is named like a quantity that is no affinity: use --column "
        f"{shlex.quote(f'label={name}')}."
        for name in named[:_MOST_PROPOSED]
        if not _is_named_affinity(name)
    ]


def _propose_numbers(table: Table) -> list[str]:
    """Propose the columns of numbers of a table that a command has written."""
    free = [
        name
        for name in _free_columns(table)
        if not written_by(name, table.names)
        and not read_header(name).not_label
        and holds_numbers(table, name)
    ]
    return [
        f"{name!r} may be one: use --column {shlex.quote(f'pkd={name}')} --label UNIT "
        "(value --better higher: if it is no affinity)."
        for name in free[:_MOST_PROPOSED]
    ]


def holds_numbers(table: Table, name: str) -> bool:
    """Tell whether most cells of a column that are not empty are numbers or bounds."""
    if name not in table.frame:
        return False
    cells = table.frame[name].dropna()
    return bool(len(cells)) and 2 * int(np.isfinite(read_bounds(cells)[0]).sum()) > len(cells)


def written_by(name: str, names: Sequence[object]) -> str:
    """Return the command that has written a column of a table, or nothing."""
    own = _as_written(name)
    if own != "rank" and not any(own in columns for columns in WRITTEN_BY.values()):
        return ""  # before the others are looked at: tables may have 100,000 columns
    beside = {_as_written(str(one)) for one in names} - {own}
    for command, columns in WRITTEN_BY.items():
        if own == "measured" and "difference" not in beside:
            continue  # a word of every laboratory
        if own in columns and (own in _CERTAIN - {"rank"} or beside & _CERTAIN):
            return command
        if own == "rank" and "score" in beside:
            return "rank"
    return ""


def _as_written(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


# --- cells ----------------------------------------------------------------------------------------


def _read_column(
    table: Table,
    column: str,
    unit: Label,
    why: str,
    options: LabelOptions,
    remembered: Remembered | None,
    quantity: Quantity = PKD,
) -> Affinities:
    if options.molar_mass is not None and unit not in OF_MASS and remembered is None:
        msg = (
            f"{table.source}: column {column!r} is read as {unit}, which needs no molar mass; "
            "expected ug_ml or ng_ml with --molar-mass. Leave it out, or give --label."
        )
        raise LabelError(msg)
    cells = table.frame[column]
    raw, side = read_bounds(cells)
    mass = options.molar_mass_kda
    pkd = to_pkd(raw, unit, mass)
    direction = 1 if unit in HIGHER_IS_STRONGER or not quantity.affinity else -1
    found = Affinities(
        source=table.source, column=column, unit=unit, why=why, raw=raw, pkd=pkd,
        side=(direction * side).astype(np.int8), no_binding=np.zeros(len(raw), np.bool_),
        molar_mass_kda=mass, quantity=quantity,
    )  # fmt: skip
    floor = None
    empty = options.no_binding_empty
    if options.no_binding is not None:
        floor = float(to_pkd(np.array([options.no_binding]), unit, mass)[0])
        if quantity.affinity and not USUAL_PKD[0] - 2 <= floor <= USUAL_PKD[1]:
            msg = (
                f"{table.source}: --no-binding {options.no_binding:g} is not an affinity if read "
                f"as {unit}, the unit of column {column!r}; expected a bound such as "
                f"{BOUND_OF_A_NON_BINDER[unit][1:]}."
            )
            raise LabelError(msg)
    elif remembered is not None and remembered.no_binding_pkd is not None:
        floor, empty = remembered.no_binding_pkd, remembered.no_binding_empty
    if floor is None:
        return found
    sign = ">" if direction * quantity.sign < 0 else "<"
    bound = f"pKd <{floor:g}" if options.no_binding is None else f"{sign}{options.no_binding:g}"
    bound = bound if quantity.affinity else f"{sign}{floor:g}"
    return _with_no_binding(found, cells, floor, bound, empty=empty)


def _with_no_binding(
    found: Affinities, cells: pd.Series, floor: float, bound: str, *, empty: bool
) -> Affinities:
    """Read the words for no binding, and perhaps empty cells, as a pKd below `floor`."""
    is_text = ~np.isfinite(found.raw)
    says = is_text & np.array([says_no_binding(cell) for cell in cells.tolist()], np.bool_)
    words = tuple(dict.fromkeys(str(cell).strip() for cell in cells[says]))[:3]
    if empty:
        blank = cells.isna().to_numpy(np.bool_) | np.array(
            [isinstance(c, str) and not c.strip() for c in cells.tolist()], np.bool_
        )
        if (blank & is_text).any():
            words = (*words, "")
        says |= blank & is_text
    exact = np.isfinite(found.pkd) & (found.side == 0)
    sign = found.quantity.sign
    if says.any() and exact.any() and sign * floor > (sign * found.pkd[exact]).max():
        msg = (
            f"{found.source}: --no-binding: a non-binder would be weaker than {bound}, which is "
            f"stronger than every exact label of column {found.column!r}; expected a bound at the "
            "weak end. Give the highest concentration tested."
        )
        raise LabelError(msg)
    return replace(
        found, pkd=np.where(says, floor, found.pkd), no_binding=says, words=words, bound=bound,
        side=np.where(says, -sign, found.side).astype(np.int8),
    )  # fmt: skip


def says_class(cell: object) -> bool:
    """Tell whether a cell is a truth value or a word for a class, not a measurement."""
    if isinstance(cell, bool | np.bool_):
        return True
    return isinstance(cell, str) and (cell.strip().lower() in _CLASS_WORDS or says_no_binding(cell))


def says_no_binding(cell: object) -> bool:
    """Tell whether a cell says in words that a pair does not bind."""
    return (
        isinstance(cell, str)
        and re.sub(r"[^a-z]", "", cell.lower()) in NO_BINDING
        and (re.search(r"\d", cell) is None)
    )


def read_numbers(cells: pd.Series) -> Floats:
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


def read_bounds(cells: pd.Series) -> tuple[Floats, NDArray[np.int8]]:
    """Convert cells as `read_numbers` does, also those such as ``>1000``; each of shape (R,).

    The second result is the side of its number where each value lies: 1 above, -1 below, 0 exact.
    """
    if is_any_real_numeric_dtype(cells.dtype):
        return read_numbers(cells), np.zeros(len(cells), np.int8)
    values = cells.tolist()
    sides = np.zeros(len(values), np.int8)
    for i, value in enumerate(values):
        if isinstance(value, str) and (found := _BOUND.match(value)):
            values[i], sides[i] = value[found.end() :], SIDES[found[1]]
    return read_numbers(pd.Series(values, dtype=object)), sides
