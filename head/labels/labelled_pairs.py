"""Labelled pairs: the label of each row that has one, joined with what a table says of it.

`column` says what each column is, `values` converts labels, and `features` reads the columns beside
the label; here the rows of a pair are joined. A label with a standard deviation s has noise of the
variance s^2, and a model errs beside it, by as much for all labels. How much that is, is not known:
half of the mean variance is taken as equal for all, so that no label counts more than twice as much
as the average because of a small s.

R rows of a table, P pairs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import CONSTANT, Floats, Ints, weights_of
from abag.core.errors import ColumnError, LabelError
from abag.core.messages import LONGEST_QUOTE, counted, quoted, say
from abag.embed.store.store import LOGLIK, EncoderFolder
from abag.embed.tables.chains import Kind
from abag.embed.tables.columns import quote_names, quote_some, simplified
from abag.embed.tables.layout import NOTHING
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import SequenceTable, SkippedRows, describe_rows, read_pairs
from abag.embed.tables.table import (
    TableLike,
    read_names,
    read_numbers,
    read_texts,
    says_no_binding,
)
from abag.head.labels.classes import holds_classes, says_no, says_whether_bound, spelled
from abag.head.labels.column import (
    ColumnMeaning,
    LabelLayout,
    RunLayout,
    decide_label,
)
from abag.head.labels.features import (
    LOGLIKS,
    ColumnBeside,
    FeatureCells,
    FeatureColumns,
    PairFeatures,
    mean_cells,
    names_of,
    read_cells,
    read_logliks,
    read_types,
    units_in_cell,
    words_as_codes,
)
from abag.head.labels.headers import Quantity, outside, to_pkd
from abag.head.labels.options import (
    FLOOR_SHARE,
    BesideRole,
    Floor,
    Label,
    LabelOptions,
    Replicates,
)
from abag.head.labels.values import (
    Affinities,
    LabelTrust,
    check_labels,
    read_affinities,
    read_censored,
    read_trust,
    refuse_cells,
)

OF_MODEL = 0.5
"""Share of the mean variance that all labels have in common."""
CONFLICT_PKD = 1.0
"""Labels of one pair, or assay means of one antigen, that differ by more are a conflict."""
_LIMIT = re.compile("limit|lo[dq]([munpf]?m|[nu]gml)?$|(max|maximum|top|highest)conc")
"""Parts of the names, without signs, of columns of the limits of assays."""
_COMMENT = re.compile("comment|note|remark|status|fit|quality|assess|flag|result|evaluation|call")
"""Parts of the names, without signs, of columns in which a program or a reader comments a row."""
_UNSURE = ("nd", "n.d.", "n.d", "inf")
"""Words for no binding that a comment may say of anything else."""
POSSIBLE_PKD = (0.0, 16.0)
"""Labels outside are certainly in another unit."""
OPPOSITE = -0.5
"""Rank correlation from which a second measurement contradicts the direction of the label."""
LEAST_RANKED = 5
"""Rows from which it does: two are always in the same order or in the opposite one."""
COUNTED_ROWS = ("rows", "other_affinity_type_rows", "skipped_labels")
"""Counts of `LabelledPairs` that `LabelledPairs.rows_text` tells."""
OF_PREDICTIONS = ("prediction", "sigma")
"""Roles of columns that `rank` reads, and nothing that learns from a table."""
SAME_AS_LABEL = 0.999
"""Correlation with the label above which a column may be the label itself."""


def one_label(table: SequenceTable) -> LabelLayout:
    """Return the label of a table, or that which several tables have in common.

    Raises
    ------
    LabelError
        If units or quantities differ, or one table has the label of another beside its own.
    AbagError
        The refusal of the first table that has no label.
    """
    labels: Sequence[LabelLayout] = table.labels
    if table.file_of_row is None:
        return labels[0]
    # a table whose rows were all skipped has no label to compare
    used = np.unique(table.file_of_row).tolist()
    labels = [labels[number] for number in used]
    meanings = [label.checked() for label in labels]
    units = [meaning.unit for meaning in meanings]
    quantities = [meaning.quantity for meaning in meanings]
    if len({*units}) > 1 or len({*quantities}) > 1:
        are_units = len({*units}) > 1
        listed = []
        for label, unit, quantity in zip(labels, units, quantities, strict=True):
            named = quantity.description if quantity.classes else str(quantity)
            listed.append(f"{label.column!r} of {label.source} as {unit if are_units else named}")
        differ = "the labels are different quantities"
        if are_units:
            differ = "the labels are in different units"
        table.refuse(
            f"{differ}: {'; '.join(listed)}; expected one. Convert the columns to one unit, such "
            "as pKd, give those of one quantity one name, or fit the tables apart.",
            LabelError,
        )
    column = table.column("pkd")
    for number, label in zip(used, labels, strict=True):
        if table.files[number].renamed.get(label.column, label.column) != column:
            msg = (
                f"{label.source}: its label is {label.column!r}, that of {labels[0].source} is "
                f"{column!r}, which {label.source} has, too; expected one name. Choose it with "
                "--column pkd=NAME."
            )
            raise LabelError(msg)
    types = [label.options.affinity_type for label in labels if label.options.affinity_type]
    options = replace(labels[0].options, affinity_type=types[0] if types else None)
    unit_columns = dict.fromkeys(chain.from_iterable(label.describing.units for label in labels))
    return replace(
        labels[0],
        meaning=replace(meanings[0], column=column),
        options=options,
        describing=labels[0].describing._replace(units=tuple(unit_columns)),
    )


def columns_beside(table: SequenceTable) -> tuple[ColumnBeside, ...]:
    """Return the columns that the user named beside labels, of a table or of several as one."""
    labels: Sequence[LabelLayout] = table.labels
    verdicts_by_column: dict[tuple[str, str], list[ColumnBeside]] = {}
    for column in chain.from_iterable(label.beside for label in labels):
        verdicts_by_column.setdefault((column.name, column.role), []).append(column)
    of_all = []
    for verdicts in verdicts_by_column.values():
        present = [x for x in verdicts if not x.is_absent and x.name in table.names]
        refused = [x for x in present if x.refused is not None]
        # a column may lack in some of the tables, whose cells are then missing
        absent = [x for x in verdicts if x.is_absent]
        of_all.append([*refused, *present, *absent][0])
    return tuple(of_all)


def _with_logliks(
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
            table.refuse(
                f"no column {column.name!r}, and no likelihood of the "
                f"{' or '.join(asked.values())} in the store; expected one of them. Run abag embed "
                "--loglik into a new store, or leave it out.",
                ColumnError,
            )
        for name, folder in likelihoods.items():
            sequences = table.sequences[LOGLIKS[name]]
            loglik_N = read_logliks(folder, sequences.keys)
            frame = frame.assign(**{name: loglik_N[sequences.of_row]})
            # loglik may be named beside a likelihood of its own
            columns[name, column.role] = replace(column, name=name, head=folder.head)
    return replace(table, frame=frame), tuple(columns.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReading(ColumnMeaning):
    """What was read as the label, and why."""

    line: str = ""
    """The same in one line, and whether a higher label means stronger binding."""
    problems: tuple[str, ...] = ()
    """What contradicts it."""
    no_binding_pkd: float | None = None
    """What cells are read as that say in words that nothing binds; None if they are refused."""
    conflict: float = CONFLICT_PKD
    """Labels of one pair that differ by more contradict each other: by 1 pKd, and by a standard
    deviation of the labels of another quantity."""


class ReadLabel(NamedTuple):
    """The label of each row of a table, and what was read as such."""

    affinities: Affinities
    reading: LabelReading
    options: LabelOptions


def read_label(table: SequenceTable) -> ReadLabel:
    """Convert the label of a table; what it is was decided when the table was read."""
    label = one_label(table)
    affinities = read_affinities(table, label)
    if label.options.affinity_type is not None and table.has("affinity_type"):
        types = read_types(table)
        affinities = affinities.of_rows((types == label.options.affinity_type).to_numpy(np.bool_))
    for column in label.describing.units:
        _refuse_other_unit(table, column, affinities)
    return ReadLabel(affinities, _reading_of(table, affinities), label.options)


def _refuse_other_unit(table: SequenceTable, column: str, affinities: Affinities) -> None:
    """Refuse labels of which a column says that they are in another unit than they are read in."""
    stated = read_texts(table.frame[column])
    is_other = stated != ""
    units = {unit: units_in_cell(affinities.column, unit) for unit in stated[is_other].unique()}
    if not affinities.quantity.affinity and len({*units.values()}) == 1:
        return  # as they are written
    for unit, allowed in units.items():
        if affinities.unit in allowed:
            is_other &= stated != unit
    refuse_cells(
        table,
        is_other.to_numpy(np.bool_) & np.isfinite(affinities.raw),
        column,
        f"is not the unit of labels that are read as {affinities.unit}; expected one unit in all "
        "rows. Convert the labels, or give their unit with --label.",
    )


def _reading_of(table: SequenceTable, affinities: Affinities) -> LabelReading:
    """Say what was read as the label, and what in the table contradicts it."""
    column = affinities.column
    unit = affinities.unit
    problems = [*_labels_at_limits(table, affinities)]
    if affinities.quantity.affinity:
        readable = np.isfinite(affinities.pkd) & ~affinities.no_binding
        impossible = readable & outside(affinities.pkd, POSSIBLE_PKD)
        for other, other_unit in _opposite_measurements(table, affinities.pkd):
            problems.append(
                f"Column {other!r}, read as {other_unit}, ranks the rows the other way round than "
                f"{column!r}, read as {unit}."
            )
        if 0 < 2 * impossible.sum() <= readable.sum():  # more are refused
            number = int(impossible.sum())
            is_one = number == 1
            problems.append(
                f"{counted(number, 'label')}, {'' if is_one else 'such as '}"
                f"{affinities.raw[impossible][0]:g}, {'is' if is_one else 'are'} impossible as "
                f"{unit}: mixed units?"
            )
    return LabelReading(
        column=column,
        unit=unit,
        why=affinities.why,
        line=affinities.describe(),
        problems=tuple(problems),
        quantity=affinities.quantity,
        no_binding_pkd=affinities.floor,
    )


def _labels_at_limits(table: SequenceTable, affinities: Affinities) -> Iterator[str]:
    """Say which columns say of exact labels that they are limits, or that the pair does not bind.

    And which do not say so where a word or an empty cell is read as no binding.

    A column of relations says which labels are bounds.
    """
    if table.has("censored") or affinities.quantity.classes:
        return
    is_exact = np.isfinite(affinities.pkd) & (affinities.side == 0)
    is_affinity = affinities.quantity.affinity
    for name in table.names:
        if name == affinities.column:
            continue
        if _LIMIT.search(simplified(name)):
            at_limit = is_exact & (affinities.raw == read_numbers(table.frame[name]))
            said = "has the number of an exact label"
        elif is_affinity and says_whether_bound(name) and holds_classes(table, name):
            binds_not = says_no(table.frame[name])
            at_limit = is_exact & binds_not
            said = "says no binding beside an exact label"
            says_so = binds_not | (
                (read_texts(table.frame[name]) == "").to_numpy()
                & [_denies_binding(cell) for cell in table.frame[affinities.column].tolist()]
            )
            others = np.flatnonzero(affinities.no_binding & ~says_so)
            if len(others):
                yield (
                    f"Column {name!r} does not say no binding in {counted(len(others), 'row')} "
                    f"read as no binding, such as row {table.row_name(others[0])} with "
                    f"{table.cell_text(others[0], name)}: leave out pairs that were not measured."
                )
        elif is_affinity and _COMMENT.search(simplified(name)):
            at_limit = is_exact & [_denies_binding(cell) for cell in table.frame[name].tolist()]
            said = "says no binding beside an exact label"
        else:
            continue
        rows = np.flatnonzero(at_limit)
        if len(rows):
            raw = f"{affinities.raw[rows[0]]:g}"
            yield (
                f"Column {name!r} {said} in {counted(len(rows), 'row')}, such as row "
                f"{table.row_name(rows[0])} with {raw}: write limits of the assay as bounds, "
                f"such as >{raw} or <{raw}."
            )


def _denies_binding(cell: object) -> bool:
    """Tell whether a comment says that nothing binds."""
    return isinstance(cell, str) and says_no_binding(cell) and spelled(cell) not in _UNSURE


def _opposite_measurements(table: SequenceTable, pkd: Floats) -> Iterator[tuple[str, Label]]:
    """Yield other columns with a unit in their names that rank the rows the other way round."""
    used = table.columns.values()
    is_measured = np.isfinite(pkd)
    others: dict[str, Label] = {}
    for label in table.labels:
        others = {**label.others, **others}
    for name, unit in others.items():
        if name in used or name not in table.frame:
            continue
        other = to_pkd(read_numbers(table.frame[name]), unit)
        measured_twice = is_measured & np.isfinite(other)
        if 2 * measured_twice.sum() > is_measured.sum():
            label_ranks = pd.Series(pkd[measured_twice]).rank()
            other_ranks = pd.Series(other[measured_twice]).rank()
            if label_ranks.corr(other_ranks, min_periods=LEAST_RANKED) < OPPOSITE:
                yield name, unit


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
    usable: pd.DataFrame | None = None
    """Every measurement that is used: ``row`` of the table, ``antibody``, ``antigen``, ``pkd`` and
    ``censored``, before replicates are joined."""
    named: tuple[ColumnBeside, ...] = ()
    """Columns that the user named beside labels and sequences."""
    beside: pd.DataFrame | None = None
    """These, without that of the split, of the R rows of the table: see `beside_name`."""
    round_of_row: Ints | None = None
    """Round of a campaign of each row of the table, (R,); None: all are of the first."""
    cells: FeatureCells | None = None
    """Features and categories of P pairs; None if there are none."""
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
    def class_of_pair(self) -> Floats | None:
        """The class of each pair as its number, (P,); None if labels are measurements."""
        return self.pkd if self.quantity.classes else None

    @property
    def label_sd(self) -> float:
        """Standard deviation of the exact labels in pKd, in which each counts by its weight."""
        exact = np.flatnonzero(self.censored == 0)
        pkd = self.pkd[exact]
        if self.share is None:
            return float(pkd.std())
        weight = weights_of(self.share, exact)
        return float(
            np.sqrt(np.average((pkd - np.average(pkd, weights=weight)) ** 2, weights=weight))
        )

    @property
    def assay(self) -> Ints | None:
        """Number of each pair's assay, (P,), -1 where none is stated; None without a column."""
        column = self.table.columns.get("assay")
        if column is None:
            return None
        names = read_texts(self.table.frame[column].iloc[self.row])
        return pd.factorize(names.where(names != ""), sort=True)[0].astype(np.int64)

    @property
    def rows_text(self) -> str:
        """Say how many rows were read, and if not all are used, where the others are."""
        other_types = self.counts["other_affinity_type_rows"]
        used = self.counts["rows"] - other_types - self.counts["skipped_labels"]
        others = {"of other affinity types": other_types}
        return describe_rows(used, len(self.table.skipped), others)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sequences that the pairs have."""
        return self.table.kinds

    def index(self, kind: Kind) -> Ints:
        """Return the index of each pair's antibody or antigen, shape (P,)."""
        return self.antibody if kind == "antibody" else self.antigen

    def names_of(self, kind: Kind) -> dict[int, str]:
        """Name the sequences of one kind that pairs have, by index, in ascending order.

        The name is what the table calls the sequence in the row in which it occurs first, or else
        that row: its id, or its number.
        """
        order = np.argsort(self.row, kind="stable")  # pairs are in the order of their keys
        used, first = np.unique(self.index(kind)[order], return_index=True)
        roles = (f"{kind}_name", "id")
        columns = [self.table.columns[role] for role in roles if role in self.table.columns]
        cells = [read_names(self.table.frame[column]).tolist() for column in columns]
        names = {}
        for sequence, row in zip(used.tolist(), self.row[order][first].tolist(), strict=True):
            # printable, in one line
            words = (filter(str.isprintable, " ".join(texts[row].split())) for texts in cells)
            stated = ("".join(letters)[:LONGEST_QUOTE] for letters in words)
            names[sequence] = next(filter(None, stated), f"row {self.table.row_name(row)}")
        return names

    def keys(self, kind: Kind) -> NDArray[np.uint8]:
        """Return the key of each pair's antibody or antigen, shape (P, 16)."""
        return self.table.sequences[kind].keys[self.index(kind)]

    def report_problems(self) -> None:
        """Say what is odd about the column of labels, as it was read."""
        for problem in self.reading.problems:
            say(f"{self.table.source}: {problem}")


def read_labelled_pairs(
    table: TableLike,
    reading: TableOptions,
    labels: LabelOptions,
    layout: RunLayout | None = None,
    named: Sequence[tuple[str, BesideRole]] | None = None,
) -> LabelledPairs:
    """Read the pairs of a table and their labels; an error lists bad sequences and bad labels.

    With the `layout` of a run, they are read as the run read its own; `named` has the columns
    beside the label, by default those of the options.
    """
    remembered = NOTHING if layout is None else layout
    of_run = None if layout is None else layout.label
    decide = partial(decide_label, options=labels, remembered=of_run, named=named)
    read = read_pairs(table, reading, remembered=remembered, label=decide, refuse=False)
    return label_pairs(read)


def label_pairs(
    table: SequenceTable,
    *,
    beside: Sequence[ColumnBeside] | None = None,
    label: ReadLabel | None = None,
    folders: Callable[[], Mapping[Kind, EncoderFolder]] | None = None,
) -> LabelledPairs:
    """Join the label of a table with its relations and types of affinity; merge replicates.

    `beside` has the columns of features and errors, by default those of the table; `label` is that
    of the table, if it is read already; `folders` finds the vectors of each kind, whose likelihoods
    may be features. Replicates of different categories are not merged.
    """
    named = columns_beside(table) if beside is None else tuple(beside)
    if folders is not None and any(column.in_store for column in named):
        table, named = _with_logliks(table, named, folders())
    affinities, reading, options = label or read_label(table)
    table = table.sorted_by_key()  # every draw over sequences is then the same for any row order
    quantity = affinities.quantity
    labels = check_labels(table, affinities, options)
    table = replace(table, skipped=SkippedRows([*table.skipped.rows, *labels.bad]))
    for column in named:
        if column.refused is not None:
            raise column.refused
    usable = labels.usable
    censored = read_censored(table, labels.pkd, affinities)
    features = names_of("feature", named)
    categories = names_of("category", named)
    cells = None
    if features or categories:
        cells = read_cells(table.frame, features, categories, table.source, table.row_name)
    trust = read_trust(table, named, affinities, usable, censored == 0)
    of_rows = _beside(len(usable), named, cells, trust)
    columns_R = {
        "row": np.arange(len(usable)),
        "antibody": table.antibodies.of_row,
        "antigen": table.antigens.of_row,
        "pkd": labels.pkd,
        "censored": censored,
    }
    if cells is not None:
        columns_R |= words_as_codes(cells)
    if trust is not None:
        columns_R["share"] = trust.share_R
    if quantity.classes:  # no class is the mean of others: replicates that differ stay apart
        columns_R["category of label"] = labels.pkd
    rows = pd.DataFrame(columns_R)[usable]
    rows, floored = _apply_floor(rows, options.floor, quantity)
    if quantity.classes:
        reading = replace(reading, conflict=0.0)
    elif not quantity.affinity:
        reading = replace(reading, conflict=spread_of(rows.loc[rows["censored"] == 0, "pkd"]))
    noise = None if quantity.classes else _replicate_noise(rows)
    conflicts = int((disagreement(rows) > reading.conflict).sum())
    pairs = _in_order(_merge_replicates(table, rows, options.replicates, quantity))
    columns = _arrays_of(pairs)
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
        merged_into = _pair_of_row(rows if averaged else pairs, pairs, len(usable))
        cells = mean_cells(cells, merged_into, columns["row"])
    return LabelledPairs(
        **columns,
        table=table,
        noise=noise,
        reading=reading,
        counts=counts,
        usable=rows,
        cells=cells,
        features=None,
        named=named,
        beside=of_rows,
        share=_share_of_pairs(pairs, of_errors=bool(names_of("error", named))),
    )


def beside_name(what: str, name: str) -> str:
    """Name a feature, category, error or weight unlike any column of labels and sequences."""
    return f"{what}:{name}"


def _beside(
    rows: int,
    named: Sequence[ColumnBeside],
    cells: FeatureCells | None,
    trust: LabelTrust | None,
) -> pd.DataFrame | None:
    """Join what was read of the columns that are named; None if none is."""
    if cells is None and trust is None:
        return None
    columns: dict[str, NDArray[Any]] = {}
    if cells is not None:
        for name, values_R in zip(names_of("feature", named), cells.numbers_RF.T, strict=True):
            columns[beside_name("feature", name)] = values_R
        for name, words_R in zip(names_of("category", named), cells.words_RG.T, strict=True):
            columns[beside_name("category", name)] = words_R
    if trust is not None:
        (name,) = names_of(trust.what, named)
        columns[beside_name(trust.what, name)] = trust.values_R
    return pd.DataFrame(columns, index=range(rows))  # R rows also without columns


# ---- replicates ----


def _apply_floor(rows: pd.DataFrame, floor: Floor, quantity: Quantity) -> tuple[pd.DataFrame, int]:
    """Drop or censor the rows at the floor, a worst value that several pairs share; count them."""
    if quantity.classes:
        return rows, 0
    exact = rows["censored"] == 0
    strength = quantity.sign * rows["pkd"]
    at_floor = exact & (strength == strength[exact].min())
    count = int(at_floor.sum())
    is_shared = len(rows.loc[at_floor, ["antibody", "antigen"]].drop_duplicates()) > 1
    # if all are there, they are refused as equal labels
    if not is_shared or count <= FLOOR_SHARE * exact.sum() or count == exact.sum():
        return rows, 0
    if floor == "drop":
        rows = rows[~at_floor]
    elif floor == "censor":
        rows = rows.assign(censored=rows["censored"].where(~at_floor, -quantity.sign))
    return rows, count


def _share_of_pairs(pairs: pd.DataFrame, *, of_errors: bool) -> Floats | None:
    """Return the variance of each pair's label relative to its mean, (P,), given those of rows.

    Parameters
    ----------
    pairs : DataFrame
        Has ``measurements``, and ``share`` if there are errors or weights.
    of_errors : bool
        Whether the shares are of errors, beside which a model errs.
    """
    if "share" not in pairs:
        return None
    # the mean of m measurements has an m-th of their variance
    share = (pairs["share"] / pairs["measurements"]).to_numpy(np.float64)
    share = share / (math.fsum(share) / len(share))  # the same whatever the order of the rows
    return np.asarray(OF_MODEL + (1 - OF_MODEL) * share if of_errors else share)


def spread_of(exact: pd.Series[float]) -> float:
    """Return the standard deviation of exact labels; infinite if there are fewer than two."""
    return float(exact.std()) if len(exact) > 1 else np.inf


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
    """Join the rows of each pair into one, and count their different measurements.

    Parameters
    ----------
    table : SequenceTable
        Names rows in errors.
    rows : DataFrame
        R rows with a label.
    how : Replicates
        As ``--replicates``; ``error`` raises `LabelError` if labels of a pair differ.
    quantity : Quantity
        Of the labels.
    """
    if how == "keep":
        return rows.assign(measurements=1)
    if how == "error":
        _refuse_conflicts(table, rows, quantity)
    if quantity.classes:
        rows = rows.assign(share=rows.get("share", 1.0))
        if how == "first":
            rows = rows.drop_duplicates(["antibody", "antigen"])
    # Exact and censored labels of a pair stay separate: a bound cannot be averaged.
    groups = rows.groupby(_of_pair(rows), sort=False, as_index=False)
    averaged = how in ("median", "mean")
    chosen: dict[str, tuple[str, str]] = {}
    if "share" in rows:
        chosen["share"] = ("share", "first")
    merged = groups.agg(
        row=("row", "first"),
        pkd=("pkd", how if averaged else "first"),
        # equal numbers may be one measurement twice; equal classes are counted
        measurements=("pkd", "size" if quantity.classes else "nunique"),
        **chosen,
    )
    if not averaged:
        return merged.assign(measurements=1)
    if "share" not in rows:
        return merged
    return _average_by_weight(rows, groups.ngroup(), merged, how)


def _average_by_weight(
    rows: pd.DataFrame, group: pd.Series[int], merged: pd.DataFrame, how: Replicates
) -> pd.DataFrame:
    """Return P merged pairs with labels and shares to which replicates count by their weights.

    `group` is the pair of each row. A median is where half of the weight is below, between the
    middles of two labels.
    """
    order = np.lexsort((rows["share"], rows["pkd"], group))
    value = rows["pkd"].to_numpy(np.float64)[order]
    weight = 1 / rows["share"].to_numpy(np.float64)[order]
    pair = group.to_numpy(np.int64)[order]
    total = np.bincount(pair, weight)
    size = np.bincount(pair)
    end = np.cumsum(size)
    start = end - size
    if how == "mean":
        label = np.bincount(pair, weight * value) / total
    else:
        middle = pd.Series(weight).groupby(pair).cumsum().to_numpy() - weight / 2
        half = total / 2
        below_half = np.bincount(pair, middle <= half[pair]).astype(np.int64)
        first = np.maximum(start, start + below_half - 1)
        second = np.minimum(first + 1, end - 1)
        step = np.where(second > first, middle[second] - middle[first], 1.0)
        along = np.clip((half - middle[first]) / step, 0.0, 1.0)
        label = value[first] + along * (value[second] - value[first])
    is_alike = np.maximum.reduceat(weight, start) == np.minimum.reduceat(weight, start)
    return merged.assign(
        pkd=merged["pkd"].where(is_alike, label),
        share=merged["share"].where(is_alike, size / total),
    )


def _of_pair(rows: pd.DataFrame) -> list[str]:
    """Return the columns in which the replicates of a pair are equal."""
    categories = [name for name in map(str, rows.columns) if name.startswith("category ")]
    return ["antibody", "antigen", "censored", *categories]


def number_replicates(rows: pd.DataFrame) -> pd.Series[int]:
    """Number the pairs of R rows, (R,): rows of one number are replicates, which may be merged."""
    return rows.groupby(_of_pair(rows), sort=False).ngroup()


def _in_order(pairs: pd.DataFrame) -> pd.DataFrame:
    """Sort pairs, so that the order of the rows does not matter."""
    names = ["antibody", "antigen", "censored", "pkd"]
    names += [name for name in map(str, pairs) if name == "share" or name.startswith("category ")]
    return pairs.sort_values(names, kind="stable")


def _arrays_of(pairs: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns of `LabelledPairs` as arrays of their own, (P,) each."""
    types = {"pkd": np.float64, "censored": np.int8}
    columns = {}
    for name in ("antibody", "antigen", "pkd", "censored", "row", "measurements"):
        # a copy: arrays that pandas shares are read-only
        columns[name] = pairs[name].to_numpy(types.get(name, np.int64), copy=True)
    return columns


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
        if quantity.classes:
            both = sorted({int(level) for level in worst["pkd"]})
            classes = " and ".join(quoted(quantity.classes[level]) for level in both)
            table.refuse(
                f"rows {at} measure the same pair and are {classes}; expected one class. Fix them, "
                "or count both with --replicates median.",
                LabelError,
            )
        table.refuse(
            f"rows {at} measure the same pair and differ by up to {quantity.show(spread.max())} "
            f"{quantity}. Fix them, or use --replicates median.",
            LabelError,
        )


# ---- what was read ----


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
        pairs.table.refuse(
            "all labels of the training part are censored; expected exact labels too. Use another "
            "split or more data.",
            NothingToLearn,
        )
    if np.ptp(labels) > 0:
        return labels
    every = "the only training label is"
    if len(labels) > 1:
        every = f"all {len(labels):,} training labels are"
    shown = f"{pairs.quantity.show(float(labels[0]))} {pairs.quantity}"
    msg = (
        f"{pairs.table.source}: {every} {shown}; expected different values. Check --label, "
        "--column pkd=NAME and the split."
    )
    if classes := [*map(quoted, pairs.quantity.classes)]:
        shown = classes.pop(int(labels[0]))
        msg = (
            f"{pairs.table.source}: {every} {shown}, which is one class; expected "
            f"{' and '.join(classes)} too. Add rows of it, or check --label and --column "
            "label=NAME."
        )
    raise NothingToLearn(msg)


def describe_columns(table: SequenceTable, quantity: Quantity) -> str:
    """List the columns that play a role, those beside labels and sequences, and the others."""
    named = {column.name: column.role for column in columns_beside(table)}
    labels = {role: name for role, name in table.columns.items() if role not in OF_PREDICTIONS}
    used = {role: name for role, name in labels.items() if name not in named}
    words = {"pkd": "pkd" if quantity.affinity else "label"}
    roles = [f"{words.get(role, role)} {name!r}" for role, name in used.items()]
    roles += [f"{word} {name!r}" for name, word in named.items() if name in table.names]
    read = {*used.values(), *named}
    unused = [name for name in table.names if name not in read]
    note = f"; not used: {quote_names(unused)}" if unused else ""
    return f"columns: {', '.join(roles)}{note}"


def with_feature_columns(pairs: LabelledPairs) -> LabelledPairs:
    """Return pairs with the description of their features, once these are checked.

    Raises
    ------
    ColumnError
        If a column is constant, empty, or has a value of its own in each pair.
    """
    cells = pairs.cells
    source = pairs.table.source
    if cells is None:
        return pairs
    features = [column for column in pairs.named if column.role == "feature"]
    for column, values_P in zip(features, cells.numbers_RF.T, strict=True):
        _check_numbers(source, column.name, values_P)
        if not column.in_store:  # new pairs have a likelihood, too
            _say_same_as_label(pairs, column.name, values_P)
    for name, words_P in zip(names_of("category", pairs.named), cells.words_RG.T, strict=True):
        _check_words(source, name, words_P)
    try:
        columns = FeatureColumns.of(cells, pairs.named)
    except ValueError as error:
        msg = f"{source}: {error}. Leave some out, or rename it."
        raise ColumnError(msg) from error
    say(f"{source}: {_describe(columns)}")
    if missing := columns.describe_missing(cells):
        say(f"{source}: features {missing}; a column for each says where")
    return replace(pairs, features=columns)


def _describe(columns: FeatureColumns) -> str:
    parts = []
    if columns.numbers:
        parts.append(f"features {quote_some([column.name for column in columns.numbers])}")
    for category in columns.categories:
        parts.append(f"category {category.name!r} with {counted(len(category.values), 'value')}")
    return f"{'; '.join(parts)}: {counted(columns.width, 'column')} beside the vectors"


def _check_numbers(source: str, name: str, values_P: Floats) -> None:
    finite = values_P[np.isfinite(values_P)]
    if not len(finite):
        problem = "has no number in any labelled row"
    elif np.ptp(finite) <= CONSTANT * np.abs(finite).max():
        problem = f"is {finite[0]:g} in every labelled row"
    else:
        return
    msg = (
        f"{source}: the feature {name!r} {problem}; expected a column whose values differ. Leave "
        "it out."
    )
    raise ColumnError(msg)


def _check_words(source: str, name: str, words_P: NDArray[np.object_]) -> None:
    values = set(words_P.tolist())
    if len(values) == 1:
        problem = f"is {quoted(words_P[0])} in every labelled row"
    elif len(values) == len(words_P) > 2:
        problem = "has another value in every pair"
    else:
        return
    msg = (
        f"{source}: the category {name!r} {problem}; expected values that several pairs share. "
        "Leave it out, or name a column of numbers with --features."
    )
    raise ColumnError(msg)


def _say_same_as_label(pairs: LabelledPairs, name: str, values_P: Floats) -> None:
    rows = np.isfinite(values_P) & (pairs.censored == 0)
    values = values_P[rows]
    labels = pairs.pkd[rows]
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(labels) == 0:
        return
    correlations = [np.corrcoef(values, labels)[0, 1]]
    if (values > 0).all():  # a Kd beside its pKd
        correlations.append(np.corrcoef(np.log(values), labels)[0, 1])
    largest = max(correlations, key=abs)
    if abs(largest) > SAME_AS_LABEL:
        say(
            f"{pairs.table.source}: the feature {name!r} has a correlation of {largest:.4f} with "
            "the label: it may be the label itself, which new pairs lack"
        )


def encoded_features(pairs: LabelledPairs) -> PairFeatures | None:
    """Return the features of the pairs of a fit as models read them; None if it has none."""
    if pairs.cells is None or pairs.features is None:
        return None
    return pairs.features.encode(pairs.cells)
