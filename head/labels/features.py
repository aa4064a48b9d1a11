"""Columns of a table beside labels and sequences: those that describe a label, and features.

Some say what the label of a row is: its relation, affinity type or unit. Models of pairs read
numbers and categories, which belong to the pair: a log-likelihood, a calculated ddG, an accessible
surface, expression; or an assay and a laboratory. A number that is missing is read as the training
mean, and a column with missing cells in training has a second column of 0 and 1 that says where.
Each value of a category is a column of 0 and 1. Likelihoods of sequences, which
``abag embed --loglik`` stores beside the vectors, are features, too.

R rows of a table or pairs, P pairs, F columns of numbers, G of categories, C columns of 0 and 1,
K = F + C.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints, Matrix
from abag.core.errors import ColumnError, StoreError
from abag.core.messages import counted, printable, quoted, say
from abag.embed.store.store import LOGLIK, EncoderFolder
from abag.embed.tables.chains import MISSING_TEXT, Kind
from abag.embed.tables.columns import (
    LONGEST_NAME,
    column_option,
    quote_some,
    refuse_absent,
    simplified,
)
from abag.embed.tables.content import distinct_texts
from abag.embed.tables.formats import CHUNK_ROWS, cell_text
from abag.embed.tables.table import SIDES, Table, read_numbers, read_texts, signs_of_words
from abag.head.labels.classes import says_yes_or_no, spelled
from abag.head.labels.headers import (
    LONGEST_QUANTITY,
    name_words,
    plain_text,
    read_header,
    unit_of_cell,
)
from abag.head.labels.options import MOST_FEATURE, MOST_FEATURES, UNITS, BesideRole, Label

LONGEST_TEXT = 200
"""Characters of a value of a category."""
MARGIN = 0.1
"""Share of the trained range by which a value may lie outside of it."""
MISSING = "(missing)"
"""Value of an empty cell of a category."""
_EMPTY = frozenset({"", "-", "--", "?", *(text.lower() for text in MISSING_TEXT)})
_FIRST_ROWS = 50
_FLAG = re.compile(
    "censor|bound|greater|exclu|outlier|flag|saturat|invalid|discard|reject|detectionlimit|qcpass|"
    "outofrange"
)
_FLAG_WORDS = frozenset("lod loq lloq uloq bdl blq qc omit ignore fail failed pass passed".split())
"""What columns are called that say which labels are bounds, or which rows are not to be used."""
_PLAIN = re.compile(r"[-+.]?\d")
_RELATION = re.compile("[<>=~≤≥]+")
_LOGARITHMS = frozenset("pkd pkds pki pic50 pec50 pchembl log log10 logkd".split())
_QUANTITIES = frozenset(
    "kd kds ki ka kon koff ic50 ic80 ic90 ec50 ac50 ed50 dg ddg tm tagg titer titre expression "
    "yield mfi elisa".split()
)
"""Words of columns by which one describes another, the logarithms apart."""


LOGLIKS: Mapping[str, Kind] = {"antibody_loglik": "antibody", "antigen_loglik": "antigen"}
"""Likelihoods of a store (``abag embed --loglik``) as features, by name."""
_NEEDED: Mapping[BesideRole, str] = {
    "feature": "is to be read as a feature",
    "category": "is to be read as a feature",
    "error": "--error names",
    "weight": "--weight names",
    "split": "--split names",
}
"""Ends of the sentence that no column has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBeside:
    """A column that the user named beside labels and sequences, or why it is none."""

    name: str
    role: BesideRole
    is_absent: bool = False
    """Whether the table has no such column."""
    head: str = ""
    """Digest of what gives the likelihood, once it is read."""
    refused: ColumnError | None = None

    @classmethod
    def of(
        cls, table: Table, roles: Mapping[str, str], name: str, role: BesideRole, run: object
    ) -> ColumnBeside:
        """Decide what a column is that the user named, or that a `run` needs.

        `roles` are those of labels and sequences, by the names of columns.
        """
        is_absent = name not in table.names
        if is_absent and role == "feature" and name in (LOGLIK, *LOGLIKS):
            return cls(name=name, role=role, is_absent=True)
        try:
            if is_absent:
                needed = f"the run {run} has as {role}" if run else _NEEDED[role]
                problem = f"{table.source}: no column {name!r}, which {needed}"
                refuse_absent(name, table.names, problem)
            if name in roles and role != "split":
                is_label = roles[name] in ("pkd", "label")
                what = "the label" if is_label else f"the {roles[name]} column"
                noun = "an error" if role == "error" else f"a {role}"
                table.refuse(
                    f"column {name!r} is {what}; expected another column as {noun}. Leave it out.",
                    ColumnError,
                )
        except ColumnError as error:
            return cls(name=name, role=role, is_absent=is_absent, refused=error)
        return cls(name=name, role=role)

    @property
    def in_store(self) -> bool:
        """Whether it is the likelihood of a store (`LOGLIKS`), not a column of the table."""
        return self.is_absent and self.refused is None


def names_of(role: BesideRole, beside: Iterable[ColumnBeside]) -> list[str]:
    """List the names of the columns of one role."""
    return [column.name for column in beside if column.role == role]


class FeatureCells(NamedTuple):
    """What the columns say of R rows or pairs."""

    numbers_RF: Floats
    """NaN where a cell is missing."""
    words_RG: NDArray[np.object_]
    """Values of categories, which are texts."""

    def take(self, rows: Ints) -> FeatureCells:
        """Return the cells of some rows."""
        return FeatureCells(self.numbers_RF[rows], self.words_RG[rows])


@dataclass(frozen=True, slots=True)
class PairFeatures:
    """Features of pairs as models read them."""

    numbers_RF: Floats
    """NaN where a value is missing."""
    marks_RC: Matrix
    """Columns of 0 and 1: missing numbers, and values of categories."""

    @property
    def width(self) -> int:
        """The number of columns."""
        return int(self.numbers_RF.shape[1] + self.marks_RC.shape[1])

    def take(self, rows: Ints | slice) -> PairFeatures:
        """Return the features of some pairs."""
        return PairFeatures(self.numbers_RF[rows], self.marks_RC[rows])


# ---- what a run reads ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """A column of numbers that a run was trained with."""

    name: str
    low: float
    """Smallest value of a training pair."""
    high: float
    has_missing: bool
    """Whether training pairs lack it, which a column of 0 and 1 says."""
    head: str = ""
    """Of a likelihood that the store has, the digest of what gives it; empty for a table's column.
    """

    def __post_init__(self) -> None:
        """Refuse what no training gives, since predictors come from files."""
        _check_name(self.name)
        if self.head and self.name not in LOGLIKS:
            msg = f"the feature {self.name!r} is no likelihood of a store"
            raise ValueError(msg)
        if not -MOST_FEATURE <= self.low < self.high <= MOST_FEATURE:
            msg = f"the feature {self.name!r} ranges from {self.low} to {self.high}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryColumn:
    """A column of categories that a run was trained with."""

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what no training gives."""
        _check_name(self.name)
        for text in self.values:
            if not 0 < len(text) <= LONGEST_TEXT:
                msg = f"{quoted(text)} is no value of a category"
                raise ValueError(msg)
        if not 2 <= len(set(self.values)) == len(self.values):
            msg = f"the category {self.name!r} has the values {', '.join(self.values)}"
            raise ValueError(msg)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME:
        msg = f"the name {quoted(name)} is too long; expected 1 to {LONGEST_NAME:,} characters"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureColumns:
    """The columns that a run reads, with what its training pairs have there."""

    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]

    def __post_init__(self) -> None:
        """Refuse no columns, too many, and names that two have."""
        if not 0 < len(set(self.names)) == len(self.names) or self.width > MOST_FEATURES:
            msg = (
                f"too many features ({self.words} in {self.width:,} columns); expected at most "
                f"{MOST_FEATURES:,} columns of numbers and values of categories"
            )
            raise ValueError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns in a table."""
        names = [column.name for column in self.numbers]
        names += [column.name for column in self.categories]
        return tuple(names)

    @property
    def in_tables(self) -> tuple[str, ...]:
        """Names of the columns that a table has to have, numbers first."""
        return tuple(name for name, _ in self.named_in_tables)

    @property
    def named_in_tables(self) -> list[tuple[str, BesideRole]]:
        """Names of these columns, and what each is."""
        named: list[tuple[str, BesideRole]] = []
        named += [(column.name, "feature") for column in self.numbers if not column.head]
        named += [(column.name, "category") for column in self.categories]
        return named

    @property
    def in_store(self) -> tuple[str, ...]:
        """Names of the columns that a store has."""
        return tuple(column.name for column in self.numbers if column.head)

    @property
    def width(self) -> int:
        """Columns that models read."""
        width = len(self.numbers)
        for number in self.numbers:
            width += number.has_missing
        for category in self.categories:
            width += len(category.values)
        return width

    @property
    def words(self) -> str:
        """Names of the columns, the first dozen of many."""
        return quote_some(self.names)

    @classmethod
    def of(cls, cells: FeatureCells, beside: Sequence[ColumnBeside]) -> FeatureColumns:
        """Describe the cells of training pairs, whose columns are features and categories."""
        numbers = []
        features = [column for column in beside if column.role == "feature"]
        for feature, values_R in zip(features, cells.numbers_RF.T, strict=True):
            column = NumberColumn(
                name=feature.name,
                low=float(np.nanmin(values_R)),
                high=float(np.nanmax(values_R)),
                has_missing=bool(np.isnan(values_R).any()),
                head=feature.head,
            )
            numbers.append(column)
        categories = []
        names = names_of("category", beside)
        for name, words_R in zip(names, cells.words_RG.T, strict=True):
            values = sorted(set(words_R.tolist()))
            categories.append(CategoryColumn(name=name, values=tuple(values)))
        return cls(numbers=tuple(numbers), categories=tuple(categories))

    def encode(self, cells: FeatureCells) -> PairFeatures:
        """Turn cells into the columns that models read."""
        no_marks = np.zeros((len(cells.numbers_RF), 0), np.bool_)
        marks = [no_marks]  # `hstack` refuses an empty list
        for number, values_R in zip(self.numbers, cells.numbers_RF.T, strict=True):
            if number.has_missing:
                marks.append(np.isnan(values_R)[:, None])
        for category, words_R in zip(self.categories, cells.words_RG.T, strict=True):
            marks.append(words_R[:, None] == np.array(category.values, object))
        return PairFeatures(cells.numbers_RF, np.hstack(marks).astype(np.float32))

    def with_stored(self, cells: FeatureCells | None, rows: int) -> FeatureCells:
        """Add columns without values for what the store has, to the cells of R rows of a table.

        Without `cells`, nothing is known of any column.
        """
        numbers_RF = np.full((rows, len(self.numbers)), np.nan)
        if cells is None:
            words_RG = np.full((rows, len(self.categories)), MISSING, object)
            return FeatureCells(numbers_RF, words_RG)
        numbers_RF[:, [not column.head for column in self.numbers]] = cells.numbers_RF
        return FeatureCells(numbers_RF, cells.words_RG)

    def describe_missing(self, cells: FeatureCells) -> str:
        """Count the cells that are missing and read as a training mean; empty if none is."""
        in_tables_F = np.array([not column.head for column in self.numbers], np.bool_)
        missing_F = np.isnan(cells.numbers_RF).sum(axis=0) * in_tables_F
        parts = []
        for column, count in zip(self.numbers, missing_F.tolist(), strict=True):
            if count:
                parts.append(f"{count:,} of {column.name!r}")
        return f"missing and read as the mean of training: {', '.join(parts)}" if parts else ""


class ReadFeatures(NamedTuple):
    """The features of R rows that a predictor scores."""

    columns: FeatureColumns
    cells: FeatureCells

    @property
    def values(self) -> PairFeatures:
        """What models read."""
        return self.columns.encode(self.cells)

    @property
    def why_far(self) -> NDArray[np.object_]:
        """Why the rows are outside those of training, (R,); empty if they are not."""
        why = np.full(len(self.cells.numbers_RF), "", object)
        for column, values_R in zip(self.columns.numbers, self.cells.numbers_RF.T, strict=True):
            margin = MARGIN * (column.high - column.low)
            below = values_R < column.low - margin
            above = values_R > column.high + margin
            trained = f"the {column.low:g} to {column.high:g} of training"
            why[below & (why == "")] = f"its {column.name} is below {trained}"
            why[above & (why == "")] = f"its {column.name} is above {trained}"
        for category, words_R in zip(self.columns.categories, self.cells.words_RG.T, strict=True):
            unknown = ~np.isin(words_R, np.array(category.values, object)) & (why == "")
            for word in sorted(set(words_R[unknown].tolist())):
                reason = f"its {category.name} is {quoted(word)}, which training lacks"
                why[unknown & (words_R == word)] = reason
        return why

    def factor(self, of_categories: Mapping[str, Mapping[str, float]]) -> Floats:
        """Return the product of the factors of each row's categories, (R,).

        `of_categories` has them by column and value; of others, the factor is 1.
        """
        factor_R = np.ones(len(self.cells.words_RG))
        for column, words_R in zip(self.columns.categories, self.cells.words_RG.T, strict=True):
            factors = of_categories.get(column.name, {})
            factor_R *= np.array([factors.get(word, 1.0) for word in words_R.tolist()])
        return factor_R

    def take(self, rows: Ints) -> ReadFeatures:
        """Return those of some rows."""
        return ReadFeatures(self.columns, self.cells.take(rows))


def features_of(columns: FeatureColumns, cells: FeatureCells, source: str) -> ReadFeatures:
    """Return what a predictor reads in cells, and say what of them is missing."""
    if missing := columns.describe_missing(cells):
        say(f"{source}: features {missing}")
    return ReadFeatures(columns, cells)


def read_features(columns: FeatureColumns, frame: pd.DataFrame, source: str) -> ReadFeatures:
    """Return what a predictor reads in the rows of a frame."""
    return features_of(columns, cells_of_run(columns, frame, source), source)


def cells_of_run(
    columns: FeatureColumns,
    frame: pd.DataFrame,
    source: str,
    row_name: Callable[[int], str] = lambda at: str(at + 1),
) -> FeatureCells:
    """Read the columns of a run in a table, by name; `ColumnError` if one lacks or is invalid."""
    numbers = [column.name for column in columns.numbers if not column.head]
    words = [column.name for column in columns.categories]
    for name in (*numbers, *words):
        problem = f"{source}: no column {name!r}, which the run was trained with"
        refuse_absent(name, frame.columns, problem)
    cells = read_cells(frame, numbers, words, source, row_name)
    _as_trained(cells.words_RG, columns.categories)
    return columns.with_stored(cells, len(frame))


# ---- reading -------------------------------------------------------------------------------------


def read_cells(
    frame: pd.DataFrame,
    features: Sequence[str],
    categories: Sequence[str],
    source: str,
    row_name: Callable[[int], str],
) -> FeatureCells:
    """Read columns of a table, by name.

    Parameters
    ----------
    frame : DataFrame
        R rows.
    features, categories : sequence of str
        Names of columns of numbers, and of categories.
    source : str
        Name of the table, for errors.
    row_name : callable
        Names a row, by its position, in errors.

    Raises
    ------
    ColumnError
        If a cell of a column of numbers is none.
    """
    numbers_RF = np.empty((len(frame), len(features)))
    words_RG = np.empty((len(frame), len(categories)), object)
    for at, name in enumerate(features):
        numbers_RF[:, at] = _numbers_of(frame[name], name, source, row_name)
    for at, name in enumerate(categories):
        words = [_word(cell) for cell in frame[name].tolist()]
        for row, word in enumerate(words):
            if len(word) > LONGEST_TEXT:
                msg = (
                    f"{source}: row {row_name(row)}, column {name}: {quoted(word)} is not a valid "
                    f"category; expected at most {LONGEST_TEXT} characters. Shorten it, or choose "
                    "another column."
                )
                raise ColumnError(msg)
        words_RG[:, at] = words
    return FeatureCells(numbers_RF, words_RG)


def _numbers_of(cells: pd.Series, name: str, source: str, row_name: Callable[[int], str]) -> Floats:
    """Read a column of numbers, (R,); NaN where a cell is empty."""
    values = read_numbers(cells)
    bad = ~(np.abs(values) <= MOST_FEATURE)
    if bad.any():  # else columns of numbers are spared a loop over all cells
        bad &= ~_are_missing(cells)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        advice = "Fix or empty it."
        if 2 * bad.sum() > len(bad) and np.isnan(values[bad]).all():
            advice = "Name a column of text with --categories."
        cell = cells.iloc[at]
        shown = getattr(cell, "item", lambda: cell)()  # numpy's numbers name their type
        limit = f" up to {MOST_FEATURE:g}" if np.isfinite(values[at]) else ""
        msg = (
            f"{source}: row {row_name(at)}, column {name}: {quoted(shown)} "
            f"({counted(int(bad.sum()), 'such row')}) is not a valid feature; expected a finite "
            f"number{limit} or an empty cell. {advice}"
        )
        raise ColumnError(msg)
    return values


def _are_missing(cells: pd.Series) -> Bools:
    missing = cells.isna().to_numpy(np.bool_, copy=True)  # pandas' is read-only
    for at, cell in enumerate(cells.tolist()):
        if isinstance(cell, str) and cell.strip().lower() in _EMPTY:
            missing[at] = True
    return missing


def _word(cell: object) -> str:
    """Return the value of a category, which is text: 1.1 and 1.10 are two."""
    if pd.isna(cell):  # type: ignore[call-overload]
        return MISSING
    text = printable(cell_text(cell).strip())
    if text.lower() in _EMPTY:
        return MISSING
    if text.lower() in ("true", "false"):  # spreadsheets write capitals
        return text.title()
    return text


def _as_trained(words_RG: NDArray[np.object_], columns: Sequence[CategoryColumn]) -> None:
    """Replace whole numbers that training lacks as they are written, such as 2.0, by its 2."""
    for column, words_R in zip(columns, words_RG.T, strict=True):
        for word in set(words_R.tolist()) - set(column.values):
            other = word.removesuffix(".0") if word.endswith(".0") else f"{word}.0"
            if other in column.values and other.removesuffix(".0").lstrip("-").isdigit():
                words_R[words_R == word] = other


def words_as_codes(cells: FeatureCells) -> dict[str, Ints]:
    """Number the values of each category, (R,), by a name that no column of labels has."""
    codes = {}
    for at, words_R in enumerate(cells.words_RG.T):
        codes[f"category {at}"] = pd.factorize(words_R, sort=True)[0].astype(np.int64)
    return codes


def mean_cells(cells: FeatureCells, pair_of_row: Ints, first_row: Ints) -> FeatureCells:
    """Join the rows of pairs: means of the numbers that are known, and the words of one row.

    Parameters
    ----------
    cells : FeatureCells
        Of R rows.
    pair_of_row : ndarray, shape=(R,)
        -1 for rows of no pair.
    first_row : ndarray, shape=(P,)
        A row of each pair.
    """
    pairs = len(first_row)
    used = pair_of_row >= 0
    numbers_PF = np.empty((pairs, cells.numbers_RF.shape[1]))
    for at, values_R in enumerate(cells.numbers_RF.T):
        finite = np.argsort(values_R, kind="stable")  # so that their order does not matter
        finite = finite[(used & np.isfinite(values_R))[finite]]
        count = np.bincount(pair_of_row[finite], minlength=pairs)
        total = np.bincount(pair_of_row[finite], values_R[finite], minlength=pairs)
        numbers_PF[:, at] = np.where(count > 0, total / np.maximum(1, count), np.nan)
    return FeatureCells(numbers_PF, cells.words_RG[first_row])


def read_logliks(folder: EncoderFolder, keys: NDArray[np.uint8], head: str = "") -> Floats:
    """Read the likelihoods of sequences, keys (N, 16), (N,); of another `head` they are refused."""
    if head and folder.head and folder.head != head:
        msg = (
            f"{folder.path}: has likelihoods of head {folder.head[:8]}; the run was trained with "
            f"{head[:8]}. Give the --store of the run, or a new one."
        )
        raise StoreError(msg)
    return folder.read(keys, LOGLIK)[:, 0].astype(np.float64)


# ---- columns that say what the label of a row is ---------------------------------------------


class Describing(NamedTuple):
    """Columns that say of each row what its label is."""

    roles: Mapping[str, str]
    """Those of relations and of affinity types, by their roles, that no name says."""
    units: tuple[str, ...]
    """Those of units, if the name of the label states none."""
    remarks: tuple[str, ...]
    """One line per column that is not used, and per column that only its cells told."""


NO_DESCRIPTION = Describing({}, (), ())


def find_describing(table: Table, label: str, others: Iterable[str] = ()) -> Describing:
    """Find the columns that describe the label of a table by their cells, apart from `others`.

    A column that names another quantity than the label describes another column. Relations are of
    Kd, so that those of a pKd are not taken unasked.
    """
    roles: dict[str, str] = {}
    units = []
    remarks = []
    used = {*table.columns.values(), *chain.from_iterable(table.ties.values()), label, *others}
    states_unit = bool(read_header(label).units) and not read_header(label).unit_alone
    first_rows = table.frame.head(_FIRST_ROWS).to_numpy(object)
    for name, cells in zip(table.names, first_rows.T, strict=True):
        if name not in used and _is_flag(table, name):
            remarks.append(
                f"column {name!r} is not used; if it says which labels are bounds, write these as "
                ">VALUE or <VALUE, and if it says which rows are bad, remove these"
            )
            continue
        first = next((cell for cell in cells if isinstance(cell, str) and cell.strip()), "")
        # before the others are looked at: tables may have 100,000 columns
        if name in used or len(first) > LONGEST_QUANTITY or (first and _PLAIN.match(first)):
            continue
        words = _quantity_words(name)
        is_of_label = words <= (_quantity_words(label) or {"kd"})
        kind = _describes(table, name, label)
        if kind == "units" and is_of_label and not states_unit:
            units.append(name)
        elif kind == "units" and is_of_label and _states_other_units(table, name, label):
            remarks.append(
                f"column {name!r} holds other units than the name of {label!r} states, and is not "
                "used; if the labels are in these, convert them"
            )
        elif kind == "affinity_type" and not table.has(kind):
            roles.setdefault(kind, name)
        elif (
            kind == "censored"
            and is_of_label
            and not (words & _LOGARITHMS or table.has(kind) or kind in roles)
        ):
            roles[kind] = name
            remarks.append(f"column {name!r} is used as {kind}: it holds relations such as > or =")
        elif kind == "censored":
            remarks.append(
                f"column {name!r} holds relations such as > that are not used; if they are of Kd, "
                f"name it with {column_option(kind, name)}"
            )
    return Describing(roles, tuple(units), tuple(remarks))


def _is_flag(table: Table, name: str) -> bool:
    """Tell whether a column is named like one that sets rows apart, and says yes or no."""
    words = name_words(name)
    if _FLAG_WORDS.isdisjoint(words) and not _FLAG.search("".join(words)):
        return False  # before cells are looked at
    values = {*map(spelled, table.distinct_cells(name))}
    if (read_texts(table.frame[name]) == "").any():
        values.add("")
    return len(values) > 1 and all(x in ("", "x") or says_yes_or_no(x) for x in values)


def _states_other_units(table: Table, name: str, label: str) -> bool:
    """Tell whether cells of units say another one than the name of a concentration does."""
    stated = _unit_of_concentration(label)
    if stated is None:
        return False
    return any(stated not in units for units in _units_in_cells(table, name, label) if units)


def _unit_of_concentration(label: str) -> Label | None:
    """Return the unit that the name of a concentration states; None of other names."""
    unit = read_header(label).unit
    return unit if unit is not None and UNITS[unit].takes_log else None


def units_in_cell(label: str, text: str) -> tuple[Label, ...]:
    """Return the units that a label may be in if a cell beside it says so; none if it says none."""
    stated = _unit_of_concentration(label)
    quantity = label if stated is None else UNITS[stated].written[0]
    if not read_header(quantity).names_affinity:  # a name of one's own, such as potency
        quantity = f"{quantity} KD"
    return read_header(f"{quantity} ({text})").units


def _units_in_cells(table: Table, name: str, label: str) -> list[tuple[Label, ...]]:
    """Return these of each distinct text of a column."""
    texts = [text for text in distinct_texts(table, name) if text not in MISSING_TEXT]
    return [units_in_cell(label, text) for text in texts]


def unit_of_cells(table: Table, name: str, label: str) -> Label | None:
    """Return the unit that all cells of a column say a label is in."""
    allowed = _units_in_cells(table, name, label)
    return allowed[0][0] if len({*allowed}) == 1 and allowed[0] else None


def _describes(table: Table, name: str, label: str) -> str:
    """Say what the cells of a column describe: relations, types or units; empty for others."""
    texts = [text.strip("'\" ") for text in distinct_texts(table, name)]
    words = signs_of_words(name)
    signs = [words.get(text.lower(), text) for text in texts]
    if signs and all(map(_RELATION.fullmatch, signs)):
        # of a large table, bounds may follow below the rows that are looked at
        is_large = len(table.frame) >= CHUNK_ROWS
        return "censored" if is_large or any(SIDES[sign[0]] for sign in signs) else ""
    if "unit" in simplified(name):
        return "units" if any(_units_in_cells(table, name, label)) else ""
    affinities = 0
    for text in texts:
        header = read_header(text)
        is_affinity = header.names_affinity or header.plain or simplified(text) == "binding"
        if not (is_affinity or header.not_label or header.better):
            return ""  # at the first text of most columns
        affinities += is_affinity
    return "affinity_type" if affinities else ""


def read_types(table: Table) -> pd.Series[str]:
    """Return the affinity type of each row, (R,), without a value behind it as in Kd=1.2nM."""
    types = read_texts(table.frame[table.column("affinity_type")])
    of_text = {}
    for text in types.unique():
        named, _, value = re.sub("[=<>~≤≥≈]+", "=", text).partition("=")
        # a condition, as in Kd pH=7.4, sets types apart
        of_text[text] = named.strip() if unit_of_cell(value) else text
    return types.map(of_text)


def _quantity_words(name: str) -> set[str]:
    """Return the quantities that the name of a column names."""
    with_digits = "[a-z]+[0-9]*"
    words = {*name_words(name, with_digits), *re.findall(with_digits, plain_text(name)[0])}
    return words & (_QUANTITIES | _LOGARITHMS)
