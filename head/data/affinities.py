"""The one reader of labels: which column is the label or prediction, its unit, and its pKd.

Every command that needs labels, or the predictions of another tool, reads them here, and here it
is decided what they measure: an affinity, or another quantity (`head.data.quantity`), whose values
stay as they are. R rows.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats
from abag.core.errors import LabelError
from abag.core.messages import counted
from abag.head.data.cells import read_bounds, says_class, says_no_binding
from abag.head.data.label_column import (
    UnclearLabel,
    find_label,
    find_same,
    is_named_affinity,
    propose_numbers,
)
from abag.head.data.options import Better, Label, LabelOptions
from abag.head.data.quantity import PKD, Quantity, read_value_header
from abag.head.data.units import (
    HIGHER_IS_STRONGER,
    OF_MASS,
    TO_PKD,
    read_header,
    stronger,
    to_pkd,
)
from abag.head.data.usual_values import USUAL_PKD, outside, refuse_two_values
from abag.head.data.written_columns import SCAN_MEASURED, written_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.tables import Table

AS_IN_THE_RUN = "as in the run"
"""Why a column has a unit."""
BOUND_OF_A_NON_BINDER: dict[Label, str] = {
    "pkd": "<5", "kd_m": ">1e-5", "kd_mm": ">0.01", "kd_um": ">10", "kd_nm": ">10000",
    "kd_pm": ">1e7", "log10_kd_m": ">-5", "log10_kd_um": ">1", "log10_kd_nm": ">4",
    "log10_kd_pm": ">7", "neg_log10_kd_nm": "<-4", "ln_kd_m": ">-11.5", "ln_kd_nm": ">9.2",
    "ka_per_m": "<1e5", "ka_per_um": "<0.1", "ka_per_nm": "<1e-4", "ug_ml": ">1500",
    "ng_ml": ">1.5e6", "dg_kcal": ">-6.8", "dg_kj": ">-28.5",
}  # fmt: skip
"""How a pair without binding at 10 uM is written."""
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
        numbers = np.isfinite(self.pkd) & ~self.no_binding
        numbers = numbers if rows is None else numbers & rows
        evidence = [self._range(numbers)] if self.quantity.affinity or numbers.any() else []
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
        low, high = (
            self.quantity.show(float(end)) for end in (self.pkd[known].min(), self.pkd[known].max())
        )
        return f"{counted(int(known.sum()), 'value')}, {low} to {high}"

    def refuse_other_units(self, rows: Bools, noun: str = "labels") -> None:
        """Refuse values that are classes, or of which over half of `rows` are no affinities."""
        rows = rows & ~self.no_binding
        raw = self.raw[rows]
        pkd = self.pkd[rows]
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
        column = find_same(table, remembered.quantity)
    elif column is None:
        column = find_label(table, options, of_run=remembered is not None)
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
        named = [name for name, header in headers.items() if header.predicted and header.units]
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
    header = read_header(column)
    where = f"{table.source}: column {column!r}"
    command = written_by(column, table.names)
    label = options.label
    if role == "pkd" and command and column not in SCAN_MEASURED:
        msg = (
            f"{where} is a column of abag {command}, not a measurement; expected measured "
            f"affinities. {' '.join(propose_numbers(table)) or 'Use --column pkd=NAME.'}"
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
        units = ", ".join(unit for unit in TO_PKD if unit != "pkd")
        msg = (
            f"{where} names no unit that is understood; expected one of {units}. Give it with "
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
    match = re.search("(ic|ec)50", " ".join(says).lower())
    return f"p{match[0].upper()}" if match else "pKd"


# ---- other quantities than affinities ------------------------------------------------------------


def _other_quantity(
    table: Table, column: str, options: LabelOptions, remembered: Remembered | None
) -> tuple[str, Quantity] | None:
    """Return what says that a column is no affinity, and its quantity; None if it is one.

    Of a run, it has to be the quantity of the run.
    """
    quantity_of_run = None if remembered is None else remembered.quantity
    if quantity_of_run is not None and not quantity_of_run.affinity:
        _refuse_affinity_options(table, options, quantity_of_run)
        _refuse_affinity(table, column, quantity_of_run)
        _refuse_other_kind(table, column, quantity_of_run)
        return AS_IN_THE_RUN, quantity_of_run
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
    if is_named_affinity(column):
        msg = (
            f"{table.source}: column {column!r} is named like {read_header(column).unit}, an "
            f"affinity; expected {quantity}, which the run predicts. Choose another with --column."
        )
        raise LabelError(msg)


def _refuse_affinity_options(table: Table, options: LabelOptions, quantity: Quantity) -> None:
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
    affinities = Affinities(
        source=table.source,
        column=column,
        unit=unit,
        why=why,
        raw=raw,
        pkd=pkd,
        side=(direction * side).astype(np.int8),
        no_binding=np.zeros(len(raw), np.bool_),
        molar_mass_kda=mass,
        quantity=quantity,
    )
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
        floor = remembered.no_binding_pkd
        empty = remembered.no_binding_empty
    if floor is None:
        return affinities
    sign = ">" if direction * quantity.sign < 0 else "<"
    bound = f"pKd <{floor:g}" if options.no_binding is None else f"{sign}{options.no_binding:g}"
    bound = bound if quantity.affinity else f"{sign}{floor:g}"
    return _with_no_binding(affinities, cells, floor, bound, empty=empty)


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
        found,
        pkd=np.where(says, floor, found.pkd),
        no_binding=says,
        words=words,
        bound=bound,
        side=np.where(says, -sign, found.side).astype(np.int8),
    )
