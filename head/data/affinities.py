"""The one reader of labels: which column is the label or prediction, its unit, and its pKd.

Every command that needs labels, or the predictions of another tool, reads them here, and here it
is decided what they measure: an affinity, or another quantity (`head.data.quantity`), whose values
stay as they are. R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats
from abag.core.errors import LabelError
from abag.core.messages import counted, quoted
from abag.head.data.cells import read_bounds, refuse_two_values, says_no_binding
from abag.head.data.label_column import find_label, find_same
from abag.head.data.label_options import Label, LabelOptions
from abag.head.data.label_unit import (
    AS_IN_THE_RUN,
    ColumnMeaning,
    Remembered,
    choose_prediction,
    meaning_of_column,
    refuse_affinity,
    refuse_affinity_options,
)
from abag.head.data.quantity import PKD, Quantity
from abag.head.data.units import HIGHER_IS_STRONGER, OF_MASS, USUAL_PKD, outside, stronger, to_pkd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.tables import Table

BOUND_OF_A_NON_BINDER: dict[Label, str] = {
    "pkd": "<5", "kd_m": ">1e-5", "kd_mm": ">0.01", "kd_um": ">10", "kd_nm": ">10000",
    "kd_pm": ">1e7", "log10_kd_m": ">-5", "log10_kd_um": ">1", "log10_kd_nm": ">4",
    "log10_kd_pm": ">7", "neg_log10_kd_nm": "<-4", "ln_kd_m": ">-11.5", "ln_kd_nm": ">9.2",
    "ka_per_m": "<1e5", "ka_per_um": "<0.1", "ka_per_nm": "<1e-4", "ug_ml": ">1500",
    "ng_ml": ">1.5e6", "dg_kcal": ">-6.8", "dg_kj": ">-28.5",
}  # fmt: skip
"""How a pair without binding at 10 uM is written."""


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
        if rows is not None:
            numbers &= rows
        evidence = []
        if self.quantity.affinity or numbers.any():
            evidence.append(self._range(numbers))
        if self.why:
            evidence.append(self.why)
        if self.no_binding.any():
            such = f" such as {', '.join(map(quoted, self.words))}" if self.words else ""
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
        low = self.quantity.show(float(self.pkd[known].min()))
        high = self.quantity.show(float(self.pkd[known].max()))
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
    if column is None:
        column = _find_column(table, options, remembered)
    meaning = meaning_of_column(table, column, "pkd", options, remembered)
    return _read_column(table, meaning, options, remembered)


def _find_column(table: Table, options: LabelOptions, remembered: Remembered | None) -> str:
    """Return the column that is the label of the run, or else the label by its own name."""
    if remembered is None:
        return find_label(table, options)
    if remembered.column in map(str, table.names):
        return remembered.column
    if not remembered.quantity.affinity:
        return find_same(table, remembered.quantity)
    return find_label(table, options, of_run=True)


def read_predictions(
    table: Table,
    options: LabelOptions,
    quantity: Quantity = PKD,
    molar_mass: str | None = None,
) -> Affinities:
    """Find the predictions of another tool and their unit, and convert them to pKd.

    Those of another `quantity` than an affinity are taken as they are. `molar_mass` is that of the
    run, unless `options` give one. Raises as `read_affinities`.
    """
    if quantity.affinity:
        meaning = choose_prediction(table, options.label)
        if options.molar_mass is None and meaning.unit in OF_MASS:
            options = replace(options, molar_mass=molar_mass)
        return _read_column(table, replace(meaning, quantity=quantity), options, None)
    refuse_affinity_options(table, options, quantity)
    column = table.column("prediction")
    refuse_affinity(table, column, quantity)
    meaning = ColumnMeaning(column=column, unit="value", why=AS_IN_THE_RUN, quantity=quantity)
    return _read_column(table, meaning, options, None)


def _read_column(
    table: Table, meaning: ColumnMeaning, options: LabelOptions, remembered: Remembered | None
) -> Affinities:
    column = meaning.column
    unit = meaning.unit
    if options.molar_mass is not None and unit not in OF_MASS and remembered is None:
        msg = (
            f"{table.source}: column {column!r} is read as {unit}, which needs no molar mass; "
            "expected ug_ml or ng_ml with --molar-mass. Leave it out, or give --label."
        )
        raise LabelError(msg)
    cells = table.frame[column]
    raw, side = read_bounds(cells)
    is_weaker_above = meaning.quantity.affinity and unit not in HIGHER_IS_STRONGER
    affinities = Affinities(
        source=table.source,
        column=column,
        unit=unit,
        why=meaning.why,
        raw=raw,
        pkd=to_pkd(raw, unit, options.molar_mass_kda),
        side=-side if is_weaker_above else side,  # >1000 nM is a pKd below 6
        no_binding=np.zeros(len(raw), np.bool_),
        molar_mass_kda=options.molar_mass_kda,
        quantity=meaning.quantity,
    )
    if options.no_binding is not None:
        floor = _given_floor(affinities, options.no_binding)
        relation = ">" if is_weaker_above or meaning.quantity.sign < 0 else "<"
        bound = f"{relation}{options.no_binding:g}"
        return _with_no_binding(affinities, cells, floor, bound, empty=options.no_binding_empty)
    if remembered is not None and remembered.no_binding_pkd is not None:
        floor = remembered.no_binding_pkd
        relation = "<" if meaning.quantity.sign > 0 else ">"
        bound = f"pKd <{floor:g}" if meaning.quantity.affinity else f"{relation}{floor:g}"
        return _with_no_binding(affinities, cells, floor, bound, empty=remembered.no_binding_empty)
    return affinities


def _given_floor(read: Affinities, no_binding: float) -> float:
    """Return ``--no-binding`` as a pKd; refuse one that no affinity has."""
    floor = float(to_pkd(np.array([no_binding]), read.unit, read.molar_mass_kda)[0])
    # down to a pKd of 0: a bound may be weaker than any affinity that is measured
    if read.quantity.affinity and not USUAL_PKD[0] - 2 <= floor <= USUAL_PKD[1]:
        msg = (
            f"{read.source}: --no-binding {no_binding:g} is not an affinity if read as "
            f"{read.unit}, the unit of column {read.column!r}; expected a bound such as "
            f"{BOUND_OF_A_NON_BINDER[read.unit][1:]}."
        )
        raise LabelError(msg)
    return floor


def _with_no_binding(
    read: Affinities, cells: pd.Series, floor: float, bound: str, *, empty: bool
) -> Affinities:
    """Read the words for no binding, and perhaps empty cells, as a pKd below `floor`."""
    is_text = ~np.isfinite(read.raw)
    values = cells.tolist()
    says = is_text & np.array([says_no_binding(value) for value in values], np.bool_)
    texts = [str(cell).strip() for cell in cells[says]]
    words = tuple(dict.fromkeys(texts))[:3]
    if empty:
        is_blank = np.array([not str(value).strip() for value in values], np.bool_)
        is_empty = is_text & (is_blank | cells.isna().to_numpy(np.bool_))
        if is_empty.any():
            words = (*words, "")
        says |= is_empty
    sign = read.quantity.sign
    exact = np.isfinite(read.pkd) & (read.side == 0)
    strongest = np.max(sign * read.pkd[exact], initial=-np.inf)
    if says.any() and exact.any() and sign * floor > strongest:
        msg = (
            f"{read.source}: --no-binding: a non-binder would be weaker than {bound}, which is "
            f"stronger than every exact label of column {read.column!r}; expected a bound at the "
            "weak end. Give the highest concentration tested."
        )
        raise LabelError(msg)
    return replace(
        read,
        pkd=np.where(says, floor, read.pkd),
        no_binding=says,
        words=words,
        bound=bound,
        side=np.where(says, -sign, read.side).astype(np.int8),
    )
