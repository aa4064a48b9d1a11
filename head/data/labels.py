"""Labelled pairs: the label column as pKd, its unit and direction, bounds and replicates.

A censored label has a relation: in the label itself, ``>1000``, it is of the label's unit, in a
column of its own it is of Kd, where ``>`` means a higher Kd, hence a lower pKd.

R rows of a table, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints
from abag.core.errors import LabelError
from abag.core.messages import counted, say
from abag.embed.sequences.chains import NO_ANTIGEN
from abag.embed.sequences.changes import BadCell, SkippedRows
from abag.embed.sequences.columns import ROLES, quote_names
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.affinities import BOUND_OF_A_NON_BINDER, read_affinities
from abag.head.data.cells import SIDES, read_bounds, read_numbers, says_class, says_no_binding
from abag.head.data.features import (
    FeatureCells,
    FeatureColumns,
    mean_cells,
    read_cells,
    words_as_codes,
)
from abag.head.data.joined_labels import with_one_label
from abag.head.data.label_errors import LabelTrust, read_trust, share_of_pairs
from abag.head.data.label_options import Floor, Label, LabelOptions, PairColumnOptions, Replicates
from abag.head.data.label_unit import Remembered, name_affinity
from abag.head.data.quantity import PKD, Quantity
from abag.head.data.units import HIGHER_IS_STRONGER, POSITIVE, read_header, to_pkd
from abag.head.data.usual_values import outside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.sequences.table_options import TableOptions
    from abag.embed.sequences.tables import TableLike
    from abag.head.data.affinities import Affinities

CONFLICT_PKD = 1.0
"""Labels of one pair, or assay means of one antigen, that differ by more are a conflict."""
FLOOR_SHARE = 0.05
"""A lowest value that more than this share of the rows have is a floor."""
LISTED_TYPES = 8
STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units beside pKd and that of the labels in which a column of relations may repeat the labels."""
SAME_PKD = 0.1
"""Largest distance of such a bound from its label, from rounding."""
POSSIBLE_PKD = (0.0, 16.0)
"""Labels outside are certainly in another unit."""
OPPOSITE = -0.5
"""Rank correlation from which a second measurement contradicts the direction of the label."""


class NothingToLearn(LabelError):
    """The training pairs have no exact label, or all labels are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReading:
    """What was read as the label, and why."""

    column: str = ""
    unit: Label = "pkd"
    why: str = ""
    line: str = ""
    """The same in one line, and whether a higher label means stronger binding."""
    problems: tuple[str, ...] = ()
    """What contradicts it."""
    quantity: Quantity = PKD
    conflict: float = CONFLICT_PKD
    """Labels of one pair that differ by more contradict each other: by 1 pKd, and by a standard
    deviation of the labels of another quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPairs:
    """P pairs with a measured label, in the order of (antibody key, antigen key)."""

    antibody: Ints
    """Shape (P,); index into ``table.antibodies``."""
    antigen: Ints
    """Shape (P,); index into ``table.antigens``."""
    pkd: Floats
    """Shape (P,); -log10 of Kd in M, or the values of another `quantity`."""
    censored: NDArray[np.int8]
    """Shape (P,); 0: exact, -1: the true value is below the label, +1: above."""
    row: Ints
    """Shape (P,); row of ``table.frame``: that of the pair's first replicate."""
    table: SequenceTable
    """The table, its unique sequences in the order of their keys."""
    measurements: Ints
    """Shape (P,); how many different measurements the label is the median or mean of."""
    noise: float | None
    """Pooled standard deviation of exact replicates in pKd; None if there are none."""
    reading: LabelReading = field(default_factory=lambda: LabelReading())
    counts: dict[str, int] = field(default_factory=dict)
    """Rows, and how many of them were skipped, merged, censored or dropped."""
    antigen_cluster: Ints | None = None
    """Shape (P,); equal for near-duplicate antigens. None: antigens were not clustered."""
    antibody_cluster: Ints | None = None
    no_antigen: bool = False
    """Whether the table is of antibodies alone."""
    usable: pd.DataFrame | None = None
    """Every measurement that is used: ``row`` of the table, ``antibody``, ``antigen``, ``pkd`` and
    ``censored``, before replicates are joined."""
    beside: pd.DataFrame | None = None
    """Columns that `PairColumnOptions` names, of the R rows of the table: see `beside_name`."""
    round_of_row: Ints | None = None
    """Round of a campaign of each row of the table, (R,); None: all are of the first."""
    cells: FeatureCells | None = None
    """The columns that `PairColumnOptions` names, of P pairs; None if it names none."""
    features: FeatureColumns | None = None
    """What models read of them; None as long as they are not checked for a fit."""
    share: Floats | None = None
    """Shape (P,); variance of the noise of each label relative to the mean, from ``--error`` or
    ``--weight``; None without these."""

    def __len__(self) -> int:
        return len(self.pkd)

    @property
    def unit(self) -> Label:
        """Unit that the labels were read in."""
        return self.reading.unit

    @property
    def quantity(self) -> Quantity:
        """Quantity that the labels are values of."""
        return self.reading.quantity

    def index(self, kind: Kind) -> Ints:
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
    table: SequenceTable,
    options: LabelOptions | None = None,
    *,
    refuse_sequences: bool = False,
    remembered: Remembered | None = None,
    named: PairColumnOptions | None = None,
) -> LabelledPairs:
    """Read the labels of a table, and its relations and types of affinity; merge replicates.

    With `refuse_sequences`, rows that were skipped for their sequences are refused, too;
    `remembered` is that of `read_affinities`, and `named` has the columns of features and errors.
    Replicates of different categories are not merged.
    """
    options = options or LabelOptions()
    named = named or PairColumnOptions()
    table = with_one_label(table, options, remembered)
    affinities = read_affinities(table, options, remembered=remembered)
    table = with_label(table, affinities)
    reading = _reading(table, affinities, options)
    table = table.sorted_by_key()  # every draw over sequences is then the same for any row order
    quantity = affinities.quantity
    labels = _check_labels(table, affinities, options)
    _refuse_rows(table, labels, options, refuse_sequences=refuse_sequences)
    table = replace(table, skipped=SkippedRows([*table.skipped.rows, *labels.bad]))
    usable = labels.usable
    censored = _read_censored(table, labels.pkd, affinities)
    cells = _cells_of(table, named)
    trust = read_trust(table, named, affinities, usable, censored == 0)
    beside = _beside(len(usable), named, cells, trust)
    rows = _usable_rows(table, labels, censored, cells, trust)
    rows, floored = _apply_floor(rows, options.floor, quantity)
    if not quantity.affinity:
        reading = replace(reading, conflict=spread_of(rows.loc[rows["censored"] == 0, "pkd"]))
    noise = _replicate_noise(rows)
    conflicts = int((disagreement(rows) > reading.conflict).sum())
    pairs = _merge_replicates(table, rows, options.replicates, quantity)
    pairs = pairs.sort_values(["antibody", "antigen", "censored", "pkd"], kind="stable")
    columns = _columns_of(pairs)
    counts = {
        "rows": len(usable),
        "other_affinity_type_rows": int((~labels.of_type).sum()),
        "skipped_labels": len(labels.bad),
        "no_binding_rows": int((affinities.no_binding & usable).sum()),
        "floor_rows": floored,
        "replicate_rows": len(rows) - len(pairs),
        "conflicting_pairs": conflicts,
        "censored_pairs": int((pairs["censored"] != 0).sum()),
    }
    if cells is not None:
        averaged = options.replicates in ("median", "mean")
        pair_of_row = _pair_of_row(rows if averaged else pairs, pairs, len(usable))
        cells = mean_cells(cells, pair_of_row, columns["row"])
    return LabelledPairs(
        **columns,
        table=table,
        noise=noise,
        reading=reading,
        counts=counts,
        usable=rows,
        no_antigen=table.antigens.chains == [NO_ANTIGEN],
        cells=cells,
        features=None,
        beside=beside,
        share=share_of_pairs(pairs, of_errors=named.error is not None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedLabels:
    """Hold the labels of the R rows of a table, and which of them can be used."""

    pkd: Floats
    """Shape (R,); NaN where no label can be used."""
    of_type: Bools
    """Shape (R,); whether a row has the affinity type that was asked for."""
    usable: Bools
    """Shape (R,)."""
    bad: list[tuple[int, BadCell]]
    """Rows of the type whose label cannot be used."""


def _check_labels(
    table: SequenceTable, affinities: Affinities, options: LabelOptions
) -> _CheckedLabels:
    """Find the rows of the affinity type, and those of them with a label in the valid range."""
    quantity = affinities.quantity
    of_type = _of_type(table, options.affinity_type)
    pkd = affinities.pkd.copy()
    affinities.refuse_other_units(of_type & np.isfinite(pkd))
    low, high = options.bounds(affinity=quantity.affinity)
    usable = of_type & (low <= pkd) & (pkd <= high)
    bad = []
    for at in np.flatnonzero(of_type & ~usable).tolist():
        cell = _bad_cell(table, at, affinities.unit, quantity, pkd[at], (low, high))
        bad.append((int(table.row_numbers[at]), cell._replace(file=table.file_name(at))))
    pkd[~usable] = np.nan
    if not usable.any():
        _refuse_words_for_classes(table, of_type, quantity)
    return _CheckedLabels(pkd=pkd, of_type=of_type, usable=usable, bad=bad)


def _refuse_rows(
    table: SequenceTable, labels: _CheckedLabels, options: LabelOptions, *, refuse_sequences: bool
) -> None:
    """Refuse the rows that are not to be skipped, and a table without a usable label."""
    refused = SkippedRows([*labels.bad] if options.bad_rows == "error" else [])
    if refuse_sequences:
        refused.update(table.skipped)
    if refused.bad:
        raise refused.refusal(table.source, kept=int(labels.usable.sum()))
    if not labels.usable.any():
        msg = (
            f"{table.source}: column {table.column('pkd')} has no usable label. Choose another "
            "column with --column pkd=NAME."
        )
        raise LabelError(msg)


def _usable_rows(
    table: SequenceTable,
    labels: _CheckedLabels,
    censored: NDArray[np.int8],
    cells: FeatureCells | None,
    trust: LabelTrust | None,
) -> pd.DataFrame:
    """Join what is read of each row with a usable label; categories are codes."""
    usable = labels.usable
    rows = pd.DataFrame(
        {
            "row": np.arange(len(usable)),
            "antibody": table.antibodies.of_row,
            "antigen": table.antigens.of_row,
            "pkd": labels.pkd,
            "censored": censored,
        }
    )[usable]
    if cells is not None:
        rows = rows.assign(**{name: of[usable] for name, of in words_as_codes(cells).items()})
    if trust is not None:
        rows = rows.assign(share=trust.share_R[usable])
    return rows


def _columns_of(pairs: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns of `LabelledPairs` as arrays of their own, (P,) each."""
    types = {"pkd": np.float64, "censored": np.int8}
    return {
        name: pairs[name].to_numpy(types.get(name, np.int64), copy=True)
        for name in ("antibody", "antigen", "pkd", "censored", "row", "measurements")
    }


def _cells_of(table: SequenceTable, named: PairColumnOptions) -> FeatureCells | None:
    """Read the features and categories of all rows; None if none are named."""
    if not (named.features or named.categories):
        return None
    return read_cells(
        table.frame,
        named.features or (),
        named.categories or (),
        table.source,
        "is to be read as a feature",
        table.row_name,
    )


def beside_name(what: str, name: str) -> str:
    """Name a feature, category, error or weight unlike any column of labels and sequences."""
    return f"{what}:{name}"


def _beside(
    rows: int, named: PairColumnOptions, cells: FeatureCells | None, trust: LabelTrust | None
) -> pd.DataFrame | None:
    """Join what was read of the columns that are named; None if none is."""
    if not named.named_columns:
        return None
    columns: dict[str, NDArray[Any]] = {}
    if cells is not None:
        for name, values_R in zip(named.features or (), cells.numbers_RF.T, strict=True):
            columns[beside_name("feature", name)] = values_R
        for name, words_R in zip(named.categories or (), cells.words_RG.T, strict=True):
            columns[beside_name("category", name)] = words_R
    trust_column = named.error or named.weight
    if trust is not None and trust_column is not None:
        columns[beside_name(trust.what, trust_column)] = trust.values_R
    return pd.DataFrame(columns, index=range(rows))


def _of_type(table: SequenceTable, affinity_type: str | None) -> Bools:
    """Return which rows have the requested affinity type; types are never mixed."""
    if affinity_type is None and not table.has("affinity_type"):
        return np.ones(len(table.frame), np.bool_)
    column = table.column("affinity_type")
    types = table.frame[column].astype("string").fillna("").str.strip()
    counts = types[table.frame[table.column("pkd")].notna()].value_counts()
    if affinity_type is None and len(counts) < 2:
        return np.ones(len(table.frame), np.bool_)
    if affinity_type not in counts.index:
        listed = ", ".join(f"{n} of {name!r}" for name, n in counts.head(LISTED_TYPES).items())
        listed += ", ..." * (len(counts) > LISTED_TYPES)
        problem = "several affinity types" if affinity_type is None else f"no {affinity_type!r}"
        msg = (
            f"{table.source}: column {column} has {problem} among the labelled rows: "
            f"{listed}; expected one type. Choose it with --affinity-type NAME."
        )
        raise LabelError(msg)
    return (types == affinity_type).to_numpy(np.bool_)


def spread_of(exact: pd.Series[float]) -> float:
    """Return the standard deviation of exact labels; infinite if there are fewer than two."""
    return float(exact.std()) if len(exact) > 1 else np.inf


def _refuse_words_for_classes(table: SequenceTable, wanted: Bools, quantity: Quantity) -> None:
    """Refuse a column without numbers whose cells are words for classes."""
    column = table.column("pkd")
    cells = [cell for cell in table.frame.loc[wanted, column].dropna().tolist() if cell != ""]
    # affinities that are all words for no binding lack a bound, which the rows are told
    of_affinity = all(isinstance(c, str) for c in cells) and not all(map(says_no_binding, cells))
    if cells and (of_affinity or not quantity.affinity) and all(map(says_class, cells)):
        words = ", ".join(dict.fromkeys(map(repr, cells[:LISTED_TYPES])))
        msg = (
            f"{table.source}: column {column} holds {words}, which are classes, not measurements; "
            "abag predicts numbers. Choose a column of measurements with --column label=NAME."
        )
        raise LabelError(msg)


def _bad_cell(
    table: SequenceTable,
    at: int,
    unit: Label,
    quantity: Quantity,
    pkd: float,
    valid: tuple[float, float],
) -> BadCell:
    column = table.column("pkd")
    number = f"a {'positive' if unit in POSITIVE else 'finite'} number such as 1234.5"
    noun = "pKd" if quantity.affinity else "value"
    expected = f"a {noun} from {valid[0]:g} to {valid[1]:g}" if np.isfinite(pkd) else number
    advice = "Fix it."
    if says_no_binding(table.frame[column].iloc[at]) and not quantity.affinity:
        advice = (
            "Write a bound, such as <5, or give it with --no-binding VALUE; leave out what was not "
            "measured with --bad-rows skip."
        )
    elif says_no_binding(table.frame[column].iloc[at]):
        bound = BOUND_OF_A_NON_BINDER[unit]
        advice = (
            f"Write a non-binder as a bound, such as {bound} ({unit}), or let abag fit read it so "
            f"with --no-binding {bound[1:]}; skipped, it is lost."
        )
    error = (
        f"column {column!r}: {table.cell_text(at, column)} is not a valid label; expected "
        f"{expected}. {advice}"
    )
    cell = str(table.frame[column].iloc[at])
    return BadCell("label", "invalid label", cell, error, LabelError)


def _apply_floor(rows: pd.DataFrame, floor: Floor, quantity: Quantity) -> tuple[pd.DataFrame, int]:
    """Drop or censor the rows at the floor, the worst value, if there is one, and count them."""
    exact = rows["censored"] == 0
    strength = quantity.sign * rows["pkd"]
    at_floor = exact & (strength == strength[exact].min())
    count = int(at_floor.sum())
    if count <= FLOOR_SHARE * exact.sum() or count == exact.sum():
        return rows, 0
    if floor == "drop":
        rows = rows[~at_floor]
    elif floor == "censor":
        rows = rows.assign(censored=rows["censored"].where(~at_floor, -quantity.sign))
    return rows, count


def _replicate_noise(rows: pd.DataFrame) -> float | None:
    """Pool the standard deviation of exact replicates over all pairs."""
    # equal labels of a pair count once: they are copies of one measurement
    rows = rows[rows["censored"] == 0].drop_duplicates(["antibody", "antigen", "pkd"])
    exact = rows.groupby(["antibody", "antigen"])["pkd"]
    degrees_of_freedom = int((exact.size() - 1).sum())
    if degrees_of_freedom == 0:
        return None
    squares = ((rows["pkd"] - exact.transform("mean")) ** 2).sum()
    return float(np.sqrt(squares / degrees_of_freedom))


def disagreement(rows: pd.DataFrame) -> pd.Series[float]:
    """Return by how much the labels of each pair contradict each other in pKd, bounds included."""
    at_least = rows["pkd"].where(rows["censored"] >= 0)
    at_most = rows["pkd"].where(rows["censored"] <= 0)
    pair = [rows["antibody"], rows["antigen"]]
    return at_least.groupby(pair).max() - at_most.groupby(pair).min()


def _merge_replicates(
    table: SequenceTable, rows: pd.DataFrame, how: Replicates, quantity: Quantity
) -> pd.DataFrame:
    if how == "keep":
        return rows.assign(measurements=1)
    if how == "error":
        _refuse_conflicts(table, rows, quantity)
    # Exact and censored labels of a pair stay separate: a bound cannot be averaged.
    groups = rows.groupby(_of_pair(rows), sort=False, as_index=False)
    averaged = how in ("median", "mean")
    chosen: dict[str, tuple[str, str]] = {}
    if "share" in rows:
        chosen["share"] = ("share", "mean" if averaged else "first")
    merged = groups.agg(
        row=("row", "first"),
        pkd=("pkd", how if averaged else "first"),
        measurements=("pkd", "nunique"),
        **chosen,
    )
    return merged if averaged else merged.assign(measurements=1)


def _of_pair(rows: pd.DataFrame) -> list[str]:
    """Return the columns in which the replicates of a pair are equal."""
    categories = [name for name in rows.columns if name.startswith("category ")]
    return ["antibody", "antigen", "censored", *categories]


def _pair_of_row(rows: pd.DataFrame, pairs: pd.DataFrame, total: int) -> Ints:
    """Return the pair that each row of a table was merged into, (R,); -1 for rows of none."""
    of_row = np.full(total, -1, np.int64)
    if rows is pairs:  # of each pair the row that it was taken from
        of_row[pairs["row"].to_numpy()] = np.arange(len(pairs))
        return of_row
    names = _of_pair(rows)
    numbered = pairs[names].assign(pair=np.arange(len(pairs)))
    merged = rows[[*names, "row"]].merge(numbered, on=names, how="left")
    of_row[merged["row"].to_numpy()] = merged["pair"].to_numpy()
    return of_row


def _refuse_conflicts(table: SequenceTable, rows: pd.DataFrame, quantity: Quantity) -> None:
    spread = disagreement(rows)
    if spread.max() > 0:
        worst = rows.set_index(["antibody", "antigen"]).loc[[spread.idxmax()]]
        at = ", ".join(table.row_name(r) for r in worst["row"][:5])
        msg = (
            f"{table.source}: rows {at} measure the same pair and differ by up to "
            f"{quantity.show(spread.max())} {quantity}. Fix them, or use --replicates median."
        )
        raise LabelError(msg)


def report_counts(pairs: LabelledPairs) -> None:
    """Say what was read of the table and of its labels, and what was left out."""
    pairs.table.report_notes()
    counts = ", ".join(
        counted(n, name.replace("_", " ").removesuffix("s"))
        for name, n in pairs.counts.items()
        if n and name != "skipped_labels"  # the notes have them
    )
    say(pairs.reading.line)
    say(f"{pairs.table.source}: {counted(len(pairs), 'pair')} ({counts})")


def training_labels(pairs: LabelledPairs, training: Ints) -> Floats:
    """Return the exact labels of the training pairs, (R,), in pKd; some have to differ."""
    labels: Floats = pairs.pkd[training[pairs.censored[training] == 0]]
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


class _Relations(NamedTuple):
    """Hold the relations of the R rows of a table, from a column of their own."""

    column: str
    side: pd.Series
    """As in `LabelledPairs.censored`, of what the column is of, Kd or pKd."""
    bound: Floats
    """Shape (R,); NaN where the cell has none."""
    is_bound: Bools
    """Shape (R,); whether the cell has a relation with a bound."""


def _read_censored(table: SequenceTable, pkd: Floats, affinities: Affinities) -> NDArray[np.int8]:
    """Join the relations in the labels with those in a column, (R,)."""
    column = table.columns.get("censored")
    is_affinity = affinities.quantity.affinity
    labelled = np.isfinite(pkd)
    censored = np.where(labelled, affinities.side, 0).astype(np.int8)
    is_bound = np.zeros(len(pkd), np.bool_)
    if column is not None:
        relations = _read_relations(table, column)
        is_bound = relations.is_bound
        if is_affinity:
            censored = _with_relations_of_affinity(table, relations, censored, pkd, affinities)
        else:
            censored = _with_relations(table, relations, censored, pkd)
    if is_affinity and (affinities.unit == "pkd" or column is not None):
        _refuse_reversed(table, column, censored, pkd, is_bound)
    return censored


def _refuse_cells(table: SequenceTable, rows: Bools, column: str, problem: str) -> None:
    """Refuse the cells of some rows, (R,), if there are any, by the first of them."""
    if rows.any():
        cell = table.describe_cell(np.flatnonzero(rows)[0], column)
        msg = f"{cell} ({counted(int(rows.sum()), 'such row')}) {problem}"
        raise LabelError(msg)


def _read_relations(table: SequenceTable, column: str) -> _Relations:
    text = table.frame[column].fillna("").astype(str).str.strip()
    side = text.str[:1].map(SIDES)
    bound = read_bounds(text)[0]
    is_bound = np.isfinite(bound) & side.notna().to_numpy()
    _refuse_cells(
        table,
        ~is_bound & ~text.str.fullmatch(f"[{''.join(SIDES)}]*").to_numpy(np.bool_),
        column,
        "is not a valid relation; expected > or < (of Kd), also with its bound, = or an empty "
        "cell. Fix it, or choose another column with --column censored=NAME.",
    )
    return _Relations(column, side, bound, is_bound)


def _with_relations_of_affinity(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    pkd: Floats,
    affinities: Affinities,
) -> NDArray[np.int8]:
    """Join relations in labels with those in a column, of Kd unless its bounds are pKd."""
    column = relations.column
    labelled = np.isfinite(pkd)
    off_as_pkd, off_as_kd = _distances_from_bounds(relations, pkd, affinities)
    is_kd = bool(off_as_pkd.sum() >= off_as_kd.sum())
    _refuse_cells(
        table,
        (off_as_kd if is_kd else off_as_pkd) > SAME_PKD,
        column,
        "is not the label, as pKd or as Kd in M, uM or nM; expected the same bound. Fix it.",
    )
    side = -relations.side if is_kd else relations.side
    relation_to_pkd = np.where(labelled, side, 0).astype(np.int8)
    problem = f"contradicts the relation in column {column}; expected one. Remove the other."
    _refuse_cells(table, censored * relation_to_pkd < 0, table.column("pkd"), problem)
    return np.where(censored == 0, relation_to_pkd, censored)


def _distances_from_bounds(
    relations: _Relations, pkd: Floats, affinities: Affinities
) -> tuple[Floats, Floats]:
    """Return how far the bounds are from the labels in pKd, read as pKd and as Kd, (R,) each.

    A bound is the label again, and shows whether the relations are of pKd or of Kd.
    """
    bound = relations.bound
    unit = affinities.unit
    label_distance = np.abs(to_pkd(bound, unit, affinities.molar_mass_kda) - pkd)
    distances_as_pkd = [np.abs(bound - pkd)]
    distances_as_kd = [np.abs(to_pkd(bound, unit_of_bound) - pkd) for unit_of_bound in STATED]
    (distances_as_pkd if unit in HIGHER_IS_STRONGER else distances_as_kd).append(label_distance)
    off_2R = np.where(
        relations.is_bound & np.isfinite(pkd),
        [np.fmin.reduce(distances_as_pkd), np.fmin.reduce(distances_as_kd)],
        0.0,
    )
    off_2R = np.nan_to_num(off_2R, nan=np.inf)
    return off_2R[0], off_2R[1]


def _with_relations(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    value: Floats,
) -> NDArray[np.int8]:
    """Join relations in labels of another quantity with those in a column, which are of it, too."""
    column = relations.column
    labelled = np.isfinite(value)
    off = np.where(relations.is_bound & labelled, np.abs(relations.bound - value), 0.0)
    _refuse_cells(
        table,
        off > 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(value))),
        column,
        "is not the label; expected the same bound, or > or < alone. Fix it.",
    )
    relation_to_value = np.where(labelled, relations.side, 0).astype(np.int8)
    problem = "contradicts the relation in the label. Remove one."
    _refuse_cells(table, censored * relation_to_value < 0, column, problem)
    return np.where(censored == 0, relation_to_value, censored)


def _refuse_reversed(
    table: SequenceTable,
    column: str | None,
    censored: NDArray[np.int8],
    pkd: Floats,
    is_bound: Bools,
) -> None:
    """Refuse relations whose labels are all at the end that the relation points away from."""
    expected, other = ("pKd", "Kd") if column is None else ("Kd", "pKd")
    least = np.nanmin(pkd, initial=np.inf)
    most = np.nanmax(pkd, initial=-np.inf)
    for side, end in ((-1, most), (1, least)):
        rows = (censored == side) & ~is_bound
        # the usual floor of an assay is such a bound, read the other way round
        reversed_ = least < most and bool((pkd[rows] == end).all())
        problem = f"is at the end of the labels, as if its relation were of {other}; expected "
        _refuse_cells(
            table,
            rows & reversed_,
            column or table.column("pkd"),
            f"{problem}bounds of {expected}. Write these.",
        )


def describe_columns(
    table: SequenceTable, quantity: Quantity = PKD, beside: PairColumnOptions | None = None
) -> str:
    """List the columns that play a role, those `beside` labels and sequences, and the others."""
    beside = beside or PairColumnOptions()
    named = beside.named_columns
    used = {role: name for role, name in table.columns.items() if name not in named}
    words = {"pkd": "pkd" if quantity.affinity else "label"}
    roles = [f"{words.get(role, role)} {name!r}" for role, name in used.items()]
    roles += [f"{word} {name!r}" for name, word in named.items() if name in table.names]
    unused = [name for name in map(str, table.names) if name not in {*used.values(), *named}]
    note = f"; not used: {quote_names(unused)}" if unused else ""
    return f"columns: {', '.join(roles)}{note}"


def label_sense(
    table: SequenceTable, options: LabelOptions | None = None
) -> tuple[SequenceTable, LabelReading]:
    """Return the table with its label among its roles, and what `label_pairs` would read."""
    options = options or LabelOptions()
    table = with_one_label(table, options)
    affinities = read_affinities(table, options)
    table = with_label(table, affinities)
    return table, _reading(table, affinities, options)


def with_label(table: SequenceTable, affinities: Affinities) -> SequenceTable:
    """Return the table with its label among its columns."""
    columns = {**table.columns, "pkd": affinities.column}
    roles = [role for role in ROLES if role in columns and role != "label"]
    return replace(table, columns={role: columns[role] for role in roles})


def _reading(table: SequenceTable, affinities: Affinities, options: LabelOptions) -> LabelReading:
    column = affinities.column
    unit = affinities.unit
    quantity = affinities.quantity
    if not quantity.affinity:
        return LabelReading(
            column=column,
            unit=unit,
            why=affinities.why,
            line=affinities.describe(),
            quantity=quantity,
        )
    readable = np.isfinite(affinities.pkd) & ~affinities.no_binding
    impossible = readable & outside(affinities.pkd, POSSIBLE_PKD)
    problems = [
        f"Column {other!r}, read as {other_unit}, ranks the rows the other way round than "
        f"{column!r}, read as {unit}."
        for other, other_unit in _opposite_measurements(table, affinities.pkd)
    ]
    if 0 < 2 * impossible.sum() <= readable.sum():  # more are refused
        problems.append(
            f"{impossible.sum():,} labels, such as {affinities.raw[impossible][0]:g}, are "
            f"impossible as {unit}: mixed units?"
        )
    named = replace(quantity, name=name_affinity(table, options.affinity_type))
    return LabelReading(
        column=column,
        unit=unit,
        why=affinities.why,
        line=affinities.describe(),
        problems=tuple(problems),
        quantity=named,
    )


def _opposite_measurements(table: SequenceTable, pkd: Floats) -> Iterator[tuple[str, Label]]:
    """Yield other columns with a unit in their names that rank the rows the other way round."""
    used = table.columns.values()
    for name in map(str, table.frame.columns):
        header = read_header(name)
        if name in used or header.unit is None or not header.sure:
            continue
        other = to_pkd(read_numbers(table.frame[name]), header.unit)
        measured_twice = np.isfinite(other) & np.isfinite(pkd)
        if 2 * measured_twice.sum() > np.isfinite(pkd).sum():
            own_ranks, other_ranks = (
                pd.Series(values[measured_twice]).rank() for values in (pkd, other)
            )
            if own_ranks.corr(other_ranks) < OPPOSITE:
                yield name, header.unit
