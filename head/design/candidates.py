"""The predicted pairs of a table: who they are, what was predicted, and which can be ordered.

The table is read in chunks, and twice: first keys and numbers of all rows, later the columns of
the few rows that a batch is chosen from. Pairs that are measured already are found by their
sequences, not by text. R rows, N antibodies, M antigens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Bools, Floats, Ints, KeyIndex
from abag.core.messages import say
from abag.embed.sequences.changes import SkippedRows, describe_counts
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_pair_chunks, read_pairs
from abag.embed.sequences.tables import TableLike, read_table_chunks
from abag.head.data.label_units import USUAL_PKD, outside, read_numbers
from abag.head.data.labels import label_pairs
from abag.head.prediction.inputs import (
    SAME_PREDICTION_PKD,
    CollectedSequences,
    refuse_score_columns,
    row_bar,
)

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.design.options import RankOptions

FAR_COLUMNS = ("far",)
ADDED_COLUMNS = ("rank", "score", "expected_best", "probability_above")
UNNAMED_ANTIGEN = "X"
"""Stands for the antigen of a table that names none."""
_BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


class BadPredictions(AbagError):
    """A prediction, its sigma or a flag is invalid, or a pair has two different predictions."""


class CannotRank(AbagError):
    """A batch cannot be chosen from the predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The valid rows of a table of predictions."""

    source: str
    """Name of the table, for messages."""
    row: Ints
    """0-based row of the table, (R,)."""
    mean: Floats
    """Predicted pKd, (R,)."""
    sigma: Floats | None
    """Standard error in pKd, (R,); None if the table has none."""
    far: Bools
    """Which pairs no measured regime covers, (R,)."""
    antibody: NDArray[np.int32]
    """Index into `antibody_keys`, (R,)."""
    antigen: NDArray[np.int32]
    antibody_keys: NDArray[np.uint8]
    """Distinct keys, (N, 16)."""
    antigen_keys: NDArray[np.uint8]
    """Distinct keys in the order of their first rows, (M, 16)."""
    skipped: int
    """Rows with a bad sequence."""

    @property
    def pair(self) -> Ints:
        """A number for each row, (R,), equal for equal pairs."""
        return self.antibody.astype(np.int64) * len(self.antigen_keys) + self.antigen

    def repeated(self) -> Bools:
        """Return which rows repeat the pair of an earlier row, (R,).

        Raises
        ------
        BadPredictions
            If the predictions of such rows differ.
        """
        _, first, of_row = np.unique(self.pair, return_index=True, return_inverse=True)
        first_row = first[of_row]
        values = [self.mean] if self.sigma is None else [self.mean, self.sigma]
        for value in values:
            differ = np.flatnonzero(abs(value - value[first_row]) > SAME_PREDICTION_PKD)
            if len(differ):
                other, one = differ[0], first_row[differ[0]]
                msg = (
                    f"{self.source}: rows {self.row[one] + 1} and {self.row[other] + 1} are the "
                    f"same pair with different predictions, {value[one]:g} and {value[other]:g}; "
                    "expected one per pair. Remove the others."
                )
                raise BadPredictions(msg)
        return np.asarray(first_row != np.arange(len(first_row)))


def read_candidates(table: TableLike, options: TableOptions) -> Candidates:
    """Read sequences, predictions and flags of all rows.

    Raises
    ------
    BadPredictions
        A prediction is not a finite number, a sigma is negative, or a flag is neither true nor
        false.
    AbagError
        The table cannot be read, lacks a column, or has one that the output adds.
    """
    antibodies, antigens = CollectedSequences("antibody"), CollectedSequences("antigen")
    parts: list[pd.DataFrame] = []
    skipped, counts = SkippedRows(), Counter[str]()
    with row_bar("reading") as shown:
        for chunk in read_pair_chunks(table, options, as_written=True):
            refuse_score_columns(chunk.names, chunk.source, ADDED_COLUMNS)
            for collected in (antibodies, antigens):
                found = chunk.sequences[collected.kind]
                collected.add(found, np.zeros(len(found.keys), np.bool_))
            parts.append(_read_numbers(chunk))
            skipped.update(chunk.skipped)
            counts.update(chunk.counts)
            shown.update(len(chunk.frame))
    for note in describe_counts(counts, skipped):
        say(f"{chunk.source}: {note}")
    numbers = pd.concat(parts, ignore_index=True)
    mean = numbers["mean"].to_numpy(np.float64)
    _warn_of_other_units(chunk.source, mean)
    antibody_keys, antibody = antibodies.finish()
    antigen_keys, antigen = _by_first_row(*antigens.finish())
    return Candidates(
        source=chunk.source, row=numbers["row"].to_numpy(np.int64), mean=mean,
        sigma=numbers["sigma"].to_numpy(np.float64) if "sigma" in numbers else None,
        far=numbers["far"].to_numpy(np.bool_), antibody=antibody, antigen=antigen,
        antibody_keys=antibody_keys, antigen_keys=antigen_keys, skipped=len(skipped),
    )  # fmt: skip


def with_antigen(table: TableLike, options: RankOptions) -> RankOptions:
    """Give a table that names no antigen the same one in every row."""
    first = next(read_table_chunks(table, columns=options.columns, limit=1))
    if options.antigen is not None or first.has("antigen"):
        return options
    say(f"{first.source}: no antigen column; all rows are taken as pairs with the same antigen")
    return replace(options, antigen=UNNAMED_ANTIGEN)


def _warn_of_other_units(source: str, mean: Floats) -> None:
    unusual = outside(mean, USUAL_PKD)
    if 2 * unusual.sum() > len(mean):
        say(
            f"{source}: {unusual.sum():,} of {len(mean):,} predictions, such as "
            f"{mean[unusual][0]:g}, are outside the usual range of pKd (2 to 14); the largest "
            "values are taken as the best"
        )


def _by_first_row(
    keys: NDArray[np.uint8], of_row: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Number distinct keys, (N, 16), in the order of the rows, (R,), instead of their own."""
    number, used = pd.factorize(of_row)
    return keys[used], number.astype(np.int32)


def _read_numbers(chunk: SequenceTable) -> pd.DataFrame:
    """Read row, mean, sigma (if there is one) and far of the rows of a chunk."""
    mean = _finite(chunk, "prediction", "prediction", "a pKd")
    found = pd.DataFrame({"row": chunk.row_numbers - 1, "mean": mean})
    if chunk.has("sigma"):
        found["sigma"] = _finite(chunk, "sigma", "standard error", "0 or more pKd", low=0.0)
    far = np.zeros(len(found), np.bool_)
    for name in FAR_COLUMNS:
        if name in chunk.frame:
            far |= _flags(chunk, name)
    return found.assign(far=far)


def _finite(
    chunk: SequenceTable, role: str, noun: str, expected: str, low: float = -np.inf
) -> Floats:
    column = chunk.column(role)
    value = read_numbers(chunk.frame[column])
    bad = np.flatnonzero(~np.isfinite(value) | (value < low))
    if len(bad):
        msg = (
            f"{chunk.describe_cell(bad[0], column)} is not a valid {noun}; expected {expected} "
            f"({len(bad)} such rows). Fix or remove them."
        )
        raise BadPredictions(msg)
    return value


def _flags(chunk: SequenceTable, column: str) -> Bools:
    codes, values = pd.factorize(chunk.frame[column].astype(str).str.strip().str.lower())
    flags = [_BOOLEANS.get(value) for value in values]
    if None in flags:
        bad = np.flatnonzero(codes == flags.index(None))[0]
        msg = (
            f"{chunk.describe_cell(bad, column)} is not a valid flag; expected True or False. "
            "Fix it, or remove the column."
        )
        raise BadPredictions(msg)
    return np.array(flags, np.bool_)[codes]


@dataclass(frozen=True, slots=True)
class Pool:
    """The rows that a batch is chosen from, with all their columns."""

    at: Ints
    """Index of each row among the candidates, ascending, (K,)."""
    frame: pd.DataFrame
    chains: list[Chains]
    """Chains of the antibody of each row."""
    names: NDArray[np.object_]
    """Names of the antigens of the rows; empty text where the table has none."""

    def find(self, rows: Ints) -> Ints:
        """Return where candidates, (B,), are among the rows."""
        return np.searchsorted(self.at, rows)

    def antigen_name(self, row: int, number: int) -> str:
        """Name the antigen of a candidate by the table, or else by its number from 0."""
        return str(self.names[self.find(np.array([row]))][0]) or f"antigen {number + 1}"


def read_pool(table: TableLike, options: TableOptions, candidates: Candidates, rows: Ints) -> Pool:
    """Read all columns of some candidates, (K,), as written.

    Raises
    ------
    CannotRank
        If they are not what was read the first time.
    """
    at = np.sort(rows)
    wanted, parts = candidates.row[at], []
    chunks = read_table_chunks(table, columns=options.columns, limit=options.limit, as_written=True)
    for chunk in chunks:
        inside = wanted[np.isin(wanted, chunk.frame.index)]
        parts.append(chunk.frame.loc[inside])
    frame = pd.concat(parts)
    same = np.array_equal(frame.index, wanted)
    if same:
        frame = frame.reset_index(drop=True)
        whole = replace(options, limit=None)
        again = read_pairs(frame, whole, kinds=("antibody",), as_written=True)
        unique = again.antibodies
        keys = candidates.antibody_keys[candidates.antibody[at]]
        mean = read_numbers(frame[again.column("prediction")])
        same = np.array_equal(unique.keys[unique.of_row], keys)
        same = same and np.array_equal(mean, candidates.mean[at])
    if not same:
        msg = (
            f"{candidates.source}: the table changed while it was read; expected the same rows as "
            "at first. Run the command again."
        )
        raise CannotRank(msg)
    chains = [unique.chains[i] for i in unique.of_row]
    names = again.cells("antigen_name").fillna("") if again.has("antigen_name") else [""] * len(at)
    return Pool(at, frame, chains, np.asarray(names, object))


@dataclass(frozen=True, slots=True)
class Measured:
    """A table of measured pairs, in terms of the candidates."""

    table: SequenceTable
    """Its sequences are in the order of their keys, as those of `label_pairs`."""
    antigen_of: Ints
    """Index of each distinct antigen of the table among those of the candidates; -1: not there."""
    is_measured: NDArray[np.bool_]
    """Which candidates are in the table, (R,)."""

    def best(self, antigen: int | None = None) -> float:
        """Return the best pKd of the candidates' antigens, or of one of them.

        Raises
        ------
        CannotRank
            If there is none.
        AbagError
            If the labels cannot be read.
        """
        self.table.column("pkd")  # the advice of `label_pairs` has options that rank lacks
        pairs = label_pairs(self.table)
        found = self.antigen_of[pairs.antigen]
        used = (found >= 0) if antigen is None else (found == antigen)
        used &= pairs.censored >= 0
        if used.any():
            return float(pairs.pkd[used].max())
        msg = (
            f"{self.table.source}: no measured pair has the antigen of the predictions; expected "
            "some for --rule improvement. Give --best PKD."
        )
        raise CannotRank(msg)


def read_measured(table: TableLike, candidates: Candidates, options: RankOptions) -> Measured:
    """Read a table of measured pairs and find its pairs among the candidates.

    Raises
    ------
    AbagError
        If the table cannot be read or lacks a column.
    """
    first = next(read_table_chunks(table, limit=1))
    columns = {role: name for role, name in options.columns.items() if name in first.frame}
    antigen = options.antigen
    if antigen != UNNAMED_ANTIGEN and ("antigen" in columns or first.has("antigen")):
        antigen = None
    reading = replace(options, columns=columns, antigen=antigen, limit=None)
    pairs = read_pairs(table, reading).sorted_by_key()
    pairs.report_notes()
    _, antibody_of = KeyIndex([candidates.antibody_keys]).find(pairs.antibodies.keys)
    _, antigen_of = KeyIndex([candidates.antigen_keys]).find(pairs.antigens.keys)
    antibody, antigen_index = (
        antibody_of[pairs.antibodies.of_row],
        antigen_of[pairs.antigens.of_row],
    )
    known = (antibody >= 0) & (antigen_index >= 0)
    measured = antibody[known] * len(candidates.antigen_keys) + antigen_index[known]
    return Measured(pairs, antigen_of, np.isin(candidates.pair, measured))
