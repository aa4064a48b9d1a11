"""Values of labels: converted to pKd, with their bounds and errors, and checked.

What the column of a label is was decided before (`column`); here it is only converted. A relation
such as ``>1000`` in the label is of the label's unit. In a column of its own it is of Kd, where
``>`` means a higher Kd, hence a lower pKd; for another quantity it is of that quantity.

R rows of a table with a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats
from abag.core.errors import AbagError, LabelError
from abag.core.messages import counted, quoted, say
from abag.embed.tables.pairs import SequenceTable, SkippedRows
from abag.embed.tables.sequences import BadCell
from abag.embed.tables.table import (
    BOUND_WORDS,
    ERROR_SIGN,
    SIDES,
    Table,
    listed_cells,
    meaning_of_commas,
    plain_number,
    read_bounds,
    read_numbers,
    read_texts,
    says_no_binding,
    signs_of_words,
    with_unclear_point,
)
from abag.head.labels.classes import read_classes, refuse_two_values, says_class
from abag.head.labels.column import IN_THE_CELLS, ColumnMeaning, LabelLayout
from abag.head.labels.features import ColumnBeside, read_types
from abag.head.labels.headers import USUAL_PKD, outside, read_in_unit, to_pkd, unit_of_cell
from abag.head.labels.options import ANTIBODY_KDA, UNITS, Label, LabelOptions

LARGEST = 1e100
"""Errors and weights are below it, and above its inverse: squares and sums of others overflow."""
MOST_UNLIKE = 1e12
"""Factor between an error or a weight and their median, beyond which others would not count."""
_EXACT = ("false", "0", "no", "none", "uncensored", "exact")
"""Cells of relations, in lower case, of labels that are no bounds."""
_COMMAS = {
    "decimals": "commas are read as decimal points",
    "thousands": "commas between thousands are left out",
}
LISTED_TYPES = 8
STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units beside pKd and that of the labels in which a column of relations may repeat the labels."""
SAME_PKD = 0.1
"""Largest distance of such a bound from its label, from rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinities(ColumnMeaning):
    """Values of a column as pKd, or of another quantity as they are, and what was read."""

    source: str
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
    floor: float | None = None
    """The same in pKd; None if they are refused."""
    commas: str = ""
    """What commas in the cells are, as `CellNumbers` says."""
    with_units: Mapping[int, str] = field(default_factory=dict)
    """Cells that state a unit of their own, which were converted, by row."""
    with_errors: Mapping[int, str] = field(default_factory=dict)
    """Cells that state an error of their own, which was left out, by row."""

    def describe(self, noun: str = "labels") -> str:
        """Say in one line what was read and why."""
        numbers = np.isfinite(self.pkd) & ~self.no_binding
        evidence = []
        if self.quantity.affinity or numbers.any():
            evidence.append(self._range(numbers))
        if self.why:
            evidence.append(self.why)
        if self.commas in _COMMAS:
            evidence.append(_COMMAS[self.commas])
        of_units = (self.with_units, "a unit", "")
        for cells, what, then in (of_units, (self.with_errors, "an error", ", which is left out")):
            if cells:
                example = f"such as {quoted(next(iter(cells.values())))}"
                evidence.append(f"{counted(len(cells), 'cell')} with {what}, {example}{then}")
        if UNITS[self.unit].of_mass:
            is_usual = self.molar_mass_kda == ANTIBODY_KDA
            of_igg = ", that of IgG: --molar-mass gives another" if is_usual else ""
            evidence.append(f"molar mass {self.molar_mass_kda:g} kDa{of_igg}")
        if self.no_binding.any():
            such = f" such as {', '.join(map(quoted, self.words))}" if self.words else ""
            count = int(self.no_binding.sum())
            evidence.append(f"{counted(count, 'cell')}{such} read as {self.bound}")
        if self.quantity.affinity:
            read = f"{self.unit}, {UNITS[self.unit].stronger} is stronger"
        else:
            read = self.quantity.description
        return f"{noun}: {self.column!r} read as {read} ({'; '.join(evidence)})"

    def of_rows(self, rows: Bools) -> Affinities:
        """Leave out the values of the other rows, (R,), which are of another affinity type."""
        return replace(
            self,
            raw=np.where(rows, self.raw, np.nan),
            pkd=np.where(rows, self.pkd, np.nan),
            no_binding=self.no_binding & rows,
            with_units={row: cell for row, cell in self.with_units.items() if rows[row]},
            with_errors={row: cell for row, cell in self.with_errors.items() if rows[row]},
        )

    def _range(self, known: Bools) -> str:
        """Say where the known values lie, (R,)."""
        if self.quantity.affinity:
            usual = int((known & ~outside(self.pkd, USUAL_PKD)).sum())
            return f"{usual:,} of {known.sum():,} are in the usual range of pKd (2 to 14)"
        if self.quantity.classes:
            return self.quantity.count_classes(self.pkd[known])
        low = self.quantity.show(float(self.pkd[known].min()))
        high = self.quantity.show(float(self.pkd[known].max()))
        return f"{counted(int(known.sum()), 'value')}, {low} to {high}"

    def refuse_other_units(self, rows: Bools, noun: str = "labels") -> None:
        """Refuse values that are classes, or of which over half of `rows` are no affinities."""
        rows = rows & ~self.no_binding
        raw = self.raw[rows]
        pkd = self.pkd[rows]
        if not len(raw) or self.quantity.classes:
            return
        where = f"{self.source}: column {self.column}"
        role = "pkd" if noun == "labels" else "prediction"
        if not self.quantity.affinity or np.unique(raw).tolist() == [0, 1]:
            refuse_two_values(raw, where, str(self.quantity), role)
        if not self.quantity.affinity:
            return
        unusual = outside(pkd, USUAL_PKD)
        if 2 * unusual.sum() > len(raw):
            msg = (
                f"{where}: {unusual.sum()} of {len(raw)} {noun}, such as {raw[unusual][0]:g}, are "
                f"not affinities if read as {self.unit}: outside the usual range of pKd (2 to 14). "
                f"Choose the column with --column {role}=NAME, or the unit with --label; another "
                "quantity than an affinity needs --label value --better higher, or lower."
            )
            raise LabelError(msg)


def read_affinities(table: Table, label: LabelLayout) -> Affinities:
    """Convert the label of a table to pKd, or raise the error that refuses it."""
    meaning = label.checked()
    options = label.options
    remembered = label.remembered
    column = meaning.column
    unit = meaning.unit
    if options.molar_mass is not None and not UNITS[unit].of_mass and remembered is None:
        table.refuse(
            f"column {column!r} is read as {unit}, which needs no molar mass; expected ug_ml or "
            "ng_ml with --molar-mass. Leave it out, or give --label.",
            LabelError,
        )
    cells = table.frame[column]
    is_weaker_above = UNITS[unit].stronger == "lower"
    commas = ""
    has_unit = np.zeros(len(cells), np.bool_)
    with_errors: Mapping[int, str] = {}
    if meaning.quantity.classes:
        raw = pkd = _classes_by_file(table, cells, meaning.quantity.classes)
        side = np.zeros(len(raw), np.int8)
    else:
        (raw, side, commas), has_unit = read_in_unit(cells, unit)
        if meaning.why == IN_THE_CELLS:
            raw = np.where(has_unit, raw, np.nan)  # in a unit that is not known
        with_errors = _cells_with_errors(cells, raw)
        pkd = meaning.quantity.on_scale(to_pkd(raw, unit, options.molar_mass_kda))
        if number := with_unclear_point(table.distinct_cells(column)):
            as_thousands = to_pkd(1000 * raw, unit, options.molar_mass_kda)
            unusual = outside(as_thousands, USUAL_PKD)
            if not (meaning.quantity.affinity and 2 * unusual.sum() > np.isfinite(raw).sum()):
                _refuse_unclear_point(table, column, number)
    affinities = Affinities(
        source=table.source,
        column=column,
        unit=unit,
        why=meaning.why,
        raw=raw,
        pkd=pkd,
        side=-side if is_weaker_above else side,  # >1000 nM is a pKd below 6
        no_binding=np.zeros(len(raw), np.bool_),
        molar_mass_kda=options.molar_mass_kda,
        quantity=meaning.quantity,
        commas=commas,
        with_units=dict(zip(np.flatnonzero(has_unit).tolist(), cells[has_unit], strict=True)),
        with_errors=with_errors,
    )
    if meaning.quantity.classes:
        return affinities
    relation = "<" if meaning.quantity.sign > 0 else ">"
    if options.no_binding is not None:
        floor = _given_floor(affinities, options.no_binding)
        bound = f"{'>' if is_weaker_above else relation}{options.no_binding:g}"
        return _with_no_binding(affinities, cells, floor, bound, empty=options.no_binding_empty)
    if remembered is not None and remembered.no_binding_pkd is not None:
        floor = remembered.no_binding_pkd
        bound = f"{relation}{floor:g}"
        if meaning.quantity.affinity:
            bound = f"pKd {bound}"
        return _with_no_binding(affinities, cells, floor, bound, empty=remembered.no_binding_empty)
    return affinities


def _cells_with_errors(cells: pd.Series, raw: Floats) -> dict[int, str]:
    """Return the cells, by row, whose number, of `raw`, (R,), was read without its error."""
    found = {}
    for row, cell in enumerate(listed_cells(cells)):
        if isinstance(cell, str) and re.search(ERROR_SIGN, plain_number(cell)):
            if np.isfinite(raw[row]):
                found[row] = cell
    return found


def _classes_by_file(table: Table, cells: pd.Series, classes: Sequence[str]) -> Floats:
    """Read the classes of cells, (R,); what a hyphen means, the other cells of its file tell."""
    files = table.file_of_row if isinstance(table, SequenceTable) else None
    if files is None:
        return read_classes(cells, classes)
    number = np.full(len(cells), np.nan)
    for file in np.unique(files):
        number[files == file] = read_classes(cells[files == file], classes)
    return number


def _refuse_unclear_point(table: Table, column: str, number: str) -> None:
    """Refuse ``1.000`` beside decimal commas, as spreadsheets of such countries write 1000."""
    for name in table.names:
        if meaning_of_commas(table.distinct_cells(name)) == "decimals":
            table.refuse(
                f"column {column!r} holds {number}, and {name!r} decimal commas: it may be "
                f"{number.replace('.', '')} or {float(number):g}; expected one decimal sign. Write "
                "it without the point, or with a comma.",
                LabelError,
            )


def _given_floor(read: Affinities, no_binding: float) -> float:
    """Return ``--no-binding`` as a pKd; refuse one that no affinity has."""
    bound = to_pkd(np.array([no_binding]), read.unit, read.molar_mass_kda)
    floor = float(read.quantity.on_scale(bound)[0])
    if read.quantity.is_log and np.isnan(floor):
        msg = (
            f"{read.source}: --no-binding {no_binding:g} has no logarithm, which labels are; "
            "expected a number above 0, such as the limit of detection."
        )
        raise LabelError(msg)
    # down to a pKd of 0: a bound may be weaker than any affinity that is measured
    if read.quantity.affinity and not USUAL_PKD[0] - 2 <= floor <= USUAL_PKD[1]:
        msg = (
            f"{read.source}: --no-binding {no_binding:g} is not an affinity if read as "
            f"{read.unit}, the unit of column {read.column!r}; expected a bound such as "
            f"{UNITS[read.unit].bound_of_a_non_binder[1:]}."
        )
        raise LabelError(msg)
    return floor


def _is_non_binder(read: Affinities, at: int, cell: object) -> bool:
    """Tell whether a cell says no binding: in words, or as an infinite number at the weak end."""
    if not says_no_binding(cell):
        return False
    is_higher_better = read.quantity.sign > 0
    if read.quantity.affinity:
        is_higher_better = UNITS[read.unit].stronger == "higher"
    # -log10 of a Kd of 0 is an infinite pKd, the strongest
    return not np.isinf(read.raw[at]) or (read.raw[at] < 0) == is_higher_better


def _with_no_binding(
    read: Affinities, cells: pd.Series, floor: float, bound: str, *, empty: bool
) -> Affinities:
    """Read the words for no binding, and perhaps empty cells, as a pKd below `floor`."""
    is_text = ~np.isfinite(read.raw)
    values = cells.tolist()
    says = np.array([_is_non_binder(read, at, cell) for at, cell in enumerate(values)], np.bool_)
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
        floor=floor,
        side=np.where(says, -sign, read.side).astype(np.int8),
    )


def read_censored(table: SequenceTable, pkd: Floats, affinities: Affinities) -> NDArray[np.int8]:
    """Join the relations in the labels with those in a column, (R,).

    Both are of the same quantity. Of affinities, those of a column are of Kd, unless its bounds are
    pKd, or named in words.
    """
    column = table.columns.get("censored")
    is_affinity = affinities.quantity.affinity
    labelled = np.isfinite(pkd)
    censored = np.where(labelled, affinities.side, 0).astype(np.int8)
    is_bound = np.zeros(len(pkd), np.bool_)
    unit = affinities.unit
    if column is not None:
        side, bound, are_of_label = _read_relations(table, column)
        is_bound = np.isfinite(bound)
        if is_affinity:
            off_as_pkd, off_as_kd = _distances_from_bounds(bound, pkd, affinities)
            is_kd = bool(off_as_pkd.sum() >= off_as_kd.sum())
            if are_of_label:
                is_kd = UNITS[affinities.unit].stronger == "lower"
            is_other = (off_as_kd if is_kd else off_as_pkd) > SAME_PKD
            side = -side if is_kd else side
            units = ", as pKd or as Kd in M, uM or nM"
        else:
            rounding = 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(pkd)))  # of numbers in text
            off = np.abs(affinities.quantity.on_scale(bound) - pkd)
            is_other = is_bound & labelled & (off > rounding)
            units = ""
        problem = f"is not the label{units}; expected the same bound, or > or < alone. Fix it."
        refuse_cells(table, is_other, column, problem)
        relation = np.where(labelled, side, 0).astype(np.int8)
        problem = f"contradicts the relation in column {column}; expected one. Remove the other."
        refuse_cells(table, censored * relation < 0, table.column("pkd"), problem)
        censored = np.where(censored == 0, relation, censored)
        unit = unit if are_of_label else "kd_m"
    if is_affinity and (affinities.unit == "pkd" or column is not None):
        _refuse_reversed(table, column or table.column("pkd"), unit, censored, pkd, is_bound)
    return censored


def refuse_cells(
    table: SequenceTable,
    rows: Bools,
    column: str,
    problem: str,
    error: type[AbagError] = LabelError,
) -> None:
    """Refuse the cells of some rows, (R,), if there are any, by the first of them."""
    if rows.any():
        cell = table.describe_cell(np.flatnonzero(rows)[0], column)
        msg = f"{cell} ({counted(int(rows.sum()), 'such row')}) {problem}"
        raise error(msg)


def _read_relations(table: SequenceTable, column: str) -> tuple[pd.Series, Floats, bool]:
    """Return what the R cells of a column of relations say.

    Their sides as in `LabelledPairs.censored`, of what the column is of, Kd or pKd; bounds, (R,),
    NaN for none; and whether they are of the number in the row, as a lower bound is, whatever its
    unit.
    """
    text = read_texts(table.frame[column]).str.strip("'\" ").str.lower()  # ChEMBL writes '>'
    are_of_label = bool(text.isin(BOUND_WORDS).any())
    text = text.replace({**signs_of_words(column), **dict.fromkeys(_EXACT, "=")})
    side = text.str[:1].map(SIDES)
    bound = read_bounds(text).values
    signs = "".join(SIDES)
    is_relation = text.str.fullmatch(f"[{signs}]*").to_numpy(np.bool_)
    refuse_cells(
        table,
        ~(is_relation | (np.isfinite(bound) & side.notna().to_numpy())),
        column,
        "is not a valid relation; expected > or < (of Kd), also with its bound, = or an empty "
        "cell. Fix it, or choose another column with --column censored=NAME.",
    )
    return side, bound, are_of_label


def _distances_from_bounds(
    bound: Floats, pkd: Floats, affinities: Affinities
) -> tuple[Floats, Floats]:
    """Return how far the bounds are from the labels in pKd, read as pKd and as Kd, (R,) each.

    A bound is the label again, and shows whether the relations are of pKd or of Kd.
    """
    unit = affinities.unit
    as_pkd = [bound]
    as_kd = [to_pkd(bound, unit_of_bound) for unit_of_bound in STATED]
    as_label = to_pkd(bound, unit, affinities.molar_mass_kda)
    (as_pkd if UNITS[unit].stronger == "higher" else as_kd).append(as_label)
    is_compared = np.isfinite(bound) & np.isfinite(pkd)
    distances = []
    for readings in (as_pkd, as_kd):
        nearest = np.fmin.reduce([np.abs(reading - pkd) for reading in readings])
        # a bound that is no Kd, such as a negative one, is far from every label
        distances.append(np.nan_to_num(np.where(is_compared, nearest, 0.0), nan=np.inf))
    return distances[0], distances[1]


def _refuse_reversed(
    table: SequenceTable,
    column: str,
    unit: Label,
    censored: NDArray[np.int8],
    pkd: Floats,
    is_bound: Bools,
) -> None:
    """Refuse relations whose labels are all at the end that the relation points away from.

    `unit` is what the relations in the column are of.
    """
    expected, other = ("Kd", "pKd") if UNITS[unit].stronger == "lower" else ("pKd", "Kd")
    least = np.nanmin(pkd, initial=np.inf)
    most = np.nanmax(pkd, initial=-np.inf)
    for side, end in ((-1, most), (1, least)):
        rows = (censored == side) & ~is_bound
        # the usual floor of an assay is such a bound, read the other way round
        reversed_ = least < most and bool((pkd[rows] == end).all())
        problem = f"is at the end of the labels, as if its relation were of {other}; expected "
        refuse_cells(
            table,
            rows & reversed_,
            column,
            f"{problem}bounds of {expected}. Write these.",
        )


# ---- labels of rows ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLabels:
    """Hold the labels of the R rows of a table, and which of them can be used."""

    pkd: Floats
    """Shape (R,); NaN where no label can be used."""
    of_type: Bools
    """Shape (R,); whether a row has the affinity type that was asked for."""
    usable: Bools
    """Shape (R,)."""
    bad: list[tuple[int, BadCell]]
    """Rows of the type whose label cannot be used."""


def check_labels(
    table: SequenceTable,
    affinities: Affinities,
    options: LabelOptions,
) -> CheckedLabels:
    """Find the rows of the affinity type, and those of them with a label in the valid range.

    Rows that are not to be skipped are refused, also those with bad sequences.
    """
    quantity = affinities.quantity
    of_type = _of_type(table, options.affinity_type)
    pkd = affinities.pkd.copy()
    labelled = of_type & np.isfinite(pkd)
    if table.file_of_row is not None:
        for number, label in enumerate(table.labels):
            of_file = replace(affinities, source=label.source, column=label.column)
            of_file.refuse_other_units(labelled & (table.file_of_row == number))
    affinities.refuse_other_units(labelled)
    # a log scale has no least value
    low, high = np.nan_to_num(
        quantity.on_scale(np.array(options.bounds(affinity=quantity.affinity))), nan=-np.inf
    ).tolist()
    usable = of_type & (low <= pkd) & (pkd <= high)
    bad = []
    for at in np.flatnonzero(of_type & ~usable).tolist():
        cell = _bad_cell(table, at, affinities, (low, high))
        bad.append((int(table.row_numbers[at]), cell._replace(file=table.file_name(at))))
    pkd[~usable] = np.nan
    are_refused = options.bad_rows == "error" or not usable.any()
    refused = SkippedRows([*bad] if are_refused else [])
    if table.refuses_bad_rows:
        refused.update(table.skipped)
    if refused.bad:
        raise refused.refusal(table.source, kept=int(usable.sum()))
    if not usable.any():
        table.refuse(
            f"column {table.column('pkd')} has no usable label. Choose another column with "
            "--column pkd=NAME.",
            LabelError,
        )
    return CheckedLabels(pkd=pkd, of_type=of_type, usable=usable, bad=bad)


def _of_type(table: SequenceTable, affinity_type: str | None) -> Bools:
    """Return which rows have the requested affinity type; types are never mixed."""
    if affinity_type is None and not table.has("affinity_type"):
        return np.ones(len(table.frame), np.bool_)
    column = table.column("affinity_type")
    types = read_types(table)
    # types of rows without a label need no choice
    of_labelled = types[table.frame[table.column("pkd")].notna()]
    counts = of_labelled[of_labelled != ""].value_counts()
    if affinity_type is None and len(counts) < 2:
        return np.ones(len(table.frame), np.bool_)
    if affinity_type not in counts.index:
        types_of_rows = [f"{n} of {quoted(name)}" for name, n in counts.head(LISTED_TYPES).items()]
        if len(counts) > LISTED_TYPES:
            types_of_rows.append("...")
        if unstated := int((of_labelled == "").sum()):
            types_of_rows.append(f"{unstated} not stated")
        listed = ", ".join(types_of_rows)
        problem = (
            "several affinity types" if affinity_type is None else f"no {quoted(affinity_type)}"
        )
        table.refuse(
            f"column {column} has {problem} among the labelled rows: {listed}; expected one type. "
            "Choose it with --affinity-type NAME, or rename the column if it is of something else.",
            LabelError,
        )
    return (types == affinity_type).to_numpy(np.bool_)


def _bad_cell(
    table: SequenceTable, at: int, affinities: Affinities, valid: tuple[float, float]
) -> BadCell:
    unit = affinities.unit
    quantity = affinities.quantity
    column = table.column("pkd")
    value = table.frame[column].iloc[at]
    if quantity.classes:
        expected = f"one of {', '.join(map(quoted, quantity.classes))}"
    elif np.isfinite(affinities.pkd[at]):
        noun = "pKd" if quantity.affinity else "value"
        low, high = (10**bound for bound in valid) if quantity.is_log else valid
        expected = f"a {noun} from {low:g} to {high:g}"
    else:
        is_log = quantity.is_log or UNITS[unit].takes_log
        expected = (
            f"a {'positive' if is_log else 'finite'} number alone, with a point before decimals "
            "and nothing between thousands, such as 1.5e-09, or a bound such as <0.1"
        )
        if affinities.why == IN_THE_CELLS:
            expected = "a number with its unit, as the others have, such as 1.5 nM or <0.1 nM"
    advice = "Fix it."
    if quantity.classes:
        advice = "Fix it, if it is of a class."
    elif _is_non_binder(affinities, at, value):
        bound = f"{UNITS[unit].bound_of_a_non_binder} ({unit})" if quantity.affinity else "<5"
        advice = (
            f"Write a non-binder as a bound, such as {bound}, or give it with --no-binding VALUE; "
            "a skipped one is lost."
        )
    elif says_class(value) and not np.isfinite(affinities.pkd).any():
        advice = (
            "Fix it, or learn words for two classes with --label binary --positive VALUE, and for "
            "ordered ones with --classes NAMES."
        )
    elif quantity.is_log:
        advice = "Write the limit of detection, such as <0.1, or give --scale linear."
    # the label of a matrix is in the column of the antigen
    header = table.frame[table.column("antigen")].iloc[at] if table.is_matrix else column
    error = (
        f"column {quoted(header)}: {table.cell_text(at, column)} is not a valid label; expected "
        f"{expected}. {advice}"
    )
    return BadCell("label", "invalid label", str(value), error, LabelError)


# ---- errors and weights ----


class LabelTrust(NamedTuple):
    """How far the labels of R rows can be trusted."""

    what: Literal["error", "weight"]
    values_R: Floats
    """Errors in the unit of the labels as they are read, pKd for affinities, or weights."""
    share_R: Floats
    """Variance of the noise of each label, up to a factor."""


def _refuse_other_units(table: SequenceTable, error: str, labels: Affinities, rows: Bools) -> None:
    """Refuse errors of labels that state another unit than that in which the column is read."""
    if not labels.with_units:
        return
    units = [unit_of_cell(cell) for cell in table.frame[labels.column].tolist()]
    is_other = np.array([unit not in (None, labels.unit) for unit in units])
    refuse_cells(
        table,
        rows & is_other,
        labels.column,
        f"is in another unit than {labels.unit}, in which --error {error} is read; expected labels "
        "and errors in one unit. Convert both, or leave --error out.",
    )


def read_trust(
    table: SequenceTable,
    beside: Iterable[ColumnBeside],
    labels: Affinities,
    used: Bools,
    exact: Bools,
) -> LabelTrust | None:
    """Read the column of errors or weights; None if none is named.

    Parameters
    ----------
    table : SequenceTable
        With R rows.
    beside : iterable of ColumnBeside
        May have the column.
    labels : Affinities
        The labels as they are written, and their unit.
    used, exact : ndarray, shape=(R,)
        Rows with a label, and those whose label is no bound. Bounds may lack an error.

    Raises
    ------
    LabelError
        If an error or a weight is not a number above 0, or too far from the others.
    """
    trusted = [column for column in beside if column.role in ("error", "weight")]
    if not trusted:
        return None
    name = trusted[0].name
    kind: Literal["error", "weight"] = "error" if trusted[0].role == "error" else "weight"
    if kind == "error" and labels.quantity.classes:
        table.refuse(
            f"--error: column {name!r} has errors of measurements, and the labels are classes; "
            "expected weights. Use --weight, or leave --error out.",
            LabelError,
        )
    values = read_numbers(table.frame[name])
    valid = (values > 1 / LARGEST) & (values < LARGEST)
    bad = used & ~valid
    if kind == "error":
        bad &= exact | ~np.isnan(values)
        _refuse_other_units(table, name, labels, used & exact)
    refuse_cells(
        table,
        bad,
        name,
        f"is not a valid {kind}; expected a finite number above 0, and below {LARGEST:g}. Fix it, "
        "or leave the row out.",
    )
    if kind == "weight":
        _refuse_unlike(table, name, values, used)
        return LabelTrust(kind, values, _share_of_weights(table.source, name, values, used))
    unit = UNITS[labels.unit]
    if unit.takes_log or labels.quantity.is_log:  # d log10(x) = dx / (x ln 10)
        with np.errstate(divide="ignore", invalid="ignore"):  # a label of 0 has no pKd
            error = np.asarray(values / (np.abs(labels.raw) * np.log(10)))
    else:
        error = values / abs(unit.per_pkd)
    finite = used & exact & np.isfinite(error)
    if not finite.any():
        table.refuse(
            f"column {name!r} has errors of bounds alone; expected those of exact labels. Leave "
            "--error out.",
            LabelError,
        )
    _refuse_unlike(table, name, error, used & np.isfinite(error))
    typical = float(np.median(error[finite]))
    quantity = labels.quantity
    say(
        f"{table.source}: errors {name!r}: standard deviations of the labels, median "
        f"{quantity.show(typical)} {quantity}"
    )
    share_R = np.square(np.where(np.isfinite(error), error / typical, 1.0))
    return LabelTrust(kind, error, share_R)


def _refuse_unlike(table: SequenceTable, name: str, values: Floats, used: Bools) -> None:
    """Refuse a value beside which those of the other rows would not count, or that would not."""
    median = float(np.median(values[used]))
    unlike = used & ~((values < median * MOST_UNLIKE) & (values > median / MOST_UNLIKE))
    refuse_cells(
        table,
        unlike,
        name,
        f"is more than {MOST_UNLIKE:g} times larger or smaller than the median of the column; "
        "expected values that can be compared. Fix it, or leave the row out.",
    )


def _share_of_weights(source: str, name: str, values: Floats, used: Bools) -> Floats:
    """Turn the weights of labels into variances of their noise, (R,), and report their range."""
    typical = float(np.median(values[used]))
    low = values[used].min() / typical
    high = values[used].max() / typical
    say(f"{source}: weights {name!r}: {low:.3g} to {high:.3g} times their median")
    return np.where(used, typical / values, 1.0)
