"""The pairs that `predict` scores: those of a table, or all of the antibodies and antigens of two.

A table of pairs is read twice, in chunks: first to check every row and to collect the sequences,
then to write the rows beside their scores. In between are kept the distinct sequences, and two
indices and the scores of each pair. Antibodies of a table that is crossed come in its order, each
with all antigens in the order of theirs, and scores are written as they come. Vectors are read in
blocks.
P pairs, N antibodies, M antigens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core import messages
from abag.core.arrays import sort_keys
from abag.core.errors import PredictionError
from abag.embed.sequences.column_types import ColumnTypes, with_types
from abag.embed.sequences.joined import holds_texts, one_table, read_chunks
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.references import MUTATIONS
from abag.embed.sequences.tables import TableLike
from abag.head.data.headers import read_header
from abag.head.prediction.predict_options import PredictOptions
from abag.head.prediction.predictor import Scorer
from abag.head.prediction.reading import NOTHING, ReadAs, as_in_the_run
from abag.head.prediction.sequences import Sequences
from abag.head.prediction.tables import (
    PairReader,
    refuse_score_columns,
    row_bar,
)

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable, UniqueSequences
    from abag.head.data.features import FeatureColumns, ReadFeatures

PAIRS = 1 << 16
"""Most pairs scored at a time: up to 400 MB of vectors at the real widths."""
ANTIBODIES = 1 << 14
"""Most antibodies scored at a time."""
PAIR_ROLES = frozenset({"pkd", "label", "prediction", "sigma", "censored", "affinity_type"})
"""Roles of columns that describe one pair, and would be wrong beside another."""
KIND_ROLES: dict[Kind, frozenset[str]] = {
    "antibody": frozenset({"heavy", "light", "antibody"}),
    "antigen": frozenset({"antigen"}),
}
NAME_ROLES: dict[Kind, frozenset[str]] = {
    "antibody": frozenset({"id", "antibody_name", "mutations"}),
    "antigen": frozenset({"id", "antigen_name", "antigen_mutations"}),
}
"""Roles of columns that name a sequence by the first row that has it."""


class PairTable:
    """The pairs of a table, in the order of its rows."""

    def __init__(
        self,
        table: TableLike,
        options: PredictOptions,
        added: tuple[str, ...],
        columns: FeatureColumns | None,
        *,
        typed: bool = False,
    ) -> None:
        """Take the options; `typed`: columns of a text table that are numbers are yielded so."""
        self._table = table
        self._types: ColumnTypes | None = None
        if typed and holds_texts(table, matrix=options.matrix):
            self._types = _types_in_run(columns)
        self._columns = columns
        self._features: ReadFeatures | None = None
        self._options = options
        self._added = added
        self.rows = self.skipped = 0
        self.name = ""
        """Of the table, for messages, once it is read."""
        self._sequences: list[Sequences] = []
        self._row = np.zeros(0, np.int64)
        """Rows of the table to score, from 0, (P,)."""

    def read(self) -> list[Sequences]:
        """Read and check all rows; return the antibodies and the antigens."""
        reader = PairReader(self._table, self._options, self._added, self._columns)
        positions = []
        for chunk in reader:
            positions.append(chunk.positions)
            if self._types is not None:
                self._types.add(chunk.frame, chunk.columns)
        self._row = np.concatenate(positions)
        # all that follows is known once the last chunk has been read
        self._sequences = reader.sequences
        self.name = reader.source
        self.skipped = reader.skipped
        self._features = reader.features
        self.rows = len(self._row)
        return self._sequences

    def count_regimes(self, scorer: Scorer) -> tuple[Counter[str], Counter[str]]:
        """Count pairs by regime, and by why they are far."""
        index = [sequences.of_row for sequences in self._sequences]
        if self._features is None:
            return scorer.count_regimes(scorer.count_classes(*index))
        self._features = scorer.completed(self._features, *index)
        return _count(scorer, self._features, *index)

    def score(self, scorer: Scorer) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Yield rows of the table and their scores, chunk by chunk, in the order of the table."""
        antibody, antigen = (sequences.of_row for sequences in self._sequences)
        order = by_antibody(self._sequences[0], pairs=PAIRS, most=ANTIBODIES)
        parts = []
        with row_bar("scoring", self.rows) as shown:
            for rows in order:
                features = None if self._features is None else self._features.take(rows)
                scores, _ = scorer.score(antibody[rows], antigen[rows], features=features)
                parts.append(scores)
                shown.update(len(rows))
        # from the order of antibodies to that of the rows
        scores = pd.concat(parts, ignore_index=True).set_axis(np.concatenate(order)).sort_index()
        with row_bar("writing", self.rows) as shown:
            chunks = read_chunks(self._table, self._options, as_written=True)
            for chunk in chunks:
                first = chunk.frame.index[:1].to_numpy()
                frame = chunk.frame
                # rows that were skipped are in the chunk, and not among those to score
                start, end = np.searchsorted(self._row, [*first, *(first + len(frame))])
                kept = frame.loc[self._row[start:end]]
                yield kept if self._types is None else self._types.apply(kept), scores[start:end]
                shown.update(end - start)


def _types_in_run(columns: FeatureColumns | None) -> ColumnTypes:
    """Return types of columns, of which those of the run's features and categories are known."""
    if columns is None:
        return ColumnTypes()
    text = [category.name for category in columns.categories]
    return ColumnTypes(text=text, numbers=[number.name for number in columns.numbers])


def _count(
    scorer: Scorer, features: ReadFeatures | None, *index: NDArray[np.integer]
) -> tuple[Counter[str], Counter[str]]:
    """Count pairs, given by indices, by regime and by why they or their features are far."""
    why_far = None if features is None else features.why_far
    regimes = scorer.find_regimes(*index).beside(why_far)
    return Counter(regimes.name.tolist()), Counter(filter(None, regimes.why_far.tolist()))


def by_antibody(antibodies: Sequences, *, pairs: int, most: int) -> list[NDArray[np.int64]]:
    """Divide rows into blocks of at most `pairs` rows, with at most `most` antibodies each."""
    # in the order of keys, in which shards hold them: a block reads few places of a shard
    place = np.empty(len(antibodies.keys), np.int64)
    place[sort_keys(antibodies.keys)[0]] = np.arange(len(place))
    place_of_row = place[antibodies.of_row]
    rows = np.argsort(place_of_row, kind="stable")
    ends = np.searchsorted(place_of_row[rows], np.arange(most, len(place), most))
    blocks = []
    for part in np.split(rows, ends):
        blocks += [part[start : start + pairs] for start in range(0, len(part), pairs)]
    return blocks


# ---- all pairs of two tables ---------------------------------------------------------------------


class CrossedTables:
    """All pairs of an antibody of one table and an antigen of another."""

    def __init__(
        self,
        antibodies: TableLike,
        antigens: TableLike,
        options: PredictOptions,
        added: tuple[str, ...],
        reading: ReadAs = NOTHING,
        *,
        typed: bool = False,
    ) -> None:
        """Take two tables; `typed` is that of `PairTable`."""
        if options.antigen is not None:
            msg = "--antigen and --cross: each defines the antigens. Remove one of them."
            raise PredictionError(msg)
        antibodies = one_table(antibodies)
        antigens = one_table(antigens)
        self._tables = (antibodies, antigens)
        self._options = options
        self._added = added
        self._typed = typed
        self._reading = replace(reading, antigen="")  # the antigens are those of their table
        self._same = antibodies is antigens
        if not (isinstance(antibodies, pd.DataFrame) or isinstance(antigens, pd.DataFrame)):
            # one file may be given by two paths
            self._same = Path(antibodies).samefile(antigens)
        self._columns: list[pd.DataFrame] = []
        self.rows = self.skipped = 0
        self.name = ""
        """Of the table of antibodies, for messages, once it is read."""

    def read(self) -> list[UniqueSequences]:
        """Read and check both tables; return the antibodies and the antigens."""
        antibodies = self._read_kind(self._tables[0], "antibody")
        antigens = self._read_kind(self._tables[1], "antigen")
        self.name = antibodies.source
        self._columns = self._select_columns(antibodies, antigens)
        for table, columns in zip((antibodies, antigens), self._columns, strict=True):
            refuse_score_columns(columns, table.source, self._added)
        self.skipped = len(antibodies.skipped) + len(antigens.skipped)
        self.rows = len(antibodies.antibodies.chains) * len(antigens.antigens.chains)
        return [antibodies.antibodies, antigens.antigens]

    def _read_kind(self, table: TableLike, kind: Kind) -> SequenceTable:
        named_columns = self._options.columns.items()
        roles = KIND_ROLES[kind] | {MUTATIONS[kind]}
        columns = {role: name for role, name in named_columns if role in roles}
        columns_of_kind = tuple(column for column in self._reading.columns if column.role in roles)
        options = replace(self._options, columns=columns)
        reading = replace(self._reading, columns=columns_of_kind)
        options = as_in_the_run(table, options, reading, kinds=(kind,))
        read = read_pairs(table, options, kinds=(kind,), as_written=True)
        read.report_notes()
        if self._typed and holds_texts(table):
            return replace(read, frame=with_types(read.frame, read.columns))
        return read

    def _select_columns(
        self, antibodies: SequenceTable, antigens: SequenceTable
    ) -> list[pd.DataFrame]:
        left = _columns_of(antibodies, "antibody")
        right = _columns_of(antigens, "antigen")
        ids = {antibodies.columns.get("id"), antigens.columns.get("id")}
        if self._same:  # a column of both, such as a constant one, is written once
            right = right.drop(columns=[name for name in right if name in left and name not in ids])
        shown = {*left, *right} if self._same else {*left}
        dropped = [name for name in antibodies.frame if name not in shown]
        if not self._same:
            dropped += [name for name in antigens.frame if name not in right]
        if dropped:
            messages.say(
                "columns left out, because they describe a pair or differ between rows of the same "
                f"sequence: {', '.join(map(str, dropped))}"
            )
        on_both_sides = left.columns.intersection(right.columns)
        return [
            left.rename(columns={name: f"{name}_antibody" for name in on_both_sides}),
            right.rename(columns={name: f"{name}_antigen" for name in on_both_sides}),
        ]

    def count_regimes(self, scorer: Scorer) -> tuple[Counter[str], Counter[str]]:
        """Count pairs by regime, and by why they are far."""
        if not scorer.reads_features:
            return scorer.count_regimes(scorer.count_all_classes())
        regimes = Counter[str]()
        why_far = Counter[str]()
        for i, j in self._blocks():
            counted_block = _count(scorer, scorer.completed(None, i, j), i, j)
            regimes.update(counted_block[0])
            why_far.update(counted_block[1])
        return regimes, why_far

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the antibody and the antigen of each pair, block after block."""
        left, right = self._columns
        step = min(ANTIBODIES, max(1, PAIRS // len(right)))
        for first in range(0, len(left), step):
            some = np.arange(first, min(first + step, len(left)))
            yield np.repeat(some, len(right)), np.tile(np.arange(len(right)), len(some))

    def score(self, scorer: Scorer) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Yield the columns of pairs and their scores, block by block."""
        left, right = self._columns
        with row_bar("scoring", self.rows) as shown:
            for i, j in self._blocks():
                antibodies = left.iloc[i].reset_index(drop=True)
                antigens = right.iloc[j].reset_index(drop=True)
                columns = pd.concat([antibodies, antigens], axis=1)
                yield columns, scorer.score(i, j)[0]
                shown.update(len(i))


def _columns_of(table: SequenceTable, kind: Kind) -> pd.DataFrame:
    foreign = PAIR_ROLES | KIND_ROLES["antigen" if kind == "antibody" else "antibody"]
    excluded = {name for role, name in table.columns.items() if role in foreign}
    for name in map(str, table.frame.columns):
        header = read_header(name)
        if (header.affinity and not header.unit_alone) or header.plain:
            excluded.add(name)
    always = {table.columns.get(role) for role in KIND_ROLES[kind] | NAME_ROLES[kind]}
    of_row = table.sequences[kind].of_row
    _, first = np.unique(of_row, return_index=True)
    selected = []
    for name in table.frame.columns:
        value = pd.factorize(table.frame[name], use_na_sentinel=False)[0]
        constant = (value == value[first[of_row]]).all()
        if name in always or (name not in excluded and constant):
            selected.append(name)
    return table.frame[selected].iloc[first].reset_index(drop=True)
