"""What models of pairs read: stored vectors, and columns of a table beside them.

Vectors are those of a store, of one encoder or of several. Columns belong to the pair: a
log-likelihood, a calculated ddG, an accessible surface, expression; or an assay and a laboratory. A
number that is missing is read as the training mean, and a column with missing cells in training has
a second column of 0 and 1 that says where. Each value of a category is a column of 0 and 1.
Likelihoods of sequences, which ``abag embed --loglik`` stores beside the vectors, are features,
too. Statistics are those of training rows.

R rows of a table or pairs, P pairs, N sequences, D numbers of a vector, F columns of numbers, G of
categories, C columns of 0 and 1, K = F + C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints, Matrix, distinct
from abag.core.errors import ColumnError, StoreError
from abag.core.messages import counted, printable, quoted, say
from abag.embed.store.store import LOGLIK
from abag.embed.tables.chains import MISSING_TEXT, Kind
from abag.embed.tables.columns import LONGEST_NAME, quote_some
from abag.embed.tables.formats import cell_text
from abag.head.labels.column import LOGLIKS, ColumnBeside, names_of, read_numbers, refuse_absent
from abag.head.labels.options import MOST_FEATURE, MOST_FEATURES, BesideRole

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from abag.embed.store.options import VectorsOf
    from abag.embed.store.store import EncoderFolder, Store
    from abag.embed.tables.pairs import SequenceTable


BLOCK = 1 << 19
"""Numbers measured at a time: a whole table in float64 may not fit into memory."""
SPREAD_FLOOR = 0.1
"""Smallest spread used, relative to the median column: columns that hardly vary are mostly noise
and would otherwise be amplified to variance 1."""
Z_LIMIT = 10.0
"""Largest standardised input: values of 39 standard deviations occur in test rows of new
antigens."""
CONSTANT = 1e-9
"""Spread of a column, relative to its values, below which it is rounding."""


@dataclass(frozen=True, slots=True)
class View:
    """One of the vectors that a sequence has."""

    folder: EncoderFolder
    pooling: str
    width: int


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """The vectors of all unique antibodies, or of all unique antigens, of a table."""

    views: tuple[View, ...]
    """One or more, whose vectors are joined in this order; none of antigens that nobody encodes."""
    x_ND: NDArray[np.float32]
    """Shape (N, D), dtype float32; in the order of the unique sequences."""

    @classmethod
    def read(
        cls, folders: Sequence[tuple[EncoderFolder, str]], keys: NDArray[np.uint8]
    ) -> StoredVectors:
        """Read and join a pooling of each folder."""
        views = []
        parts = []
        for folder, pooling in folders:
            part_ND = folder.read(keys, pooling)
            views.append(View(folder, pooling, part_ND.shape[1]))
            parts.append(part_ND)
        # one view is not copied: it may take most of the memory
        x_ND = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return cls(tuple(views), x_ND)

    @classmethod
    def absent(cls, number: int = 1) -> StoredVectors:
        """Return vectors of sequences that nobody encodes: one 0 each, which says nothing."""
        return cls((), np.zeros((number, 1), np.float32))

    @property
    def folder(self) -> EncoderFolder:
        """Folder of the first view."""
        return self.views[0].folder

    @property
    def folders(self) -> list[EncoderFolder]:
        """Where the views are stored, each folder once."""
        by_fingerprint = {view.folder.fingerprint: view.folder for view in self.views}
        return list(by_fingerprint.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of a vector of each view."""
        return tuple(view.width for view in self.views) or (self.x_ND.shape[1],)

    @property
    def names(self) -> list[str]:
        """Fingerprint and pooling of each view, as config.json records them."""
        return [f"{view.folder.fingerprint}:{view.pooling}" for view in self.views]


def read_vectors(
    store: Store, table: SequenceTable, kind: Kind, views: Sequence[VectorsOf]
) -> StoredVectors:
    """Read the vectors of the unique sequences; by default from the only encoder of a kind.

    Those of a kind that the rows do not have say nothing.
    """
    from abag.embed.store.store import folder_with  # imports pandas

    if kind not in table.kinds:
        return StoredVectors.absent()
    places = []
    for view in views:
        folder = folder_with(store, table, kind, view["encoder"])
        places.append((folder, view["pooling"]))
    return StoredVectors.read(places, table.sequences[kind].keys)


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Mean and scale that standardise the D columns of one kind of vector."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """Shape (D,); one over the standard deviation, 0 for a constant column."""

    @classmethod
    def of(
        cls,
        x_ND: NDArray[np.floating],
        rows: NDArray[np.integer] | None = None,
        widths: Sequence[int] = (),
    ) -> Standardizer:
        """Measure vectors, (N, D): those of the distinct `rows`, by default all.

        Views of `widths` are scaled by the root of their number: joined, they are as long as one.
        """
        if len(widths) > 1:
            means = []
            scales = []
            for view_ND in np.split(x_ND, np.cumsum(widths)[:-1], axis=1):
                of_view = cls.of(view_ND, rows)
                means.append(of_view.mean)
                scales.append(of_view.scale)
            scale = np.concatenate(scales) / np.sqrt(len(widths))
            return cls(np.concatenate(means), scale.astype(np.float32))
        # each sequence once: one with many pairs would decide
        used = np.arange(len(x_ND)) if rows is None else distinct(rows)
        origin = x_ND[used[0]].astype(np.float64)  # near the mean: sums of squares lose no digits
        sums = []
        sums_of_squares = []
        for part in _blocks(len(used), x_ND.shape[1]):
            away_RD = x_ND[used[part]] - origin
            sums.append(away_RD.sum(axis=0))
            sums_of_squares.append(np.einsum("rd,rd->d", away_RD, away_RD))
        away = np.sum(sums, axis=0) / len(used)
        squares = np.sum(sums_of_squares, axis=0) / len(used)
        mean = origin + away
        spread = np.sqrt(np.maximum(0, squares - away**2))
        # A smaller spread is float16 rounding (2.8e-4 of the value), not signal.
        varies = spread > 5e-4 * np.abs(mean) + 1e-12
        floor = SPREAD_FLOOR * np.median(spread[varies]) if varies.any() else 1.0
        scale = np.where(varies, 1.0 / np.maximum(spread, floor), 0.0)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def identity(cls, width: int) -> Standardizer:
        """Return one that changes nothing, for columns of 0 and 1."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))

    def apply(self, x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Standardise vectors and clip them to `Z_LIMIT`, shape (N, D), dtype float32."""
        # in place from here: the vectors of a table may take most of the memory
        z_ND = np.empty(x_ND.shape, np.float32)
        np.subtract(x_ND, self.mean, out=z_ND)
        z_ND *= self.scale
        return np.clip(z_ND, -Z_LIMIT, Z_LIMIT, out=z_ND)

    def project(
        self, x_ND: NDArray[np.float32], weight_D: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Multiply standardised vectors with weights, (N,), block by block to save memory."""
        parts = [self.apply(x_ND[part]) @ weight_D for part in _blocks(*x_ND.shape)]
        return np.concatenate([np.zeros(0), *parts])

    def arrays(self, kind: str) -> dict[str, NDArray[np.float32]]:
        """Return mean and scale by the names under which a predictor stores those of a kind."""
        return {f"{kind}.mean": self.mean, f"{kind}.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], kind: str) -> Standardizer:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        mean = arrays[f"{kind}.mean"]
        scale = arrays[f"{kind}.scale"]
        if not mean.ndim == scale.ndim == 1 or not len(mean) == len(scale) > 0:
            msg = f"{kind}.mean and {kind}.scale have shapes {mean.shape} and {scale.shape}"
            raise ValueError(msg)
        return cls(mean, scale)


def _blocks(rows: int, width: int) -> list[slice]:
    """Return slices of rows that hold about `BLOCK` numbers."""
    size = max(1, BLOCK // max(1, width))
    return [slice(first, first + size) for first in range(0, rows, size)]


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


@dataclass(frozen=True, slots=True)
class FeatureScaling:
    """Mean and scale of F columns of numbers, of training pairs."""

    mean: Floats
    scale: Floats
    """One over the standard deviation; 0 for a column that is constant or missing in training."""

    @classmethod
    def of(cls, features: PairFeatures) -> FeatureScaling:
        """Measure the features of training pairs; missing values do not count."""
        numbers_RF = features.numbers_RF
        known_RF = np.isfinite(numbers_RF)
        count_F = np.maximum(1, known_RF.sum(axis=0))
        mean_F = np.where(known_RF, numbers_RF, 0.0).sum(axis=0) / count_F
        away_RF = np.where(known_RF, numbers_RF - mean_F, 0.0)
        spread_F = np.sqrt(np.square(away_RF).sum(axis=0) / count_F)
        varies = spread_F > CONSTANT * np.abs(mean_F)
        divisor_F = np.where(varies, spread_F, 1.0)
        scale_F = np.where(varies, 1.0 / divisor_F, 0.0)
        return cls(mean_F, scale_F)

    def apply(self, features: PairFeatures) -> Matrix:
        """Return standardised numbers, 0 where one is missing, then columns of 0 and 1: (R, K)."""
        z_RF = (features.numbers_RF - self.mean) * self.scale
        z_RF = np.clip(np.nan_to_num(z_RF, nan=0.0), -Z_LIMIT, Z_LIMIT)
        return np.hstack([z_RF.astype(np.float32), features.marks_RC])

    def arrays(self) -> dict[str, Floats]:
        """Return mean and scale by the names under which a predictor stores them."""
        return {"features.mean": self.mean, "features.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> FeatureScaling:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        mean = arrays["features.mean"]
        scale = arrays["features.scale"]
        if not (mean.ndim == scale.ndim == 1 and len(mean) == len(scale)):
            msg = f"features.mean and features.scale have shapes {mean.shape} and {scale.shape}"
            raise ValueError(msg)
        return cls(mean, scale)


LONGEST_TEXT = 200
"""Characters of a value of a category."""
MARGIN = 0.1
"""Share of the trained range by which a value may lie outside of it."""
MISSING = "(missing)"
"""Value of an empty cell of a category."""
_EMPTY = frozenset({"", "-", "--", "?", *(text.lower() for text in MISSING_TEXT)})


# ---- cells of a table ----------------------------------------------------------------------------


class FeatureCells(NamedTuple):
    """What the columns say of R rows or pairs."""

    numbers_RF: Floats
    """NaN where a cell is missing."""
    words_RG: NDArray[np.object_]
    """Values of categories, which are texts."""

    def take(self, rows: Ints) -> FeatureCells:
        """Return the cells of some rows."""
        return FeatureCells(self.numbers_RF[rows], self.words_RG[rows])


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
        stored = {column.name for column in self.numbers if column.head}
        return tuple(name for name in self.names if name not in stored)

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

    def why_far(self, cells: FeatureCells) -> NDArray[np.object_]:
        """Say of each row why its features are outside those of training; empty if they are not."""
        why = np.full(len(cells.numbers_RF), "", object)
        for column, values_R in zip(self.numbers, cells.numbers_RF.T, strict=True):
            margin = MARGIN * (column.high - column.low)
            below = values_R < column.low - margin
            above = values_R > column.high + margin
            trained = f"the {column.low:g} to {column.high:g} of training"
            why[below & (why == "")] = f"its {column.name} is below {trained}"
            why[above & (why == "")] = f"its {column.name} is above {trained}"
        for category, words_R in zip(self.categories, cells.words_RG.T, strict=True):
            unknown = ~np.isin(words_R, np.array(category.values, object)) & (why == "")
            for word in sorted(set(words_R[unknown].tolist())):
                reason = f"its {category.name} is {quoted(word)}, which training lacks"
                why[unknown & (words_R == word)] = reason
        return why

    def with_stored(self, cells: FeatureCells | None, rows: int) -> FeatureCells:
        """Add columns without values for what the store has, to the cells of R rows of a table."""
        numbers_RF = np.full((rows, len(self.numbers)), np.nan)
        if cells is None:
            return FeatureCells(numbers_RF, np.empty((rows, 0), object))
        numbers_RF[:, [not column.head for column in self.numbers]] = cells.numbers_RF
        return FeatureCells(numbers_RF, cells.words_RG)

    def nothing(self, rows: int) -> PairFeatures:
        """Return features of pairs of which nothing is known."""
        empty = np.full((rows, len(self.categories)), MISSING, object)
        return self.encode(FeatureCells(np.full((rows, len(self.numbers)), np.nan), empty))

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
        return self.columns.why_far(self.cells)

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


def _from_one(at: int) -> str:
    return str(at + 1)


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
    row_name: Callable[[int], str] = _from_one,
) -> FeatureCells:
    """Read the columns of a run in a table, by name; `ColumnError` if one lacks or is invalid."""
    numbers = [column.name for column in columns.numbers if not column.head]
    words = [column.name for column in columns.categories]
    for name in (*numbers, *words):
        refuse_absent(name, [*frame.columns], source, "the run was trained with")
    cells = read_cells(frame, numbers, words, source, row_name)
    _as_trained(cells.words_RG, columns.categories)
    return columns.with_stored(cells, len(frame))


def joined_cells(chunks: Sequence[FeatureCells]) -> FeatureCells:
    """Return the cells of all chunks of a table."""
    numbers_RF = np.concatenate([chunk.numbers_RF for chunk in chunks])
    return FeatureCells(numbers_RF, np.concatenate([chunk.words_RG for chunk in chunks]))


# ---- reading -------------------------------------------------------------------------------------


def read_cells(
    frame: pd.DataFrame,
    features: Sequence[str],
    categories: Sequence[str],
    source: str,
    row_name: Callable[[int], str] = _from_one,
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
        codes[f"category {at}"] = pd.factorize(words_R)[0].astype(np.int64)
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
        finite = used & np.isfinite(values_R)
        count = np.bincount(pair_of_row[finite], minlength=pairs)
        total = np.bincount(pair_of_row[finite], values_R[finite], minlength=pairs)
        numbers_PF[:, at] = np.where(count > 0, total / np.maximum(1, count), np.nan)
    return FeatureCells(numbers_PF, cells.words_RG[first_row])


def refuse_features(names: Iterable[str], where: str, advice: str) -> None:
    """Refuse to score pairs whose features nobody gives."""
    listed = quote_some([*names])
    msg = f"{where}: the run reads the columns {listed}; expected these of each pair. {advice}"
    raise ColumnError(msg)


def with_logliks(
    table: SequenceTable,
    beside: Sequence[ColumnBeside],
    folders: Mapping[Kind, EncoderFolder],
) -> tuple[SequenceTable, tuple[ColumnBeside, ...]]:
    """Add the likelihoods of a store that are features as columns.

    Parameters
    ----------
    table : SequenceTable
        R rows.
    beside : sequence of ColumnBeside
        ``loglik`` in a store stands for the likelihoods of all sides that have one.
    folders : mapping
        Where the vectors of each kind are; none for antigens that nobody encodes.

    Returns
    -------
    table : SequenceTable
        With a column for each.
    beside : tuple of ColumnBeside
        With the names of these columns, and the digests of what gives the likelihoods.

    Raises
    ------
    ColumnError
        If the store has none.
    """
    columns: dict[tuple[str, BesideRole], ColumnBeside] = {}
    frame = table.frame
    for column in beside:
        if not column.in_store:
            columns[column.name, column.role] = column
            continue
        asked = LOGLIKS if column.name == LOGLIK else {column.name: LOGLIKS[column.name]}
        likelihoods = {}
        for name, kind in asked.items():
            is_stored = kind in folders and folders[kind].head
            if is_stored and name not in frame.columns:
                likelihoods[name] = folders[kind]
        if not likelihoods:
            msg = (
                f"{table.source}: no column {column.name!r}, and no likelihood of the "
                f"{' or '.join(asked.values())} in the store; expected one of them. Run abag embed "
                "--loglik into a new store, or leave it out."
            )
            raise ColumnError(msg)
        for name, folder in likelihoods.items():
            sequences = table.sequences[LOGLIKS[name]]
            loglik_N = read_logliks(folder, sequences.keys)
            frame = frame.assign(**{name: loglik_N[sequences.of_row]})
            # loglik may be named beside a likelihood of its own
            columns[name, column.role] = replace(column, name=name, head=folder.head)
    return replace(table, frame=frame), tuple(columns.values())


def read_logliks(folder: EncoderFolder, keys: NDArray[np.uint8], head: str = "") -> Floats:
    """Read the likelihoods of sequences, keys (N, 16), (N,); of another `head` they are refused."""
    if head and folder.head and folder.head != head:
        msg = (
            f"{folder.path}: has likelihoods of head {folder.head[:8]}; the run was trained with "
            f"{head[:8]}. Give the --store of the run, or a new one."
        )
        raise StoreError(msg)
    return folder.read(keys, LOGLIK)[:, 0].astype(np.float64)
