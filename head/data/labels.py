"""Labelled pairs: the label of each row that has one, joined with what a table says of it.

`label_reading` finds the label and its unit, `relations` the bounds, `replicates` joins the rows of
a pair, and `features` and `label_errors` read the columns beside the label.

R rows of a table, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints
from abag.core.errors import LabelError
from abag.core.messages import counted, quoted, say
from abag.embed.sequences.chains import NO_ANTIGEN
from abag.embed.sequences.changes import BadCell, SkippedRows, describe_rows
from abag.embed.sequences.columns import quote_names
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.affinities import BOUND_OF_A_NON_BINDER, read_affinities
from abag.head.data.cells import read_texts, says_class, says_no_binding
from abag.head.data.features import (
    FeatureCells,
    FeatureColumns,
    mean_cells,
    read_cells,
    words_as_codes,
)
from abag.head.data.joined_labels import with_one_label
from abag.head.data.label_errors import LabelTrust, read_trust, share_of_pairs
from abag.head.data.label_options import Floor, Label, LabelOptions, PairColumnOptions
from abag.head.data.label_reading import LabelReading, reading_of, with_label
from abag.head.data.label_unit import Remembered
from abag.head.data.quantity import PKD, Quantity
from abag.head.data.relations import read_censored
from abag.head.data.replicates import (
    disagreement,
    merge_replicates,
    pair_of_row,
    replicate_noise,
    spread_of,
)
from abag.head.data.units import POSITIVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.sequences.table_options import TableOptions
    from abag.embed.sequences.tables import TableLike
    from abag.head.data.affinities import Affinities

COUNTED_ROWS = ("rows", "other_affinity_type_rows", "skipped_labels")
"""Counts of `LabelledPairs` that `LabelledPairs.rows_text` tells."""
FLOOR_SHARE = 0.05
"""A lowest value that more than this share of the rows have is a floor."""
LISTED_TYPES = 8


class NothingToLearn(LabelError):
    """The training pairs have no exact label, or all labels are the same."""


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

    @property
    def assay(self) -> Ints | None:
        """Number of each pair's assay, (P,), -1 where none is stated; None without a column."""
        column = self.table.columns.get("assay")
        if column is None:
            return None
        names = read_texts(self.table.frame[column].iloc[self.row])
        return pd.factorize(names.where(names != ""), sort=True)[0].astype(np.int64)

    @property
    def used_rows(self) -> int:
        """How many rows have sequences and a label that are used."""
        other_types = self.counts["other_affinity_type_rows"]
        return self.counts["rows"] - other_types - self.counts["skipped_labels"]

    @property
    def rows_text(self) -> str:
        """Say how many rows were read, and if not all are used, where the others are."""
        others = {"of other affinity types": self.counts["other_affinity_type_rows"]}
        return describe_rows(self.used_rows, len(self.table.skipped), others)

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
    # skipped here, so that one error lists bad sequences and bad labels together
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
    reading = reading_of(table, affinities, options)
    table = table.sorted_by_key()  # every draw over sequences is then the same for any row order
    quantity = affinities.quantity
    labels = _check_labels(table, affinities, options)
    _refuse_rows(table, labels, options, refuse_sequences=refuse_sequences)
    table = replace(table, skipped=SkippedRows([*table.skipped.rows, *labels.bad]))
    usable = labels.usable
    censored = read_censored(table, labels.pkd, affinities)
    cells = _cells_of(table, named)
    trust = read_trust(table, named, affinities, usable, censored == 0)
    beside = _beside(len(usable), named, cells, trust)
    rows = _usable_rows(table, labels, censored, cells, trust)
    rows, floored = _apply_floor(rows, options.floor, quantity)
    if not quantity.affinity:
        reading = replace(reading, conflict=spread_of(rows.loc[rows["censored"] == 0, "pkd"]))
    noise = replicate_noise(rows)
    conflicts = int((disagreement(rows) > reading.conflict).sum())
    pairs = merge_replicates(table, rows, options.replicates, quantity)
    # the order of the rows does not matter
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
        merged_into = pair_of_row(rows if averaged else pairs, pairs, len(usable))
        cells = mean_cells(cells, merged_into, columns["row"])
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
        for name, codes_R in words_as_codes(cells).items():
            rows = rows.assign(**{name: codes_R[usable]})
    if trust is not None:
        rows = rows.assign(share=trust.share_R[usable])
    return rows


def _columns_of(pairs: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns of `LabelledPairs` as arrays of their own, (P,) each."""
    types = {"pkd": np.float64, "censored": np.int8}
    columns = {}
    for name in ("antibody", "antigen", "pkd", "censored", "row", "measurements"):
        # a copy: arrays that pandas shares are read-only
        columns[name] = pairs[name].to_numpy(types.get(name, np.int64), copy=True)
    return columns


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
    return pd.DataFrame(columns, index=range(rows))  # R rows also without columns


def _of_type(table: SequenceTable, affinity_type: str | None) -> Bools:
    """Return which rows have the requested affinity type; types are never mixed."""
    if affinity_type is None and not table.has("affinity_type"):
        return np.ones(len(table.frame), np.bool_)
    column = table.column("affinity_type")
    types = read_texts(table.frame[column])
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
        msg = (
            f"{table.source}: column {column} has {problem} among the labelled rows: "
            f"{listed}; expected one type. Choose it with --affinity-type NAME."
        )
        raise LabelError(msg)
    return (types == affinity_type).to_numpy(np.bool_)


def _refuse_words_for_classes(table: SequenceTable, wanted: Bools, quantity: Quantity) -> None:
    """Refuse a column without numbers whose cells are words for classes."""
    column = table.column("pkd")
    cells = [cell for cell in table.frame.loc[wanted, column].dropna().tolist() if cell != ""]
    if not cells or not all(map(says_class, cells)):
        return
    # affinities that are all words for no binding lack a bound, which the rows are told
    are_texts = all(isinstance(cell, str) for cell in cells)
    are_classes = are_texts and not all(map(says_no_binding, cells))
    if are_classes or not quantity.affinity:
        words = ", ".join(dict.fromkeys(map(quoted, cells[:LISTED_TYPES])))
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
    value = table.frame[column].iloc[at]
    if np.isfinite(pkd):
        noun = "pKd" if quantity.affinity else "value"
        expected = f"a {noun} from {valid[0]:g} to {valid[1]:g}"
    else:
        kind_of_number = "positive" if unit in POSITIVE else "finite"
        expected = f"a {kind_of_number} number such as 1234.5"
    advice = "Fix it."
    if says_no_binding(value) and not quantity.affinity:
        advice = (
            "Write a bound, such as <5, or give it with --no-binding VALUE; leave out what was not "
            "measured with --bad-rows skip."
        )
    elif says_no_binding(value):
        bound = BOUND_OF_A_NON_BINDER[unit]
        advice = (
            f"Write a non-binder as a bound, such as {bound} ({unit}), or let abag fit read it so "
            f"with --no-binding {bound[1:]}; skipped, it is lost."
        )
    error = (
        f"column {column!r}: {table.cell_text(at, column)} is not a valid label; expected "
        f"{expected}. {advice}"
    )
    return BadCell("label", "invalid label", str(value), error, LabelError)


def _apply_floor(rows: pd.DataFrame, floor: Floor, quantity: Quantity) -> tuple[pd.DataFrame, int]:
    """Drop or censor the rows at the floor, the worst value, if there is one, and count them."""
    exact = rows["censored"] == 0
    strength = quantity.sign * rows["pkd"]
    at_floor = exact & (strength == strength[exact].min())
    count = int(at_floor.sum())
    # if all are there, they are refused as equal labels
    if count <= FLOOR_SHARE * exact.sum() or count == exact.sum():
        return rows, 0
    if floor == "drop":
        rows = rows[~at_floor]
    elif floor == "censor":
        rows = rows.assign(censored=rows["censored"].where(~at_floor, -quantity.sign))
    return rows, count


def report_counts(pairs: LabelledPairs) -> None:
    """Say what was read of the table and of its labels, and what was left out."""
    pairs.table.report_notes()
    counts = [pairs.rows_text]
    for name, n in pairs.counts.items():
        if n and name not in COUNTED_ROWS:
            noun = name.replace("_", " ").removesuffix("s")
            counts.append(counted(n, noun))
    say(pairs.reading.line)
    say(f"{pairs.table.source}: {counted(len(pairs), 'pair')} ({', '.join(counts)})")


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
        shown = f"{pairs.quantity.show(float(labels[0]))} {pairs.quantity}"
        msg = (
            f"{pairs.table.source}: all {len(labels)} training labels are {shown}; "
            "expected different values. Check --label, --column pkd=NAME and the split."
        )
        raise NothingToLearn(msg)
    return labels


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
    read = {*used.values(), *named}
    unused = [name for name in map(str, table.names) if name not in read]
    note = f"; not used: {quote_names(unused)}" if unused else ""
    return f"columns: {', '.join(roles)}{note}"
