"""Tables of antibody-antigen pairs: unique sequences, checked and keyed.

Nothing is cut, dropped or merged without being refused or counted. Labels are not read: their
columns are found by name and passed on.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import sort_keys
from abag.core.messages import say
from abag.embed.sequences.chains import KINDS, Chains, Kind, keys_array
from abag.embed.sequences.changes import (
    EMPTY_ROW,
    BadCell,
    SkippedRows,
    count_changes,
    count_line_breaks,
    describe_counts,
)
from abag.embed.sequences.joined import JoinedTables, Part, join_tables, one_table, several
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.parsing import (
    NO_REFERENCES,
    ParsedColumn,
    References,
    drop_unused_roles,
    parse_antibodies,
    parse_antigens,
    refuse_exchanged,
    roles_by_content,
    with_roles,
)
from abag.embed.sequences.resolve import find_references, with_references
from abag.embed.sequences.tables import (
    Table,
    TableLike,
    bare_suffix,
    read_table,
    read_table_chunks,
)

_DEFAULTS = TableOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences:
    """The distinct sequences of one kind in some rows, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]  # N sequences
    keys: NDArray[np.uint8]  # shape=(N, 16)
    of_row: NDArray[np.int64]  # shape=(R,); row ``r`` holds ``chains[of_row[r]]``
    first_rows: NDArray[np.int64]
    """shape=(N,); number of the row in which each sequence occurs first."""
    replaced: NDArray[np.int32]  # shape=(N,); residues read as X
    forms: list[str]  # `ParsedSequence.form` of N sequences

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

    row_numbers: NDArray[np.int64]  # shape=(R,); number of each row in its file
    positions: NDArray[np.int64]  # shape=(R,); place of each row among all of the table, from 0
    sequences: Mapping[Kind, UniqueSequences]
    skipped: SkippedRows
    counts: dict[str, int]
    """Rows kept and skipped; unique antibodies that were split, residues that were replaced."""
    ignored: list[str]  # one line per sequence column that is not used, or remark of the reader
    examples: Mapping[str, str]  # residues that `describe_counts` shows
    files: tuple[Part, ...] = ()
    """The tables, of several that are read as one."""
    file_of_row: NDArray[np.int64] | None = None  # shape=(R,); which of these each row is of

    @property
    def antibodies(self) -> UniqueSequences:
        return self.sequences["antibody"]

    @property
    def antigens(self) -> UniqueSequences:
        return self.sequences["antigen"]

    @property
    def notes(self) -> list[str]:
        """What was done to the table, one printable line each; empty when nothing was."""
        return self.ignored + describe_counts(self.counts, self.skipped, self.examples)

    def report_notes(self) -> None:
        for note in self.notes:
            say(f"{self.source}: {note}")

    def describe_cell(self, at: int | np.integer[Any], column: str) -> str:
        """Say where the cell of a row here is, and what it holds."""
        where = f"{self.source}: row {self.row_name(at)}, column {column}"
        return f"{where}: {self.cell_text(at, column)}"

    @property
    def all_sources(self) -> str:
        """Names of all tables of which this is a chunk."""
        return ", ".join(part.source for part in self.files) or self.source

    def file_name(self, at: int | np.integer[Any]) -> str:
        """Return the name of the table of a row here, of several; else nothing."""
        return "" if self.file_of_row is None else self.files[self.file_of_row[at]].source

    def row_name(self, at: int | np.integer[Any]) -> str:
        """Return the number of a row here, and of several tables the one that has it."""
        file = self.file_name(at)
        return f"{self.row_numbers[at]} of {file}" if file else str(self.row_numbers[at])

    def cell_text(self, at: int | np.integer[Any], column: str) -> str:
        value = self.frame[column].iloc[at]
        shown = getattr(value, "item", lambda: value)()  # numpy's numbers name their type
        return "an empty cell (or NA)" if self.frame[column].isna().iloc[at] else repr(shown)

    def sorted_by_key(self) -> SequenceTable:
        """Return the same rows with their unique sequences in the order of their keys."""
        ordered = {kind: unique.sorted_by_key() for kind, unique in self.sequences.items()}
        return replace(self, sequences=ordered)


def read_pairs(
    table: TableLike,
    options: TableOptions = _DEFAULTS,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
) -> SequenceTable:
    """Read a table of antibody-antigen pairs, or of one of the `kinds`, and check every sequence.

    Rows in which every cell is empty are left out and reported, whatever ``bad_rows`` is. Columns
    for heavy and light take precedence over one for the antibody that ``options.columns`` does not
    name. `as_written` is that of `read_table`.
    """
    tables = several(table)
    if tables is not None:
        joined = join_tables(tables, options, kinds)

        def read_whole(part: TableLike, of_part: TableOptions) -> list[SequenceTable]:
            return [read_pairs(part, of_part, kinds=kinds, as_written=as_written)]

        return _as_one(joined, [*_read_parts(joined, options, read_whole)])
    whole = read_table(
        one_table(table), columns=options.columns, limit=options.limit, as_written=as_written,
        chains=options.chains, kinds=kinds, files=options,
    )  # fmt: skip
    (pairs,) = _checked([whole], kinds, options)
    return pairs


def read_pair_chunks(
    table: TableLike,
    options: TableOptions,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    only_sequences: bool = False,
) -> Iterator[SequenceTable]:
    """Read a table as `read_pairs` in chunks of rows, of which one without good rows is empty."""
    tables = several(table)
    if tables is not None:
        joined = join_tables(tables, options, kinds)
        read = partial(read_pair_chunks, kinds=kinds, as_written=as_written)
        parts = _read_parts(joined, options, read)
        return (replace(part, ignored=[*joined.describe(), *part.ignored]) for part in parts)
    chunks = read_table_chunks(
        one_table(table), columns=options.columns, limit=options.limit, as_written=as_written,
        only_sequences=only_sequences and not options.refers, chains=options.chains, kinds=kinds,
        files=options,
    )  # fmt: skip
    return _checked(chunks, kinds, options)


def _read_parts(
    joined: JoinedTables,
    options: TableOptions,
    read: Callable[[TableLike, TableOptions], Iterable[SequenceTable]],
) -> Iterator[SequenceTable]:
    """Read several tables one after the other, each whole or in chunks, with the columns of all."""
    start = 0
    for number, part in enumerate(joined.parts):
        limit = None if options.limit is None else options.limit - start
        if limit == 0:
            return
        rows = 0
        for chunk in read(part.table, replace(part.options, limit=limit)):
            yield _in_joined(chunk, joined, number, start)
            rows += len(chunk.frame) + len(chunk.skipped)
        start += rows


def _in_joined(read: SequenceTable, joined: JoinedTables, number: int, start: int) -> SequenceTable:
    """Return rows of one of several tables as rows of all of them."""
    part = joined.parts[number]
    frame = joined.align(read.frame, part, as_written=read.as_written)
    roles = {role: part.renamed.get(name, name) for role, name in read.columns.items()}
    return replace(
        read, source=part.source, frame=frame, names=[*joined.names],
        columns={**joined.columns, **roles}, positions=read.positions + start,
        skipped=read.skipped.of_file(part.source), files=joined.parts,
        file_of_row=np.full(len(frame), number),
        ignored=[f"{part.source}: {note}" for note in read.ignored],
    )  # fmt: skip


def _as_one(joined: JoinedTables, parts: Sequence[SequenceTable]) -> SequenceTable:
    """Join the rows of several tables, each with the columns of all."""
    first = parts[0]
    # columns that a table lacks have no type there, and are left to the others
    frames = [part.frame.dropna(axis="columns", how="all") for part in parts]
    frame = pd.concat(frames, ignore_index=True).reindex(columns=[*joined.names])
    counts: Counter[str] = Counter()
    skipped = SkippedRows()
    for part in parts:
        counts.update(part.counts)
        skipped.update(part.skipped)
    examples = dict(ChainMap(*[{**part.examples} for part in parts]))
    used = {name for part in parts for name in part.columns.values()}
    return replace(
        first, source=joined.source, frame=frame,
        columns={role: name for role, name in joined.columns.items() if name in used},
        row_numbers=np.concatenate([part.row_numbers for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        file_of_row=np.concatenate([part.file_of_row for part in parts]),
        sequences={
            kind: _merged(kind, [part.sequences[kind] for part in parts])
            for kind in first.sequences
        },
        counts=dict(counts), skipped=skipped, examples=examples,
        ignored=[*joined.describe(), *(note for part in parts for note in part.ignored)],
    )  # fmt: skip


def _merged(kind: Kind, parts: Sequence[UniqueSequences]) -> UniqueSequences:
    """Join the sequences of several tables; those that several have are one."""
    chains = [chains for part in parts for chains in part.chains]
    numbered = {sequence: number for number, sequence in enumerate(dict.fromkeys(chains))}
    of_part = np.array([numbered[sequence] for sequence in chains], np.int64)
    starts = np.cumsum([0, *(len(part.chains) for part in parts)])
    of_row = [of_part[part.of_row + at] for part, at in zip(parts, starts, strict=False)]
    _, first = np.unique(of_part, return_index=True)
    forms = [form for part in parts for form in part.forms]
    return UniqueSequences(
        kind=kind, chains=[*numbered], keys=keys_array(kind, [*numbered]),
        of_row=np.concatenate(of_row),
        first_rows=np.concatenate([part.first_rows for part in parts])[first],
        replaced=np.concatenate([part.replaced for part in parts])[first],
        forms=[forms[i] for i in first.tolist()],
    )  # fmt: skip


def _checked(
    chunks: Iterable[Table], kinds: Sequence[Kind], options: TableOptions
) -> Iterator[SequenceTable]:
    rows, skipped, refused, roles = 0, SkippedRows(), False, None
    references = NO_REFERENCES
    for whole in chunks:
        if roles is None:  # the first chunk decides
            roles = roles_by_content(whole)
            references = find_references(with_roles(whole, roles), options, kinds)
        chunk = with_references(with_roles(whole, roles), references)
        pairs = _check_rows(chunk, kinds, options, references)
        rows += len(pairs.frame)
        skipped.update(pairs.skipped)
        refused = refused or (options.bad_rows == "error" and bool(pairs.skipped.bad))
        if not refused:  # else the rest is only read to list all bad rows
            yield pairs
    if refused or not rows:
        raise skipped.refusal(pairs.source, kept=rows)


def _check_rows(
    whole: Table, kinds: Sequence[Kind], options: TableOptions, references: References
) -> SequenceTable:
    table, ignored = drop_unused_roles(whole, options)
    if table.frame.index[0] == 0:  # the first chunk decides
        refuse_exchanged(table, options, kinds)
    parse = {"antibody": parse_antibodies, "antigen": parse_antigens}
    parsed = {kind: parse[kind](table, options, references) for kind in KINDS if kind in kinds}
    empty = whole.are_empty()
    bad = np.any([column.is_bad()[column.codes] for column in parsed.values()], axis=0)
    problems = table.reader.problems if "antibody" in parsed else {}
    bad = (bad | table.frame.index.isin([*problems])) & ~empty
    positions = table.frame.index.to_numpy(np.int64)
    numbers = positions + table.first_row
    if table.reader.numbers is not None:
        numbers = np.array(table.reader.numbers, np.int64)[positions]
    skipped = SkippedRows([(row, EMPTY_ROW) for row in numbers[empty].tolist()])
    for at in np.flatnonzero(bad).tolist():
        problem = problems.get(int(table.frame.index[at]))
        cells = [problem and BadCell("antibody", *problem)]
        cells += [column.bad.get(column.codes[at]) for column in parsed.values()]
        skipped.rows.append((int(numbers[at]), next(filter(None, cells))))
    keep = np.flatnonzero(~(bad | empty))
    if len(skipped):
        table = replace(table, frame=table.frame.iloc[keep].reset_index(drop=True))
    sequences = {kind: _unique(kind, column, keep, numbers) for kind, column in parsed.items()}
    forms = Counter(form for unique in sequences.values() for form in unique.forms)
    replaced = sum(int(unique.replaced.sum()) for unique in sequences.values())
    counts = {"rows": len(keep), "skipped_rows": len(skipped), **count_changes(forms, replaced)}
    examples = [column.examples for column in parsed.values()]
    may_join_rows = bare_suffix(Path(whole.source)) in (".csv", ".tsv", ".txt")
    counts["line_breaks"] = count_line_breaks(whole.frame) if may_join_rows else 0
    return SequenceTable(
        **{f.name: getattr(table, f.name) for f in fields(Table)},
        row_numbers=numbers[keep], positions=positions[keep], sequences=sequences,
        counts=counts, skipped=skipped,
        ignored=[
            *(table.reader.remarks if "antibody" in parsed else ()), *ignored, *references.remarks,
        ],
        examples=dict(ChainMap(*examples)),
    )  # fmt: skip


def _unique(
    kind: Kind, column: ParsedColumn, keep: NDArray[np.int64], numbers: NDArray[np.int64]
) -> UniqueSequences:
    """Merge cells with the same sequence, for instance in upper and in lower case."""
    codes, used = pd.factorize(column.codes[keep])
    chains = [column.chains[i] for i in used.tolist()]
    numbered = {sequence: number for number, sequence in enumerate(dict.fromkeys(chains))}
    of_row = np.array([numbered[sequence] for sequence in chains], np.int64)[codes]
    _, first = np.unique(of_row, return_index=True)
    cells = column.codes[keep[first]]
    return UniqueSequences(
        kind=kind, chains=[*numbered], keys=keys_array(kind, [*numbered]), of_row=of_row,
        first_rows=numbers[keep[first]], replaced=column.replaced[cells],
        forms=[column.forms[i] for i in cells.tolist()],
    )  # fmt: skip
