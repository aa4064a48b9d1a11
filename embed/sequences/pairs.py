"""Tables of antibody-antigen pairs: unique sequences, checked and keyed.

Nothing is cut, dropped or merged without being refused or counted. Labels are not read: their
columns are found by name and passed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import sort_keys
from abag.core.messages import say
from abag.embed.sequences.chains import (
    KINDS,
    Chains,
    EmptySequence,
    Kind,
    UnknownResidue,
    keys_array,
)
from abag.embed.sequences.changes import (
    EMPTY_ROW,
    SHOWN_ROWS,
    BadSequence,
    SkippedRows,
    count_changes,
    count_line_breaks,
    describe_counts,
)
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.formats import BadTable, bare_suffix
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.parsed_columns import (
    ParsedColumn,
    arrange_chains,
    drop_unused_roles,
    parse_antibodies,
    parse_antigens,
    refuse_exchanged,
)
from abag.embed.sequences.tables import (
    Table,
    TableLike,
    read_table,
    read_table_chunks,
)

_REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty sequence",
    UnknownResidue: "unknown residue",
    UnsureDomains: "unsure domains",
}
_DEFAULTS = TableOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences:
    """The distinct sequences of one kind in some rows, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """shape=(N, 16)."""
    of_row: NDArray[np.int64]
    """shape=(R,); row ``r`` holds ``chains[of_row[r]]``."""
    first_rows: NDArray[np.int64]
    """shape=(N,); 1-based row of the table in which each sequence occurs first."""
    replaced: NDArray[np.int32]
    """shape=(N,); residues read as X."""
    forms: list[str]
    """`ParsedSequence.form` of N sequences."""

    def sorted_by_key(self) -> UniqueSequences:
        """Return the sequences in the order of their keys, which does not depend on the rows."""
        order, _ = sort_keys(self.keys)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        return replace(
            self, keys=self.keys[order], of_row=ranks[self.of_row],
            first_rows=self.first_rows[order], replaced=self.replaced[order],
            chains=[self.chains[i] for i in order], forms=[self.forms[i] for i in order],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTable(Table):
    """The rows of a table that hold valid sequences, of one kind or of both."""

    row_numbers: NDArray[np.int64]
    """shape=(R,); 1-based number of each row in the table."""
    sequences: Mapping[Kind, UniqueSequences]
    skipped: SkippedRows
    first_error: AbagError | None
    """What is wrong with the first skipped row."""
    counts: dict[str, int]
    """Rows kept and skipped; unique antibodies that were split, residues that were replaced."""
    ignored: list[str]
    """One line per sequence column that is not used."""

    @property
    def antibodies(self) -> UniqueSequences:
        """The antibodies of the rows."""
        return self.sequences["antibody"]

    @property
    def antigens(self) -> UniqueSequences:
        """The antigens of the rows."""
        return self.sequences["antigen"]

    @property
    def notes(self) -> list[str]:
        """What was done to the table, one printable line each; empty when nothing was."""
        return self.ignored + describe_counts(self.counts, self.skipped, self.light_only_rows())

    def light_only_rows(self) -> list[int]:
        """List the rows, from 1, with a light chain beside an empty heavy cell."""
        if "antibody" not in self.sequences:
            return []
        antibodies = self.sequences["antibody"]
        found = [i for i, form in enumerate(antibodies.forms) if "no heavy" in form]
        return self.row_numbers[np.isin(antibodies.of_row, found)].tolist() if found else []

    def report_notes(self) -> None:
        """Report what was done to the table."""
        for note in self.notes:
            say(f"{self.source}: {note}")

    def describe_cell(self, at: int | np.integer[Any], column: str) -> str:
        """Say where the cell of the `at`-th row here is, and what it holds."""
        value = self.frame[column].iloc[at]
        shown = getattr(value, "item", lambda: value)()  # numpy's numbers name their type
        held = "an empty cell (or NA)" if self.frame[column].isna().iloc[at] else repr(shown)
        return f"{self.source}: row {self.row_numbers[at]}, column {column}: {held}"

    def sorted_by_key(self) -> SequenceTable:
        """Return the same rows with their unique sequences in the order of their keys."""
        ordered = {kind: unique.sorted_by_key() for kind, unique in self.sequences.items()}
        return replace(self, sequences=ordered)


@dataclass(slots=True)
class TableTotals:
    """What the chunks of a table held so far."""

    source: str = ""
    rows: int = 0
    """Rows kept."""
    skipped: SkippedRows = field(default_factory=SkippedRows)
    ignored: list[str] = field(default_factory=list)
    """One line per sequence column that is not used."""
    line_breaks: int = 0
    """Cells that contain a line break."""
    light_only: list[int] = field(default_factory=list)
    """First rows with a light chain beside an empty heavy cell."""

    def add(self, chunk: SequenceTable) -> None:
        """Count the rows of a chunk."""
        self.source, self.ignored = chunk.source, chunk.ignored
        self.rows += len(chunk.frame)
        self.skipped.update(chunk.skipped)
        self.line_breaks += chunk.counts["line_breaks"]
        self.light_only = [*self.light_only, *chunk.light_only_rows()][: SHOWN_ROWS + 1]


def read_pairs(
    table: TableLike,
    options: TableOptions = _DEFAULTS,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
) -> SequenceTable:
    """Read a table of antibody-antigen pairs, or of one of the `kinds`, and check every sequence.

    Rows in which every cell is empty are left out and reported, whatever ``bad_rows`` is.

    Columns for heavy and light take precedence over one for the antibody, unless
    ``options.columns`` names the latter. A cell of the antibody column is ``heavy|light``,
    ``heavy:light``, or one string that :func:`~abag.embed.sequences.domains.split_domains` splits.
    `as_written` is that of :func:`~abag.embed.sequences.tables.read_table`.

    Raises
    ------
    BadTable, MissingColumn, AmbiguousColumn
        The table cannot be read, or lacks a column.
    EmptySequence, UnknownResidue, UnsureDomains
        The first bad row; with ``bad_rows="skip"``, only if no row is left.
    ChainsMisplaced
        Most rows have heavy and light exchanged, and ``chains`` is not ``"auto"``; or antibodies
        and antigens.
    """
    whole = read_table(table, columns=options.columns, limit=options.limit, as_written=as_written)
    pairs = _check_rows(whole, kinds, options)
    if not len(pairs.frame):
        raise _no_rows(pairs.source, pairs.skipped, pairs.first_error)
    return pairs


def read_pair_chunks(
    table: TableLike,
    options: TableOptions,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    only_sequences: bool = False,
) -> Iterator[SequenceTable]:
    """Read a table of pairs in chunks of rows, so that it may be larger than memory.

    The table may lack what is not of these `kinds`.
    Checks, keys and errors are those of :func:`read_pairs`; other arguments, those of
    :func:`~abag.embed.sequences.tables.read_table_chunks`. A chunk lacks its bad rows and may be
    empty. A sequence that occurs in several chunks is in each of them.

    Raises
    ------
    AbagError
        As for :func:`read_pairs`.
    """
    rows, skipped, first_error = 0, SkippedRows(), None
    chunks = read_table_chunks(
        table, columns=options.columns, limit=options.limit, as_written=as_written,
        only_sequences=only_sequences,
    )  # fmt: skip
    for chunk in chunks:
        pairs = _check_rows(chunk, kinds, options)
        rows += len(pairs.frame)
        skipped.update(pairs.skipped)
        first_error = first_error or pairs.first_error
        yield pairs
    if not rows:
        raise _no_rows(pairs.source, skipped, first_error)


def _no_rows(source: str, skipped: SkippedRows, first: AbagError | None) -> AbagError:
    if first is None:
        msg = f"{source}: all {len(skipped)} rows are empty; expected at least one with sequences."
        return BadTable(msg)
    return type(first)(f"{source}: all {len(skipped) - len(skipped.empty)} rows are bad; {first}")


# --- rows -----------------------------------------------------------------------------------------


def _check_rows(whole: Table, kinds: Sequence[Kind], options: TableOptions) -> SequenceTable:
    """Parse the sequences of every row; refuse or skip the rows in which one is bad."""
    table, ignored = drop_unused_roles(whole, options)
    parsed: dict[Kind, ParsedColumn] = {}
    if "antibody" in kinds:
        parsed["antibody"] = arrange_chains(
            parse_antibodies(table, options.columns), table, options
        )
    if "antigen" in kinds:
        parsed["antigen"] = parse_antigens(table, options.antigen)
    if len(parsed) == len(KINDS) and table.frame.index[0] == 0:  # the first chunk decides
        refuse_exchanged(parsed, table.source)
    empty = whole.are_empty()
    bad = np.any([column.is_bad()[column.codes] for column in parsed.values()], axis=0) & ~empty
    numbers = table.frame.index.to_numpy(np.int64) + 1
    first_error = None
    skipped = SkippedRows()
    for row in np.flatnonzero(empty).tolist():
        skipped.add(EMPTY_ROW, int(numbers[row]))
    for row in np.flatnonzero(bad).tolist():
        cells = ((kind, column.bad.get(column.codes[row])) for kind, column in parsed.items())
        kind, (text, error) = next((kind, cell) for kind, cell in cells if cell)
        skipped.add(BadSequence(kind, _REASONS[type(error)], text, str(error)), int(numbers[row]))
        first_error = first_error or type(error)(f"row {numbers[row]}, {error}")
    if first_error is not None:
        if options.bad_rows == "error":
            if (bad | empty).all():
                raise _no_rows(table.source, skipped, first_error)
            msg = f"{table.source}: {first_error}"
            raise type(first_error)(msg)
    keep = np.flatnonzero(~(bad | empty))
    if len(skipped):
        table = replace(table, frame=table.frame.iloc[keep].reset_index(drop=True))
    sequences = {kind: _unique(kind, column, keep, numbers) for kind, column in parsed.items()}
    forms = Counter(form for unique in sequences.values() for form in unique.forms)
    replaced = sum(int(unique.replaced.sum()) for unique in sequences.values())
    counts = {"rows": len(keep), "skipped_rows": len(skipped), **count_changes(forms, replaced)}
    may_join_rows = bare_suffix(Path(whole.source)) in (".csv", ".tsv")
    counts["line_breaks"] = count_line_breaks(whole.frame) if may_join_rows else 0
    return SequenceTable(
        **{f.name: getattr(table, f.name) for f in fields(Table)},
        row_numbers=numbers[keep], sequences=sequences, first_error=first_error, counts=counts,
        skipped=skipped, ignored=ignored,
    )  # fmt: skip


def _unique(
    kind: Kind, column: ParsedColumn, keep: NDArray[np.int64], numbers: NDArray[np.int64]
) -> UniqueSequences:
    """Merge cells with the same sequence, for instance in upper and in lower case."""
    codes, used = pd.factorize(column.codes[keep])
    chains = [column.chains[i] for i in used.tolist()]
    numbered = {sequence: number for number, sequence in enumerate(dict.fromkeys(chains))}
    of_code = np.array([numbered[sequence] for sequence in chains], np.int64)
    _, first = np.unique(of_code, return_index=True)
    of_row, cells = of_code[codes], used[first]
    _, first_rows = np.unique(of_row, return_index=True)
    return UniqueSequences(
        kind=kind, chains=[*numbered], keys=keys_array(kind, [*numbered]), of_row=of_row,
        first_rows=numbers[keep[first_rows]], replaced=column.replaced[cells],
        forms=[column.forms[i] for i in cells.tolist()],
    )  # fmt: skip
