"""What a column measures: the unit of an affinity, or another quantity, and what says so.

An option that contradicts the name of the column is refused; a run decides where neither an option
nor the name does.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abag.core.errors import LabelError
from abag.head.data.cells import read_bounds, read_texts, refuse_two_values, says_class
from abag.head.data.headers import read_header
from abag.head.data.label_column import UnclearLabel, is_named_affinity, propose_numbers
from abag.head.data.label_options import Better, Label, LabelOptions
from abag.head.data.quantity import PKD, Quantity, read_value_header
from abag.head.data.units import TO_PKD
from abag.head.data.written_columns import SCAN_MEASURED, written_by

if TYPE_CHECKING:
    from abag.embed.sequences.tables import Table
    from abag.head.data.headers import Header

AS_IN_THE_RUN = "as in the run"
"""Why a column has a unit."""
_IN_THE_NAME = "the column is named so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """How a run read its labels, for tables that say nothing else."""

    column: str
    unit: Label
    no_binding_pkd: float | None = None
    no_binding_empty: bool = False
    quantity: Quantity = PKD


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """What a column of labels or predictions is read as."""

    column: str
    unit: Label
    why: str
    """What says so; empty if nothing needs to."""
    quantity: Quantity = PKD


def choose_prediction(table: Table, label: Label | None = None) -> ColumnMeaning:
    """Find the column of predictions, and what it is read as."""
    column = table.columns.get("prediction")
    if column is None and "prediction" not in table.ties:
        headers = {name: read_header(name) for name in map(str, table.names)}
        named = [name for name, header in headers.items() if header.predicted and header.units]
        column = named[0] if len(named) == 1 else None
    column = table.column("prediction") if column is None else column
    return meaning_of_column(table, column, "prediction", LabelOptions(label=label), None)


def meaning_of_column(
    table: Table,
    column: str,
    role: str,
    options: LabelOptions,
    remembered: Remembered | None,
) -> ColumnMeaning:
    """Find what a column is read as; refuse one that its name or the options contradict.

    Parameters
    ----------
    table : Table
    column : str
        Its name.
    role : str
        ``pkd`` for labels, which may be of another quantity, or ``prediction``.
    options : LabelOptions
    remembered : Remembered, optional
        How the run of the table read its labels.

    Raises
    ------
    LabelError
        If the column is no measurement, or named like another unit than that of the options.
    UnclearLabel
        If the unit is not known.
    """
    if role == "pkd":
        _refuse_written(table, column)
        other = _other_quantity(table, column, options, remembered)
        if other is not None:
            return other
    unit, why = _unit_of_affinity(table, column, role, options, remembered)
    return ColumnMeaning(column=column, unit=unit, why=why)


def _unit_of_affinity(
    table: Table,
    column: str,
    role: str,
    options: LabelOptions,
    remembered: Remembered | None,
) -> tuple[Label, str]:
    """Return the unit of a column of affinities, and what says so."""
    header = read_header(column)
    where = f"{table.source}: column {column!r}"
    if header.not_label:
        hint = ""
        if role == "pkd":
            hint = "; to learn it as it is, add --label value --better higher, or lower"
        msg = (
            f"{where} is named like {header.not_label}, not like an affinity; expected pKd, Kd, Ka "
            f"or dG. Choose another with --column {role}=NAME, or rename it{hint}."
        )
        raise LabelError(msg)
    if options.label is not None:
        _refuse_other_unit(where, header, options.label)
        return options.label, "given by --label"
    # a name that allows one unit says more than the run
    if remembered is not None and remembered.column == column and len(header.units) != 1:
        return remembered.unit, AS_IN_THE_RUN
    if header.units:
        return header.units[0], _IN_THE_NAME
    if header.affinity:
        units = ", ".join(unit for unit in TO_PKD if unit != "pkd")
        hint = ""
        if role == "pkd":
            hint = "; a quantity that is no affinity needs --label value --better higher, or lower"
        choice = f"--column {shlex.quote(f'{role}={column}')} --label UNIT"
        msg = (
            f"{where} names no unit that is understood; expected one of {units}. Give it with "
            f"{choice}{hint}."
        )
        raise UnclearLabel(msg)
    cells = table.frame[column].dropna()
    is_words = all(map(says_class, cells))  # which are refused later
    if role == "pkd" and table.columns.get("label") == column and not is_words:
        numbers, _ = read_bounds(cells)
        refuse_two_values(numbers, where, "an affinity")
        msg = (
            f"{where} does not say what it measures; expected an affinity in a unit, or another "
            "quantity. Add --label pkd, or another unit such as kd_nm, or for a quantity that is "
            "no affinity --label value --better higher, or lower."
        )
        raise UnclearLabel(msg)
    return "pkd", "" if role == "prediction" else "no unit is stated"


def _refuse_written(table: Table, column: str) -> None:
    """Refuse a column of labels that abag itself wrote, unless it holds measurements."""
    command = written_by(column, table.names)
    if command and column not in SCAN_MEASURED:
        advice = " ".join(propose_numbers(table)) or "Use --column pkd=NAME."
        msg = (
            f"{table.source}: column {column!r} is a column of abag {command}, not a measurement; "
            f"expected measured affinities. {advice}"
        )
        raise LabelError(msg)


def _refuse_other_unit(where: str, header: Header, label: Label) -> None:
    """Refuse a unit that is given if the column is named like another one."""
    if header.units and label not in header.units:
        stated = " or ".join(header.units)
        msg = (
            f"{where} is named like {stated}, but --label says {label}; expected the unit of "
            "the name. Leave --label out, or rename the column."
        )
        raise LabelError(msg)


def name_affinity(table: Table, affinity_type: str | None) -> str:
    """Name affinities: pIC50 or pEC50 if their column or affinity type says so, or pKd."""
    says = [table.column("pkd"), affinity_type or ""]
    if affinity_type is None and table.has("affinity_type"):  # of one type: they are never mixed
        says += read_texts(table.frame[table.column("affinity_type")]).unique().tolist()
    match = re.search("(ic|ec)50", " ".join(says).lower())
    return f"p{match[0].upper()}" if match else "pKd"


def _other_quantity(
    table: Table, column: str, options: LabelOptions, remembered: Remembered | None
) -> ColumnMeaning | None:
    """Find the quantity of a column that is no affinity; None if it is one.

    Of a run, it has to be the quantity of the run.
    """
    quantity_of_run = None if remembered is None else remembered.quantity
    if quantity_of_run is not None and not quantity_of_run.affinity:
        refuse_affinity_options(table, options, quantity_of_run)
        refuse_affinity(table, column, quantity_of_run)
        _refuse_other_kind(table, column, quantity_of_run)
        return _as_it_is(column, AS_IN_THE_RUN, quantity_of_run)
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
    if quantity_of_run is not None:
        msg = (
            f"{where} is {value.name!r}, not an affinity, which the run predicts; expected labels "
            "of its kind. Choose another column with --column label=NAME."
        )
        raise LabelError(msg)
    better = options.better or value.better
    if better is None:
        numbers, _ = read_bounds(table.frame[column])
        refuse_two_values(numbers, where, value.name)
        msg = (
            f"{where}: which of its values are better is not known; expected higher or lower. Add "
            "--better higher, or --better lower."
        )
        raise UnclearLabel(msg)
    unit = value.unit if options.unit is None else options.unit.strip()
    quantity = Quantity(name=value.name, unit=unit, better=better, affinity=False)
    return _as_it_is(column, "given by the options" if asked else _IN_THE_NAME, quantity)


def _as_it_is(column: str, why: str, quantity: Quantity) -> ColumnMeaning:
    """Return what a column of another quantity than an affinity is read as: its values."""
    return ColumnMeaning(column=column, unit="value", why=why, quantity=quantity)


def refuse_affinity(table: Table, column: str, quantity: Quantity) -> None:
    """Raise `LabelError` if a column is named like an affinity, which the run does not predict."""
    if is_named_affinity(column):
        msg = (
            f"{table.source}: column {column!r} is named like {read_header(column).unit}, an "
            f"affinity; expected {quantity}, which the run predicts. Choose another with --column."
        )
        raise LabelError(msg)


def refuse_affinity_options(table: Table, options: LabelOptions, quantity: Quantity) -> None:
    """Raise `LabelError` if options ask for another quantity, or direction, than the run has."""
    better: Better | None = options.better
    if options.label not in (None, "value") or better not in (None, quantity.better):
        option = f"--label {options.label}" if better is None else f"--better {better}"
        msg = (
            f"{table.source}: {option}: the run predicts {quantity.description}; expected labels "
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
