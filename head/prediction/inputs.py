"""The sequences of a table to predict, and those that have to be encoded first.

The table is read in chunks. What is kept of it is two numbers per row, the distinct keys, and the
chains of the sequences that the store lacks, or of all antibodies if a model reads residues.
P rows, N sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

import abag
from abag import AbagError
from abag.core.arrays import KEY_BYTES, distinct_keys
from abag.core.files import why_not_writable
from abag.core.messages import bar, counted, say
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.changes import SkippedRows, describe_counts
from abag.embed.sequences.columns import SEQUENCE_ROLES
from abag.embed.sequences.pairs import read_pair_chunks
from abag.embed.sequences.table_writer import check_writable
from abag.embed.store.store import open_store
from abag.head.prediction.predictor import SCORE_COLUMNS, encode_new, existing_store
from abag.head.regimes.recognise import KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tqdm import tqdm

    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.options import AntibodyRegion
    from abag.embed.sequences.pairs import SequenceTable, UniqueSequences
    from abag.embed.sequences.tables import TableLike
    from abag.embed.store.store import Store
    from abag.head.prediction.options import PredictOptions, ScoringOptions
    from abag.head.prediction.predictor import Predictor
    from abag.head.regimes.recognise import Recogniser

SAME_PREDICTION_PKD = 1e-3
"""Predictions of one pair that differ by no more are one: products of matrices round each row of a
table in their own way."""


class CannotPredict(AbagError):
    """The scores cannot be written, or the table and the options contradict each other."""


class SequenceCounts(TypedDict):
    """Numbers of distinct antibodies, or antigens, of a prediction."""

    unique: int
    reused: int
    encoded: int
    new: int
    """Without a near-duplicate in training, or with new mutations."""


class PairScores(TypedDict):
    """What a prediction read and wrote."""

    rows: int
    skipped_rows: int
    regimes: dict[str, int]
    """Rows by regime."""
    far_rows: int
    """Rows that no measured regime covers."""
    why_far: dict[str, int]
    """These rows by reason."""
    antibodies: SequenceCounts
    antigens: SequenceCounts


@dataclass(frozen=True, slots=True)
class Scorer:
    """What scores pairs: a predictor, and the store of its vectors."""

    predictor: Predictor
    store_path: Path
    embed_options: Mapping[str, Any]
    """For encoding the sequences that the store lacks."""


def loaded(run: Path | str | Predictor) -> Predictor:
    """Load the predictor of a run, unless it is loaded."""
    return abag.load_predictor(run) if isinstance(run, Path | str) else run


@dataclass(slots=True)
class CollectedSequences:
    """The distinct sequences of one kind, collected from the chunks of a table."""

    kind: Kind
    seen: Recogniser | None = None
    unique: int = 0
    """Distinct sequences, once all are collected."""
    new: dict[bytes, Chains] = field(default_factory=dict)
    """Those that the store lacks, by key."""
    example: Chains = ()
    """One of the sequences."""
    state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    """What is new about the distinct sequences, in the order of their keys, once all are
    collected."""
    chains: list[Chains] | None = None
    """The distinct sequences in the same order, if it was a list at first."""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    """The distinct keys, numbered as they came."""
    _states: list[NDArray[np.int8]] = field(default_factory=list)
    _of_row: list[NDArray[np.int32]] = field(default_factory=list)

    def add(self, part: UniqueSequences, missing: NDArray[np.bool_]) -> None:
        """Add the N sequences of some rows; `missing` (N,) marks those that the store lacks."""
        keys = [key.tobytes() for key in part.keys]
        first = [i for i, key in enumerate(keys) if key not in self._numbers]
        if first:  # this takes 0.3 ms per antibody, and every chunk may hold all of them
            chains = [part.chains[i] for i in first]
            if self.seen is not None:
                self._states.append(self.seen.states(self.kind, chains))
            self._numbers.update((keys[i], n) for n, i in enumerate(first, len(self._numbers)))
            self.new.update((keys[i], part.chains[i]) for i in first if missing[i])
            self.example = self.example or chains[0]
            if self.chains is not None:
                self.chains += chains
        number = np.array([self._numbers[key] for key in keys], np.int32)
        self._of_row.append(number[part.of_row])

    def finish(self) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Return the distinct keys, (N, 16), and the index of each row among them, (P,)."""
        as_they_came = np.frombuffer(b"".join(self._numbers), np.uint8).reshape(-1, KEY_BYTES)
        keys, index = distinct_keys(as_they_came)
        order = np.argsort(index)
        if self._states:
            self.state = np.concatenate(self._states)[order]
        if self.chains is not None:
            self.chains = [self.chains[i] for i in order.tolist()]
        self.unique = len(keys)
        self._numbers.clear()
        of_row = np.concatenate(self._of_row)
        self._of_row.clear()
        return keys, index[of_row]

    def counts(self) -> SequenceCounts:
        """Count the sequences, and those that are new to the predictor."""
        n, encoded = self.unique, len(self.new)
        new = int((self.state != KNOWN).sum())
        return {"unique": n, "reused": n - encoded, "encoded": encoded, "new": new}


@dataclass(slots=True)
class CollectedPairs:
    """What the first pass over a table of pairs found."""

    antibodies: CollectedSequences
    antigens: CollectedSequences
    rows: int = 0
    """Rows to score."""
    kept: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    """Which rows of a chunk were kept, by the number of rows before it, if any was skipped."""
    skipped: SkippedRows = field(default_factory=SkippedRows)
    columns: list[str] = field(default_factory=list)
    """The columns of the sequences."""
    digests: list[bytes] = field(default_factory=list)
    """Of the rows to score of each chunk; see `digest_rows`."""

    def add(self, chunk: SequenceTable, missing: Callable[[UniqueSequences], Any]) -> None:
        """Add a chunk of the table; `missing` tells which sequences the store lacks."""
        self.antibodies.add(chunk.antibodies, missing(chunk.antibodies))
        self.antigens.add(chunk.antigens, missing(chunk.antigens))
        if len(chunk.skipped):
            before = self.rows + len(self.skipped)
            kept = np.zeros(len(chunk.frame) + len(chunk.skipped), np.bool_)
            kept[chunk.row_numbers - 1 - before] = True
            self.kept[before] = kept
        self.rows += len(chunk.frame)
        self.skipped.update(chunk.skipped)
        self.columns = [chunk.columns[role] for role in SEQUENCE_ROLES if role in chunk.columns]
        self.digests.append(digest_rows(chunk.frame, self.columns))


class RegimeCounts:
    """Counts of written rows by regime, and of far ones by reason."""

    def __init__(self) -> None:
        self._regimes: Counter[str] = Counter()
        self._why_far: Counter[str] = Counter()

    def add(self, scores: pd.DataFrame) -> None:
        """Add rows with `SCORE_COLUMNS`."""
        self._regimes.update(scores["regime"])
        self._why_far.update(scores["why_far"][scores["far"]])

    def summary(
        self, rows: int, skipped: int, antibodies: CollectedSequences, antigens: CollectedSequences
    ) -> PairScores:
        """Return the counts with those of all rows and of the sequences."""
        return {
            "rows": rows,
            "skipped_rows": skipped,
            "regimes": dict(self._regimes),
            "far_rows": self._why_far.total(),
            "why_far": dict(self._why_far),
            "antibodies": antibodies.counts(),
            "antigens": antigens.counts(),
        }


def digest_rows(frame: pd.DataFrame, columns: Sequence[str]) -> bytes:
    """Hash the cells of some columns in the order of the rows, or return nothing if one is gone."""
    running = blake2b(digest_size=16)
    for name in columns:
        if name not in frame:
            return b""
        running.update(pd.util.hash_pandas_object(frame[name], index=False).to_numpy().data)
    return running.digest()


def collect_pairs(scorer: Scorer, table: TableLike, options: PredictOptions) -> CollectedPairs:
    """Check every row of a table and collect its sequences.

    Raises
    ------
    AbagError
        At the first bad row, unless bad rows are skipped; if no row is left.
    CannotPredict
        If the table has a column that the scores would overwrite.
    """
    predictor = scorer.predictor
    antibodies, antigens = (CollectedSequences(kind, predictor.seen) for kind in KINDS)
    if predictor.reads_residues:
        antibodies.chains, antigens.chains = [], []
    found = CollectedPairs(antibodies, antigens)
    store = existing_store(scorer.store_path)
    counts: Counter[str] = Counter()
    with row_bar("reading") as shown:
        for chunk in read_pair_chunks(table, options, as_written=True):
            refuse_score_columns(chunk.names, chunk.source, score_columns(options.strong))
            found.add(chunk, lambda u: scorer.predictor.missing(store, u.kind, u.keys))
            counts.update(chunk.counts)
            shown.update(found.rows + len(found.skipped) - shown.n)
    for note in describe_counts(counts, found.skipped):
        say(f"{chunk.source}: {note}")
    return found


def row_bar(what: str, total: int | None = None) -> tqdm[Any]:
    """Show the progress over rows or pairs."""
    return bar(total=total, desc=what, unit=" rows", unit_scale=True, delay=1)


def score_columns(strong: float | None) -> tuple[str, ...]:
    """Return the names of the columns to add."""
    return SCORE_COLUMNS if strong is None else (*SCORE_COLUMNS, "p_strong")


def with_p_strong(scores: pd.DataFrame, strong: float | None) -> pd.DataFrame:
    """Add the probability that the pKd of a pair is at least `strong`, if that is given.

    The error of a prediction is taken as normal with the sigma of its regime.
    """
    if strong is None:
        return scores
    z = (scores["pkd_predicted"] - strong) / scores["sigma"]
    return scores.assign(p_strong=ndtr(z))


def refuse_score_columns(
    names: Iterable[object], source: str, added: Sequence[str] = SCORE_COLUMNS
) -> None:
    """Raise `CannotPredict` if a table has a column that the columns to add would overwrite."""
    taken = [name for name in names if name in added]
    if taken:
        msg = (
            f"{source}: already has a column {taken[0]!r}; expected none of "
            f"{', '.join(added)}. Rename or remove it."
        )
        raise CannotPredict(msg)


def encode_missing(
    scorer: Scorer, antibodies: CollectedSequences, antigens: CollectedSequences
) -> Store:
    """Encode what the store lacks, if the predictor can, and open the store."""
    for collected in (antibodies, antigens):
        new = len(collected.new)
        unique = counted(collected.unique, f"unique {collected.kind}")
        say(f"{unique}: {collected.unique - new:,} stored, {new:,} new")
    if scorer.predictor.embed is not None and (antibodies.new or antigens.new):
        new_sequences = [*antibodies.new.values()], [*antigens.new.values()]
        examples = antibodies.example, antigens.example
        encode_new(
            scorer.predictor, scorer.store_path, *new_sequences, examples, **scorer.embed_options
        )
    return open_store(scorer.store_path)


def region_of_run(options: ScoringOptions, predictor: Predictor) -> AntibodyRegion:
    """Return the region of the run, which must not be contradicted."""
    if options.antibody_region not in (None, predictor.antibody_region):
        msg = (
            f"antibody_region={options.antibody_region!r}: the run used "
            f"{predictor.antibody_region!r}; expected the same. Leave it out."
        )
        raise CannotPredict(msg)
    return predictor.antibody_region


def check_table_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a table that cannot be written before anything is read."""
    check_writable(out)
    check_out(out, sources, force=force)


def check_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a file that exists, has no folder, or is one of the files that are read."""
    if why := why_not_writable(out, sources, force=force):
        raise CannotPredict(why)


def say_random_weights(predictor: Predictor) -> None:
    """Say if scores cannot mean anything because the encoders are random."""
    for spec in (predictor.antibody, predictor.antigen):
        if spec.random_weights:
            say(f"{spec.name} has random weights: these scores have no biological meaning")
