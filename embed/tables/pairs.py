"""Tables of antibody-antigen pairs: unique sequences, checked and keyed, and what was skipped.

Nothing is cut, dropped or merged without being refused or counted, and each count that is not 0 has
a line. What the columns are says the layout of the tables (`layout`); labels are not read. Distinct
sequences that do not fit into memory are written, sorted by key, to a temporary file without a
name, which disappears with the process. A part of them is a range of keys, so it does not depend on
the order of the rows, and holds each of its sequences once. N unique sequences, R rows.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, sort_keys
from abag.core.errors import AbagError, OutputError, TableError
from abag.core.files import write_text
from abag.core.messages import counted, quoted, say
from abag.embed.tables.airr import NOT_PRODUCTIVE
from abag.embed.tables.chains import KINDS, REPLACED, Chains, Kind, keys_array
from abag.embed.tables.formats import IN_QUOTES, bare_suffix
from abag.embed.tables.layout import NOTHING, DecideLabel, FileLayout, Layout, LayoutRecord
from abag.embed.tables.options import TableOptions
from abag.embed.tables.sequences import (
    BadCell,
    ParsedColumn,
    describe_unused_chains,
    parse_antibodies,
    parse_antigens,
)
from abag.embed.tables.table import Table, TableLike

HELD_BYTES = 64 << 20  # in memory before they are written
PART_BYTES = 32 << 20  # about 140,000 antibodies, which take a GPU minutes
BUCKETS = 256  # by the first byte of the key: the smallest possible parts
_SCHEMA = pa.schema(
    {
        "key": pa.binary(KEY_BYTES),
        "chains": pa.large_string(),
        "row": pa.int64(),
        "replaced": pa.int32(),
        "form": pa.string(),
    }
)
"""Chains are joined by \\0."""


_DEFAULTS = TableOptions()
_PLAIN_NUMBER = re.compile(r"[-+]?(\d{1,20}(\.\d{0,20})?|\.\d{1,20})(e[-+]?\d{1,4})?|-?inf", re.I)


class SequencePart(NamedTuple):
    """N distinct sequences whose keys are in one range."""

    chains: list[Chains]
    keys: NDArray[np.uint8]
    """Shape (N, 16), ascending."""
    rows: NDArray[np.int64]
    """Shape (N,); number of the row in which each sequence occurs first."""
    forms: Mapping[str, int] = {}
    """Number of sequences by their `ParsedSequence.form`."""
    replaced: int = 0
    """Residues read as X."""

    def take(self, at: NDArray[np.int64]) -> SequencePart:
        """Select sequences by index, shape (S,); without the counts of the part."""
        return SequencePart([self.chains[i] for i in at.tolist()], self.keys[at], self.rows[at])


class Partitions(ExitStack):
    """Collects a table's sequences, beyond `held_bytes` on disk, and returns them in parts."""

    def __init__(
        self, kind: Kind, *, held_bytes: int = HELD_BYTES, part_bytes: int = PART_BYTES
    ) -> None:
        super().__init__()  # closes the files
        self.kind: Kind = kind
        self._held_bytes = held_bytes
        self._part_bytes = part_bytes
        self._held = _SCHEMA.empty_table()
        # sorted, with one batch per bucket
        self._runs: list[pa.RecordBatchFileReader] = []
        self._bucket_bytes = np.zeros(BUCKETS)

    def add(self, unique: UniqueSequences) -> None:
        """Add the sequences of some rows, in the order of the table."""
        buffers = [None, pa.py_buffer(unique.keys)]
        columns = [
            pa.Array.from_buffers(_SCHEMA.field("key").type, len(unique.keys), buffers),
            pa.array(["\0".join(chains) for chains in unique.chains], pa.large_string()),
            pa.array(unique.first_rows),
            pa.array(unique.replaced),
            pa.array(unique.forms, pa.string()),
        ]
        self._held = pa.concat_tables([self._held, pa.table(columns, schema=_SCHEMA)])
        if self._held.nbytes < self._held_bytes:
            return
        self._held = _sorted_distinct(self._held)
        if self._held.nbytes >= self._held_bytes // 2:  # else few sequences in many rows
            self._write()

    def parts(self) -> Iterator[SequencePart]:
        """Yield every sequence once, in parts with ascending keys."""
        if not self._runs:
            self._held = _sorted_distinct(self._held)
            yield _part(self._held)
            return
        if len(self._held):
            self._held = _sorted_distinct(self._held)
            self._write()
        part_of_bucket = np.cumsum(self._bucket_bytes) // self._part_bytes
        for number in np.unique(part_of_bucket):
            buckets = np.flatnonzero(part_of_bucket == number)
            batches = []
            for run in self._runs:
                batches += [run.get_batch(bucket) for bucket in buckets]
            if any(map(len, batches)):
                yield _part(_sorted_distinct(pa.Table.from_batches(batches)))

    def _write(self) -> None:
        """Move the held sequences, which are sorted, to a file."""
        first_bytes = _keys(self._held)[:, 0]
        rows_of_bucket = np.bincount(first_bytes, minlength=BUCKETS)
        (held,) = self._held.to_batches()
        try:
            file = self.enter_context(tempfile.TemporaryFile(prefix="abag-"))
            with pa.ipc.new_file(file, _SCHEMA) as writer:
                for end, rows in zip(np.cumsum(rows_of_bucket), rows_of_bucket, strict=True):
                    writer.write_batch(held.slice(end - rows, rows))
            file.flush()
        except OSError as error:
            msg = (
                f"{tempfile.gettempdir()}: cannot hold the sequences of the table ({error}); "
                "expected free space of about the size of the uncompressed table. Set TMPDIR to a "
                "larger disk."
            )
            raise OutputError(msg) from error
        self._bucket_bytes += held.nbytes / len(held) * rows_of_bucket
        self._runs.append(pa.ipc.open_file(file))
        self._held = _SCHEMA.empty_table()


def _keys(table: pa.Table) -> NDArray[np.uint8]:
    column = table["key"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no rows
        return np.empty((0, KEY_BYTES), np.uint8)
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data.reshape(-1, KEY_BYTES)[column.offset : column.offset + len(column)]


def _sorted_distinct(table: pa.Table) -> pa.Table:
    order, repeated = sort_keys(_keys(table))
    return table.combine_chunks().take(order[~repeated])


def _part(table: pa.Table) -> SequencePart:
    chains = [tuple(text.split("\0")) for text in table["chains"].to_pylist()]
    counts = table["form"].value_counts().to_pylist()
    forms = {count["values"]: count["counts"] for count in counts}
    replaced = int(table["replaced"].to_numpy().sum())
    return SequencePart(chains, _keys(table).copy(), table["row"].to_numpy(), forms, replaced)


@dataclass(frozen=True, slots=True)
class Sequences:
    """The N distinct sequences of one kind in a table, and which of them each of its R rows has."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """Shape (N, 16)."""
    of_row: NDArray[np.integer]
    """Shape (R,); row ``r`` holds ``chains[of_row[r]]``."""

    @classmethod
    def of(cls, kind: Kind, chains: Sequence[Chains]) -> Sequences:
        """Collect the distinct sequences of R rows, whose chains are given."""
        collected = SequenceCollector(kind)
        collected.add(chains, slice(None))
        return collected.finish()


class SequenceCollector:
    """Collects the distinct sequences of one kind from the chunks of a table."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._number: dict[Chains, int] = {}
        self._of_row: list[NDArray[np.int32]] = []

    def add(self, chains: Sequence[Chains], of_row: NDArray[np.integer] | slice) -> None:
        """Add a chunk of R rows.

        Parameters
        ----------
        chains : sequence of tuple of str
            The distinct sequences of the chunk.
        of_row : ndarray of int, shape=(R,), or slice
            Index in `chains` of the sequence of each row.
        """
        number = [self._number.setdefault(sequence, len(self._number)) for sequence in chains]
        self._of_row.append(np.array(number, np.int32)[of_row])

    def finish(self) -> Sequences:
        """Return what was collected, and forget it; call this once, after the last chunk."""
        chains = list(self._number)
        self._number.clear()
        keys = keys_array(self._kind, chains)
        return Sequences(self._kind, chains, keys, np.concatenate(self._of_row))


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences(Sequences):
    """Those of some rows, in the order of their first rows, with how they were read."""

    of_row: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    """Shape (N,); number of the row in which each sequence occurs first."""
    replaced: NDArray[np.int32]
    """Shape (N,); residues read as X."""
    forms: list[str]
    """`ParsedSequence.form` of N sequences."""

    def sorted_by_key(self) -> UniqueSequences:
        """Return the sequences in the order of their keys, which does not depend on the rows."""
        order, _ = sort_keys(self.keys)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        return replace(
            self,
            chains=[self.chains[i] for i in order],
            keys=self.keys[order],
            of_row=ranks[self.of_row],
            first_rows=self.first_rows[order],
            replaced=self.replaced[order],
            forms=[self.forms[i] for i in order],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTable(Table):
    """The rows of a table that hold valid sequences, of one kind or of both."""

    row_numbers: NDArray[np.int64]
    """Shape (R,); number of each row in its file."""
    positions: NDArray[np.int64]
    """Shape (R,); place of each row among all of the table, from 0."""
    sequences: Mapping[Kind, UniqueSequences]
    kinds: tuple[Kind, ...]
    """Those of `sequences` that rows have: antibodies alone share an antigen that nobody has."""
    skipped: SkippedRows
    counts: dict[str, int]
    """Rows kept and skipped; unique antibodies that were split, residues that were replaced."""
    ignored: list[str]
    """One line per sequence column that is not used, or remark of the reader."""
    files: tuple[FileLayout, ...]
    """The tables that are read as one."""
    labels: tuple[Any, ...] = ()
    """What the label of each table is whose rows these are; None if labels are not asked for."""
    file_of_row: NDArray[np.int64] | None = None
    """Shape (R,); index in `files` of the table of each row; None for a single table."""
    holds_texts: bool = False
    """That of `Layout`, of a whole table."""

    @property
    def antibodies(self) -> UniqueSequences:
        """The distinct antibodies."""
        return self.sequences["antibody"]

    @property
    def antigens(self) -> UniqueSequences:
        """The distinct antigens."""
        return self.sequences["antigen"]

    @property
    def notes(self) -> list[str]:
        """Lines on what reading changed and left out, each printable; empty if nothing."""
        return self.ignored + describe_counts(self.counts, self.skipped)

    def report_notes(self) -> None:
        """Send each of `notes` as a message."""
        for note in self.notes:
            say(f"{self.source}: {note}")

    def describe_cell(self, at: int | np.integer[Any], column: str) -> str:
        """Say where the cell of a row here is, and what it holds."""
        where = f"{self.source}: row {self.row_name(at)}, column {column}"
        return f"{where}: {self.cell_text(at, column)}"

    @property
    def refuses_bad_rows(self) -> bool:
        """Whether bad rows of its tables are errors."""
        return any(file.options.bad_rows == "error" for file in self.files)

    def file_name(self, at: int | np.integer[Any]) -> str:
        """Return the name of the table of a row here, of several; else nothing."""
        return "" if self.file_of_row is None else self.files[self.file_of_row[at]].source

    def row_name(self, at: int | np.integer[Any]) -> str:
        """Return the number of a row here, and of several tables the one that has it."""
        file = self.file_name(at)
        return f"{self.row_numbers[at]} of {file}" if file else str(self.row_numbers[at])

    def cell_text(self, at: int | np.integer[Any], column: str) -> str:
        """Return the content of a cell as messages show it."""
        cells = self.frame[column]
        if cells.isna().iloc[at]:
            return "an empty cell (or NA)"
        value = cells.iloc[at]
        if hasattr(value, "item"):  # numpy's numbers name their type
            value = value.item()
        if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value):
            return value  # as a typed column of Parquet is shown
        return quoted(value)

    def sorted_by_key(self) -> SequenceTable:
        """Return the same rows with their unique sequences in the order of their keys."""
        ordered = {kind: unique.sorted_by_key() for kind, unique in self.sequences.items()}
        return replace(self, sequences=ordered)


class Tally:
    """What was counted, skipped and not used in the chunks that were read of a table."""

    def __init__(self) -> None:
        self.source = ""
        """Names of all its tables, once a chunk is read."""
        self.counts = Counter[str]()
        self.skipped = SkippedRows()
        self.ignored = list[str]()

    def add(self, chunk: SequenceTable) -> None:
        """Add what is told of a chunk; what is told of each is kept once."""
        self.source = ", ".join(file.source for file in chunk.files)
        self.counts.update(chunk.counts)
        self.skipped.update(chunk.skipped)
        self.ignored += [line for line in chunk.ignored if line not in self.ignored]

    @property
    def notes(self) -> list[str]:
        """Those of `SequenceTable`, of all chunks."""
        return self.ignored + describe_counts(self.counts, self.skipped)


def read_pairs(
    table: TableLike,
    options: TableOptions = _DEFAULTS,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    remembered: LayoutRecord = NOTHING,
    label: DecideLabel | None = None,
    refuse: bool = True,
) -> SequenceTable:
    """Read a table of antibody-antigen pairs, or of one of the `kinds`, and check every sequence.

    Rows in which every cell is empty are left out and reported, whatever ``bad_rows`` is. Columns
    for heavy and light take precedence over one for the antibody that ``options.columns`` does not
    name. `as_written`, `remembered` and `label` are those of `Layout.of`, `refuse` that of
    `read_rows`.

    Raises
    ------
    AbagError
        If a table cannot be read, has no column of sequences, or a row is bad and ``bad_rows`` is
        ``"error"``; if no row is good.
    """
    layout = Layout.of(
        table,
        options,
        kinds=kinds,
        rows=None,
        as_written=as_written,
        remembered=remembered,
        label=label,
    )
    return read_rows(layout, refuse=refuse)


def read_rows(layout: Layout, *, refuse: bool = True) -> SequenceTable:
    """Read all rows of the tables of a layout, of which each is one chunk, as `read_pairs` does.

    Without `refuse`, bad rows are for `label_pairs` to refuse, in one error with bad labels.
    """
    parts = [*check_chunks(layout, refuse=refuse)]
    whole = _as_one(layout, parts) if layout.file_column else parts[0]
    return replace(whole, holds_texts=layout.holds_texts)


def check_chunks(layout: Layout, *, refuse: bool = True) -> Iterator[SequenceTable]:
    """Check every row of the tables of a layout, each in the chunks in which it is read.

    A chunk without good rows is empty. The first one says how several tables are joined. `refuse`
    is that of `read_rows`.
    """
    start = 0
    joined = layout.describe() if layout.file_column else []
    for number in range(len(layout.files)):
        rows = 0
        chunks = layout.chunks_of(number, start)
        for chunk in _check_file(layout, number, chunks, refuse=refuse):
            rows += len(chunk.frame) + len(chunk.skipped)
            if layout.file_column:
                chunk = _in_joined(chunk, layout, number, start)
                chunk.ignored[:0] = joined
                joined = []
            yield chunk
        start += rows


def _in_joined(read: SequenceTable, joined: Layout, number: int, start: int) -> SequenceTable:
    """Return rows of one of several tables as rows of all of them."""
    part = joined.files[number]
    frame = joined.align(read.frame, number)
    roles = {role: part.renamed.get(name, name) for role, name in read.columns.items()}
    rows = read.skipped.rows
    return replace(
        read,
        source=part.source,
        frame=frame,
        columns={**joined.columns, **roles},
        positions=read.positions + start,
        skipped=SkippedRows([(row, cell._replace(file=part.source)) for row, cell in rows]),
        ignored=[f"{part.source}: {note}" for note in read.ignored],
        files=joined.files,
        file_of_row=np.full(len(frame), number),
    )


def _as_one(joined: Layout, parts: Sequence[SequenceTable]) -> SequenceTable:
    """Join the rows of several tables, each with the columns of all."""
    first = parts[0]
    # columns that a table lacks have no type there, and are left to the others
    frames = [part.frame.dropna(axis="columns", how="all") for part in parts]
    frame = pd.concat(frames, ignore_index=True).reindex(columns=[*joined.names])
    tally = Tally()
    used: set[str] = set()
    for part in parts:
        tally.add(part)
        used.update(part.columns.values())
    columns = {role: name for role, name in joined.columns.items() if name in used}
    row_numbers = np.concatenate([part.row_numbers for part in parts])
    sequences: dict[Kind, UniqueSequences] = {}
    for kind in first.sequences:
        chains: list[Chains] = []
        forms: list[str] = []
        codes = []
        for unique in (part.sequences[kind] for part in parts):
            codes.append(unique.of_row + len(chains))
            chains += unique.chains
            forms += unique.forms
        column = ParsedColumn(
            codes=np.concatenate(codes),
            chains=chains,
            replaced=np.concatenate([part.sequences[kind].replaced for part in parts]),
            forms=forms,
        )
        sequences[kind] = _unique(kind, column, row_numbers)
    return replace(
        first,
        source=joined.source,
        frame=frame,
        columns=columns,
        row_numbers=row_numbers,
        positions=np.concatenate([part.positions for part in parts]),
        sequences=sequences,
        skipped=tally.skipped,
        counts=dict(tally.counts),
        ignored=tally.ignored,
        labels=tuple(file.label for file in joined.files),
        file_of_row=np.concatenate([part.file_of_row for part in parts]),
    )


def _unique(kind: Kind, column: ParsedColumn, numbers: NDArray[np.int64]) -> UniqueSequences:
    """Merge cells with the same sequence, for instance in upper and in lower case.

    `numbers` are those of the rows, shape (R,).
    """
    codes, used = pd.factorize(column.codes)
    number_of: dict[Chains, int] = {}
    merged = [number_of.setdefault(column.chains[i], len(number_of)) for i in used.tolist()]
    of_row = np.array(merged, np.int64)[codes]
    _, first = np.unique(of_row, return_index=True)
    at = used[codes[first]]
    return UniqueSequences(
        kind=kind,
        chains=[*number_of],
        keys=keys_array(kind, [*number_of]),
        of_row=of_row,
        first_rows=numbers[first],
        replaced=column.replaced[at],
        forms=[column.forms[i] for i in at.tolist()],
    )


def _check_file(
    layout: Layout, number: int, chunks: Iterable[Table], *, refuse: bool
) -> Iterator[SequenceTable]:
    """Check every row of one table; bad rows are refused once all of them are known."""
    file = layout.files[number]
    rows = 0
    skipped = SkippedRows()
    is_refused = False
    for chunk in chunks:
        pairs = _check_rows(chunk, layout.kinds, file)
        rows += len(pairs.frame)
        skipped.update(pairs.skipped)
        if refuse and file.options.bad_rows == "error" and pairs.skipped.bad:
            is_refused = True
        if not is_refused:  # else the rest is only read to list all bad rows
            yield pairs
    if is_refused or (not rows and len(skipped)):
        raise skipped.refusal(file.source, kept=rows)


def _check_rows(table: Table, kinds: Sequence[Kind], file: FileLayout) -> SequenceTable:
    """Check the sequences of some rows of a table."""
    options = file.options
    references = file.references
    parsed: dict[Kind, ParsedColumn] = {}
    unused: list[str] = []
    if "antibody" in kinds:
        parsed["antibody"] = parse_antibodies(table, options, references)
        unused = describe_unused_chains(parsed["antibody"], table, options, file.replaced)
    if "antigen" in kinds:
        parsed["antigen"] = parse_antigens(table, options, references)
    positions = table.frame.index.to_numpy(np.int64)
    numbers = positions + table.first_row
    if table.reader.numbers is not None:
        numbers = np.array(table.reader.numbers, np.int64)[positions]
    is_empty = table.are_empty()
    is_empty &= ~table.frame.index.isin([*table.reader.problems])  # of which a reader left nothing
    is_comment = table.are_comments()
    skipped = SkippedRows([(row, EMPTY_ROW) for row in numbers[is_empty].tolist()])
    skipped.rows += [(row, COMMENT) for row in numbers[is_comment].tolist()]
    is_empty |= is_comment
    is_bad = np.zeros(len(table.frame), np.bool_)
    for row, cell in _bad_cells(table, parsed).items():
        if not is_empty[row]:
            is_bad[row] = True
            skipped.rows.append((int(numbers[row]), cell))
    keep = np.flatnonzero(~(is_bad | is_empty))
    may_join_rows = bare_suffix(Path(table.source)) in IN_QUOTES
    line_breaks = count_line_breaks(table.frame) if may_join_rows else 0
    if len(skipped):
        table = replace(table, frame=table.frame.iloc[keep].reset_index(drop=True))
    sequences: dict[Kind, UniqueSequences] = {}
    for kind, column in parsed.items():
        kept = replace(column, codes=column.codes[keep])
        sequences[kind] = _unique(kind, kept, numbers[keep])
    forms: Counter[str] = Counter()
    replaced = 0
    for unique in sequences.values():
        forms.update(unique.forms)
        replaced += int(unique.replaced.sum())
    counts = {"rows": len(keep), "skipped_rows": len(skipped), **count_changes(forms, replaced)}
    counts["line_breaks"] = line_breaks
    remarks = table.reader.remarks if "antibody" in parsed else ()
    of_table = {field.name: getattr(table, field.name) for field in fields(Table)}
    return SequenceTable(
        **of_table,
        row_numbers=numbers[keep],
        positions=positions[keep],
        sequences=sequences,
        kinds=tuple(kind for kind in parsed if kind in options.kinds),
        skipped=skipped,
        counts=counts,
        ignored=[*remarks, *unused, *file.remarks],
        files=(file,),
        labels=(file.label,),
    )


def table_of(chains: Mapping[Kind, Sequence[Chains]]) -> pd.DataFrame:
    """Return a table of pairs, or of sequences of one kind, given the chains of each."""
    if "antibody" not in chains:
        return pd.DataFrame({"antigen": ["|".join(antigen) for antigen in chains["antigen"]]})
    table = pd.DataFrame(chains["antibody"], columns=["heavy", "light"])
    if "antigen" in chains:
        table["antigen"] = ["|".join(antigen) for antigen in chains["antigen"]]
    return table


def _bad_cells(table: Table, parsed: Mapping[Kind, ParsedColumn]) -> dict[int, BadCell]:
    """Find the first problem of each bad row, by its place here, in their order."""
    problems = table.reader.problems if "antibody" in parsed else {}
    is_bad = table.frame.index.isin([*problems])
    for column in parsed.values():
        is_bad |= column.is_bad()[column.codes]
    cells: dict[int, BadCell] = {}
    for row in np.flatnonzero(is_bad).tolist():
        problem = problems.get(int(table.frame.index[row]))
        if problem is not None:
            cells[row] = BadCell("antibody", *problem)
            continue
        for column in parsed.values():
            cell = column.bad.get(column.codes[row])
            if cell is not None:
                cells[row] = cell
                break
    return cells


# ---- changes and skipped rows -----------------------------------------------------------------


_COLUMNS = ("row", "kind", "reason", "text", "error")
LISTED_ERRORS = 5  # of one reason, before an error lists rows alone
LISTED_ROWS = 20  # of one error, before it counts the others
_LEFT = "left as written"
_STOPPED = "with a stop codon (*) behind the last residue of a chain, which is left out"
_FOUND = {
    "repeated": "with the heavy chain twice in one string, read once",
    "unrecognised": "without a known variable domain in its string, read as a heavy chain",
    "exchanged": "with heavy and light exchanged: put right",
    "misplaced": f"with heavy and light exchanged, {_LEFT}; see --chains auto",
    "same type": f"with two heavy or two light chains, {_LEFT}",
    "two domain": f"with two variable domains in one chain, {_LEFT}; see --chains auto",
    "unclear": "with a chain without a clear J segment, not numbered; --chains auto numbers all",
    "flanked": (
        "with residues beside the variable domain, such as a leader peptide, a tag, a linker or a "
        "constant domain, which harms models of tables that have both kinds; cut them off with "
        "--antibody-region fv"
    ),
    "unknown": "with a chain in which no variable domain is found",
    "cut": "cut to variable domains",
    "uncut": "with a chain without one certain variable domain, left whole",
    "light only": "with a light chain but no heavy one: is that missing by mistake?",
    "heavy only": "with a heavy chain but no light one: nanobodies, or is that missing by mistake?",
    "short": (
        "with a chain of fewer than 70 residues, too short for a variable domain: is it a CDR, a "
        "fragment, a name, or missing?"
    ),
    "short antigen": "with a chain of fewer than 20 residues: a peptide, or a name?",
    "stopped": _STOPPED,
    "stopped antigen": _STOPPED,
    "joined antigen": (
        "with another sign than |, such as a comma or _, between long runs of residues: read as "
        "several chains"
    ),
    "divided antigen": (
        "with blanks between runs of unequal lengths, read as one chain: if these are several, "
        "write | between them"
    ),
}
"""Notes by the words in `ParsedSequence.form`, which are of antibodies if they do not say."""


def _count_of(word: str) -> str:
    """Name the count of the sequences with a word in their forms."""
    counted_word = f"{word}s" if "antigen" in word else f"{word} antibodies"
    return counted_word.replace(" ", "_")


EMPTY_ROW = BadCell("", "empty row", "", "every cell is empty")
"""Skipped whatever ``--bad-rows`` is: it holds nothing, and spreadsheets do not show it."""
COMMENT = BadCell("", "comment", "", "is a comment, with nothing beside it")
_ALWAYS_SKIPPED = {
    COMMENT.reason: "of a comment (#)",
    EMPTY_ROW.reason: "with only empty cells",
    NOT_PRODUCTIVE: "without a productive chain",
}


@dataclass(slots=True)
class SkippedRows:
    """Rows that are empty or bad, by their numbers."""

    rows: list[tuple[int, BadCell]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bad(self) -> list[tuple[int, BadCell]]:
        """The rows that only ``--bad-rows skip`` skips, in the order of the table."""
        return [(row, cell) for row, cell in self._ordered() if cell.reason not in _ALWAYS_SKIPPED]

    def _ordered(self) -> list[tuple[int, BadCell]]:
        files = [*dict.fromkeys(cell.file for _, cell in self.rows)]

        def place(skipped: tuple[int, BadCell]) -> tuple[int, int]:
            row, cell = skipped
            return files.index(cell.file), row

        return sorted(self.rows, key=place)

    def update(self, other: SkippedRows) -> None:
        """Add the rows of another part of the table."""
        self.rows += other.rows

    def notes(self) -> list[str]:
        """Say how many rows each reason costs, and of how many distinct cells."""
        bad = self.bad
        texts_by_reason: dict[tuple[str, str], list[str]] = {}
        for _, cell in bad:
            texts_by_reason.setdefault((cell.kind, cell.reason), []).append(cell.text)
        parts = []
        for (kind, reason), texts in texts_by_reason.items():
            rows = counted(len(texts), "row")
            parts.append(f"{reason}: {rows}, {counted(len(set(texts)), kind)}")
        lines = []
        if bad:
            lines.append(f"{counted(len(bad), 'bad row')} skipped ({'; '.join(parts)})")
        ordered = self._ordered()
        for reason, words in _ALWAYS_SKIPPED.items():
            places = [_place(row, cell) for row, cell in ordered if cell.reason == reason]
            if places:
                count = counted(len(places), "row")
                lines.append(f"{count} {words} skipped; the first is row {places[0]}")
        return lines

    def refusal(self, source: str, *, kept: int) -> AbagError:
        """Make the error that lists the bad rows of a table; `kept` is how many rows are good."""
        bad = self.bad
        if not bad:
            reasons = dict.fromkeys(_ALWAYS_SKIPPED[cell.reason] for _, cell in self.rows)
            words = " or ".join(reasons)
            if words == _ALWAYS_SKIPPED[EMPTY_ROW.reason]:
                words = "empty"
            msg = (
                f"{source}: all {len(self)} rows are {words}; expected at least one with sequences."
            )
            return TableError(msg)
        (row, first), *_ = bad
        if len(bad) == 1:
            advice = " Or skip it with --bad-rows skip." if kept else ""
            error = f"{first.error} {first.advice}".rstrip()
            return first.refusal(f"{source}: row {_place(row, first)}, {error}{advice}")
        by_reason: dict[str, dict[str, dict[str, None]]] = {}
        for row, cell in bad:
            places = by_reason.setdefault(cell.reason, {})
            said = f", {cell.error}"
            if said not in places and len(places) >= LISTED_ERRORS:
                said = f": {cell.reason}, too"
            places.setdefault(said, {})[_place(row, cell)] = None  # once for cells of a matrix
        listed = []
        for places in by_reason.values():
            listed += [_rows([*rows]) + said for said, rows in places.items()]
        listed += dict.fromkeys(cell.advice for _, cell in bad if cell.advice)
        count = f"{len(bad):,} rows" if kept else f"all {len(bad):,} rows"
        fix = " Fix them, or skip them with --bad-rows skip." if kept else " Fix them."
        head = f"{source}: {count} are bad; expected valid sequences and labels.{fix}"
        return first.refusal("\n  ".join([head, *listed]))

    def write(self, path: Path) -> None:
        """Write a CSV with a line per row, in their order, but not over any other file."""
        header = ",".join(_COLUMNS)
        if path.exists() and not path.read_bytes().startswith(header.encode()):
            msg = (
                f"{path}: already exists and is not a list of skipped rows; expected a new file. "
                "Choose another --skipped."
            )
            raise TableError(msg)
        lines = []
        for row, cell in self._ordered():
            lines.append((row, cell.kind, cell.reason, cell.text, cell.error, cell.file))
        table = pd.DataFrame(lines, columns=[*_COLUMNS, "file"])
        has_files = any(cell.file for _, cell in self.rows)
        columns = [*_COLUMNS, "file"] if has_files else [*_COLUMNS]
        write_text(path, table[columns].to_csv(index=False))


def _place(row: int, cell: BadCell) -> str:
    """Return the number of a row, and of several files the one that has it."""
    return f"{row} of {cell.file}" if cell.file else str(row)


def _rows(places: list[str]) -> str:
    """Return the numbers of rows as messages list them."""
    more = f" and {len(places) - LISTED_ROWS:,} more" if len(places) > LISTED_ROWS else ""
    return f"{'row' if len(places) == 1 else 'rows'} {', '.join(places[:LISTED_ROWS])}{more}"


def describe_rows(used: int, skipped: int, others: Mapping[str, int] | None = None) -> str:
    """Say how many rows were read, and if not all of them are used, where the others are.

    `others` are counts of rows that are neither used nor skipped, by words for them.
    """
    beside = {"skipped": skipped, **(others or {})}
    read = used + sum(beside.values())
    if read == used:
        return counted(used, "row")
    parts = [f"{counted(read, 'row')} read"]
    parts += [f"{n:,} {words}" for words, n in beside.items() if n]
    return ", ".join([*parts, f"{used:,} used"])


def count_changes(forms: Mapping[str, int], replaced: int) -> dict[str, int]:
    """Name the counts of what was changed or found; arguments as in `SequencePart`."""
    words: Counter[str] = Counter()
    for form, number in forms.items():
        words.update(dict.fromkeys(form.split("+"), number))
    counts = {
        "split_antibodies": words["glued"] + words["linker"],
        "split_glued": words["glued"],
        "split_linker": words["linker"],
    }
    counts |= {_count_of(word): words[word] for word in _FOUND}
    counts["replaced_residues"] = replaced
    return counts


def count_line_breaks(frame: pd.DataFrame) -> int:
    """Count the cells of text files that contain a line break."""
    count = 0
    for _, column in frame.select_dtypes(exclude=["number", "bool"]).items():
        texts = [cell for cell in column.tolist() if isinstance(cell, str)]
        count += sum("\n" in text or "\r" in text for text in texts)
    return count


def describe_counts(counts: Mapping[str, int], skipped: SkippedRows) -> list[str]:
    """Describe what was done to a table, one printable line each; empty when nothing was."""
    nouns_and_notes = {
        "split_antibodies": (
            "antibody string",
            f"split into heavy and light ({counts['split_glued']:,} glued, "
            f"{counts['split_linker']:,} joined by a linker, which was removed)",
        )
    }
    for word, note in _FOUND.items():
        nouns_and_notes[_count_of(word)] = ("antigen" if "antigen" in word else "antibody", note)
    nouns_and_notes |= {
        "replaced_residues": ("residue", f"{', '.join(REPLACED)} read as X"),
        "line_breaks": ("cell", "with a line break: does an unmatched quotation mark join rows?"),
    }
    lines = skipped.notes()
    for name, (noun, note) in nouns_and_notes.items():
        if counts[name]:
            lines.append(f"{counted(counts[name], noun)} {note}")
    return lines
