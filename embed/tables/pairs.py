"""Tables of antibody-antigen pairs: unique sequences, checked and keyed.

Nothing is cut, dropped or merged without being refused or counted. Labels are not read: their
columns are found by name and passed on. Several tables are read as one: rows keep the order of the
tables, and no column is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import sort_keys
from abag.core.errors import TableError
from abag.core.messages import quoted, say
from abag.embed.tables.chains import KINDS, Chains, Kind, keys_array
from abag.embed.tables.columns import SEQUENCE_ROLES
from abag.embed.tables.formats import EXCEL, bare_suffix, cell_text
from abag.embed.tables.notes import (
    EMPTY_ROW,
    BadCell,
    SkippedRows,
    count_changes,
    count_line_breaks,
    describe_counts,
)
from abag.embed.tables.options import TableOptions
from abag.embed.tables.sequences import (
    ParsedColumn,
    describe_unused_chains,
    parse_antibodies,
    parse_antigens,
)
from abag.embed.tables.sources import (
    NO_REFERENCES,
    References,
    domain_cells,
    drop_unused_roles,
    find_references,
    refuse_exchanged,
    roles_by_content,
    unused_columns,
    with_references,
    with_roles,
    without_doubtful_assay,
)
from abag.embed.tables.tables import (
    CHUNK_ROWS,
    OneTable,
    Table,
    TableLike,
    read_table,
    read_table_chunks,
)

FILE_COLUMNS = ("file", "source_file", "joined_file")
"""Names of the column that names the table of a row; the first that is free."""
_NEEDED = (*SEQUENCE_ROLES, "mutations", "antigen_mutations", "pkd")
"""Roles whose columns must not be mixed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of several tables."""

    table: OneTable
    source: str
    options: TableOptions
    """The user's options, with those of the chosen columns that this table has."""
    names: tuple[str, ...]
    """Its columns, as they are called in the joined table."""
    renamed: Mapping[str, str]
    """New names of columns, by the old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTables:
    """Several tables, and the columns that they have together."""

    parts: tuple[Part, ...]
    names: tuple[str, ...]
    columns: Mapping[str, str]
    """Names of columns by role."""
    file_column: str
    """Name of the column that names the table of a row."""
    is_text: bool
    """Whether cells that are read as they are written become text, because types differ."""

    @property
    def source(self) -> str:
        """The names of all tables, for messages."""
        return ", ".join(part.source for part in self.parts)

    def describe(self) -> list[str]:
        """Say which columns were renamed, one line per table that has some."""
        lines = [f"column {self.file_column!r} names the table of a row"]
        for part in self.parts:
            if part.renamed:
                pairs = ", ".join(f"{old!r} as {new!r}" for old, new in part.renamed.items())
                lines.append(f"{part.source}: columns are read as those of the others: {pairs}")
        return lines

    def align(self, frame: pd.DataFrame, part: Part, *, as_written: bool) -> pd.DataFrame:
        """Give rows of one table the columns of all."""
        aligned = frame.rename(columns=dict(part.renamed))
        if as_written and self.is_text:
            aligned = aligned.astype(object).map(cell_text)
        absent = [name for name in self.names if name not in aligned and name != self.file_column]
        fill = "" if as_written and self.is_text else None
        for name in absent:
            aligned[name] = pd.Series([fill] * len(aligned), aligned.index, dtype=object)
        aligned[self.file_column] = part.source
        return aligned[[*self.names]]


def several(table: TableLike) -> list[OneTable] | None:
    """Return the tables of a list of two or more, else None."""
    if isinstance(table, list | tuple) and len(table) > 1:
        return [one_table(part) for part in table]
    return None


def one_table(table: TableLike) -> OneTable:
    """Return the only table."""
    if isinstance(table, list | tuple):
        if len(table) == 1:
            return one_table(table[0])
        msg = f"{len(table)} tables: expected one. Give them one by one."
        raise TableError(msg)
    if not isinstance(table, str | PathLike | pd.DataFrame):
        msg = (
            f"table: {type(table).__name__}; expected a path, a pandas DataFrame, or a list of "
            "these. Wrap columns or records in pandas.DataFrame."
        )
        raise TableError(msg)
    return table


def join_tables(
    tables: Sequence[OneTable], options: TableOptions, kinds: Sequence[Kind] = KINDS
) -> JoinedTables:
    """Find the roles of the columns of each table, and the columns of all together.

    Raises
    ------
    AbagError
        If a table cannot be read, is given twice, or has two columns for what is one in another.
    """
    sources = _name_tables(tables)
    canonical: dict[str, str] = {}  # the name of a role's column, of the first table that has one
    tops = []
    for table, source in zip(tables, sources, strict=True):
        table_options, top = _read_top(table, source, options, kinds)
        tops.append((table, table_options, top))
        for role, name in top.columns.items():
            canonical.setdefault(role, name)
    parts = [_part(table, table_options, top, canonical) for table, table_options, top in tops]
    distinct: dict[str, None] = {}
    for part in parts:
        distinct |= dict.fromkeys(part.names)
    names = [*distinct]
    free = [name for name in FILE_COLUMNS if name not in names]
    if not free:
        msg = (
            f"{sources[0]}: has the columns {', '.join(FILE_COLUMNS)}, so that none is left to "
            "name the tables; expected one of these free. Rename one."
        )
        raise TableError(msg)
    have_types = {_has_types(table) for table in tables}
    columns_differ = len({part.names for part in parts}) > 1
    return JoinedTables(
        parts=tuple(parts),
        names=(*names, free[0]),
        columns={role: name for role, name in canonical.items() if name in names},
        file_column=free[0],
        is_text=columns_differ or len(have_types) > 1,
    )


def holds_texts(table: TableLike, *, matrix: bool = False) -> bool:
    """Tell whether a table, or one of several, is read as text, so that its columns have no types.

    A `matrix` always is.
    """
    return matrix or not all(map(_has_types, several(table) or [one_table(table)]))


def _has_types(table: OneTable) -> bool:
    """Tell whether the columns of a table have types, as those of text files do not."""
    if isinstance(table, pd.DataFrame):
        return True
    return Path(table).is_dir() or bare_suffix(Path(table)) == ".parquet"


def _name_tables(tables: Sequence[OneTable]) -> list[str]:
    """Name each table by its file, or by its path where files of two folders have one name."""
    paths = [Path(table) for table in tables if not isinstance(table, pd.DataFrame)]
    resolved = [path.resolve() for path in paths]
    for at, path in enumerate(resolved):
        if path in resolved[:at]:
            msg = f"{path.name}: is given twice; expected different tables. Remove one."
            raise TableError(msg)
    counts = Counter(path.name for path in paths)
    names = []
    for number, table in enumerate(tables, 1):
        if isinstance(table, pd.DataFrame):
            names.append(f"table {number}")
        else:
            path = Path(table)
            names.append(path.name if counts[path.name] == 1 else str(path))
    return names


def _read_top(
    table: OneTable, source: str, options: TableOptions, kinds: Sequence[Kind]
) -> tuple[TableOptions, Table]:
    """Read the first rows of a table with the options that are for it."""
    is_excel = not isinstance(table, pd.DataFrame) and bare_suffix(Path(table)) == EXCEL
    chosen = options if is_excel else replace(options, sheet=None)
    read = partial(read_table_chunks, table, chains=options.chains, kinds=kinds)
    header = next(read(limit=1, files=chosen))
    present = {}
    for role, name in options.columns.items():
        if not name or name in header.names:
            present[role] = name
    if options.matrix:
        present = {**options.columns}
    chosen = replace(chosen, columns=present)
    top = next(read(columns=present, files=chosen))
    top = replace(with_roles(top, roles_by_content(top, chosen)), source=source)
    top = without_doubtful_assay(top, chosen)
    return chosen, with_references(top, find_references(top, chosen, kinds))


def _part(table: OneTable, options: TableOptions, top: Table, canonical: Mapping[str, str]) -> Part:
    """Decide how the columns of one table are called in all of them."""
    renamed: dict[str, str] = {}
    for role in sorted(top.columns, key=lambda role: role not in _NEEDED):
        name = top.columns[role]
        new = canonical[role]
        if new == name or name in renamed:
            continue
        if new in map(str, top.names) or new in renamed.values():
            if role not in _NEEDED:
                continue
            msg = (
                f"{top.source}: column {name!r} is {role}, as {new!r} is in the first table, but "
                f"{new!r} is another column here; expected one name for one role. Rename one."
            )
            raise TableError(msg)
        renamed[name] = new
    names = tuple(renamed.get(name, name) for name in map(str, top.names))
    return Part(table=table, source=top.source, options=options, names=names, renamed=renamed)


def read_chunks(
    table: TableLike,
    options: TableOptions,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    rows: int | None = None,
) -> Iterator[Table]:
    """Read the rows of a table, or of several, in chunks and without checking them.

    Rows are numbered through all tables by the index of the frames. A chunk is of at most `rows`
    rows, by default of `CHUNK_ROWS`.
    """
    tables = several(table)
    read = partial(
        read_table_chunks,
        rows=CHUNK_ROWS if rows is None else rows,
        chains=options.chains,
        kinds=kinds,
        as_written=as_written,
    )
    if tables is None:
        whole = one_table(table)
        yield from read(whole, columns=options.columns, limit=options.limit, files=options)
        return
    joined = join_tables(tables, options, kinds)
    start = 0
    for part in joined.parts:
        limit = None if options.limit is None else options.limit - start
        if limit == 0:
            return
        chunks = read(part.table, columns=part.options.columns, limit=limit, files=part.options)
        for chunk in chunks:
            frame = joined.align(chunk.frame, part, as_written=as_written)
            frame = frame.set_axis(pd.RangeIndex(start, start + len(frame)))
            start += len(frame)
            yield replace(
                chunk,
                source=part.source,
                frame=frame,
                names=[*joined.names],
                columns=dict(joined.columns),
                ties={},
            )


_DEFAULTS = TableOptions()
ROWS_LOOKED_AT = 1_000
"""Rows of a Parquet file that tell whether more than its columns of sequences has to be read."""
_PLAIN_NUMBER = re.compile(r"[-+]?(\d{1,20}(\.\d{0,20})?|\.\d{1,20})(e[-+]?\d{1,4})?|-?inf", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences:
    """The distinct sequences of one kind in some rows, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """Shape (N, 16)."""
    of_row: NDArray[np.int64]
    """Shape (R,); row ``r`` holds ``chains[of_row[r]]``."""
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
    skipped: SkippedRows
    counts: dict[str, int]
    """Rows kept and skipped; unique antibodies that were split, residues that were replaced."""
    ignored: list[str]
    """One line per sequence column that is not used, or remark of the reader."""
    examples: Mapping[str, str]
    """Residues that `describe_counts` shows."""
    files: tuple[Part, ...] = ()
    """The tables, of several that are read as one."""
    file_of_row: NDArray[np.int64] | None = None
    """Shape (R,); index in `files` of the table of each row; None for a single table."""

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
        return self.ignored + describe_counts(self.counts, self.skipped, self.examples)

    def report_notes(self) -> None:
        """Send each of `notes` as a message."""
        for note in self.notes:
            say(f"{self.source}: {note}")

    def describe_cell(self, at: int | np.integer[Any], column: str) -> str:
        """Say where the cell of a row here is, and what it holds."""
        where = f"{self.source}: row {self.row_name(at)}, column {column}"
        return f"{where}: {self.cell_text(at, column)}"

    @property
    def all_sources(self) -> str:
        """Names of all tables of which this is a chunk."""
        sources = [part.source for part in self.files] or [self.source]
        return ", ".join(sources)

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

    Raises
    ------
    AbagError
        If a table cannot be read, has no column of sequences, or a row is bad and ``bad_rows`` is
        ``"error"``; if no row is good.
    """
    tables = several(table)
    if tables is not None:
        joined = join_tables(tables, options, kinds)

        def read_whole(part: TableLike, part_options: TableOptions) -> list[SequenceTable]:
            return [read_pairs(part, part_options, kinds=kinds, as_written=as_written)]

        return _as_one(joined, [*_read_parts(joined, options, read_whole)])
    whole = read_table(
        one_table(table),
        columns=options.columns,
        limit=options.limit,
        as_written=as_written,
        chains=options.chains,
        kinds=kinds,
        files=options,
    )
    (pairs,) = _checked([whole], kinds, options)
    return pairs


def read_pair_chunks(
    table: TableLike,
    options: TableOptions,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    only_sequences: bool = False,
    rows: int | None = None,
) -> Iterator[SequenceTable]:
    """Read a table as `read_pairs`, in chunks of rows; a chunk without good rows is empty.

    A chunk is of at most `rows` rows, by default of `CHUNK_ROWS`.
    """
    rows = CHUNK_ROWS if rows is None else rows
    tables = several(table)
    if tables is not None:
        joined = join_tables(tables, options, kinds)
        read = partial(read_pair_chunks, kinds=kinds, as_written=as_written, rows=rows)
        parts = _read_parts(joined, options, read)
        return (replace(part, ignored=[*joined.describe(), *part.ignored]) for part in parts)
    whole = one_table(table)
    is_parquet = not isinstance(whole, pd.DataFrame) and (
        Path(whole).is_dir() or bare_suffix(Path(whole)) == ".parquet"
    )
    # only of Parquet can columns be left out
    if only_sequences and is_parquet and not options.refers:
        only_sequences = not _has_more_chains(whole, options)
    chunks = read_table_chunks(
        whole,
        columns=options.columns,
        limit=options.limit,
        rows=rows,
        as_written=as_written,
        only_sequences=only_sequences and not options.refers,
        chains=options.chains,
        kinds=kinds,
        files=options,
    )
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
        read,
        source=part.source,
        frame=frame,
        names=[*joined.names],
        columns={**joined.columns, **roles},
        positions=read.positions + start,
        skipped=read.skipped.of_file(part.source),
        ignored=[f"{part.source}: {note}" for note in read.ignored],
        files=joined.parts,
        file_of_row=np.full(len(frame), number),
    )


def _as_one(joined: JoinedTables, parts: Sequence[SequenceTable]) -> SequenceTable:
    """Join the rows of several tables, each with the columns of all."""
    first = parts[0]
    # columns that a table lacks have no type there, and are left to the others
    frames = [part.frame.dropna(axis="columns", how="all") for part in parts]
    frame = pd.concat(frames, ignore_index=True).reindex(columns=[*joined.names])
    counts: Counter[str] = Counter()
    skipped = SkippedRows()
    ignored = joined.describe()
    examples: dict[str, str] = {}
    used: set[str] = set()
    for part in parts:
        counts.update(part.counts)
        skipped.update(part.skipped)
        ignored += part.ignored
        examples = {**part.examples, **examples}  # those of the first table stay
        used.update(part.columns.values())
    columns = {role: name for role, name in joined.columns.items() if name in used}
    sequences: dict[Kind, UniqueSequences] = {}
    for kind in first.sequences:
        sequences[kind] = _merged(kind, [part.sequences[kind] for part in parts])
    row_numbers = [part.row_numbers for part in parts]
    positions = [part.positions for part in parts]
    return replace(
        first,
        source=joined.source,
        frame=frame,
        columns=columns,
        row_numbers=np.concatenate(row_numbers),
        positions=np.concatenate(positions),
        sequences=sequences,
        skipped=skipped,
        counts=dict(counts),
        ignored=ignored,
        examples=examples,
        file_of_row=np.concatenate([part.file_of_row for part in parts]),
    )


def _merged(kind: Kind, parts: Sequence[UniqueSequences]) -> UniqueSequences:
    """Join the sequences of several tables; those that several have are one."""
    chains: list[Chains] = []
    forms: list[str] = []
    indices = []  # of the sequence of each row, among those of all parts
    first_rows = []
    replaced = []
    for part in parts:
        indices.append(part.of_row + len(chains))
        chains += part.chains
        forms += part.forms
        first_rows.append(part.first_rows)
        replaced.append(part.replaced)
    numbers = _number_distinct(chains)
    merged = np.array([numbers[sequence] for sequence in chains], np.int64)
    _, first = np.unique(merged, return_index=True)
    return UniqueSequences(
        kind=kind,
        chains=[*numbers],
        keys=keys_array(kind, [*numbers]),
        of_row=merged[np.concatenate(indices)],
        first_rows=np.concatenate(first_rows)[first],
        replaced=np.concatenate(replaced)[first],
        forms=[forms[i] for i in first.tolist()],
    )


def _has_more_chains(table: OneTable, options: TableOptions) -> bool:
    """Tell whether a column beside those of sequences holds variable domains, by the first rows."""
    top = next(
        read_table_chunks(
            table,
            columns=options.columns,
            limit=ROWS_LOOKED_AT,
            chains=options.chains,
            files=options,
        )
    )
    return any(domain_cells(top, name) for name in unused_columns(top))


def _number_distinct(sequences: Iterable[Chains]) -> dict[Chains, int]:
    """Number distinct sequences from 0, in the order in which they occur first."""
    return {sequence: number for number, sequence in enumerate(dict.fromkeys(sequences))}


def _checked(
    chunks: Iterable[Table], kinds: Sequence[Kind], options: TableOptions
) -> Iterator[SequenceTable]:
    """Check every row of a table; the first chunk decides what columns hold and cells refer to."""
    rows = 0
    skipped = SkippedRows()
    is_refused = False
    roles: dict[str, str] | None = None
    references = NO_REFERENCES
    for whole in chunks:
        if roles is None:
            roles = roles_by_content(whole, options)
            references = find_references(with_roles(whole, roles), options, kinds)
            remarks = [
                f"column {name!r} is used as {role}: it holds {role} variable domains"
                for role, name in roles.items()
                if not whole.has(role)
            ]
            references = replace(references, remarks=(*remarks, *references.remarks))
        chunk = with_references(with_roles(whole, roles), references)
        pairs = _check_rows(chunk, kinds, options, references)
        rows += len(pairs.frame)
        skipped.update(pairs.skipped)
        if options.bad_rows == "error" and pairs.skipped.bad:
            is_refused = True
        if not is_refused:  # else the rest is only read to list all bad rows
            yield pairs
    if is_refused or not rows:
        raise skipped.refusal(pairs.source, kept=rows)


def _check_rows(
    whole: Table, kinds: Sequence[Kind], options: TableOptions, references: References
) -> SequenceTable:
    table, ignored = drop_unused_roles(whole, options)
    if table.frame.index[0] == 0:  # the first chunk decides
        refuse_exchanged(table, options, kinds)
    parsed: dict[Kind, ParsedColumn] = {}
    if "antibody" in kinds:
        parsed["antibody"] = parse_antibodies(table, options, references)
        # a string that heavy and light columns replace may have a chain that these lack
        replaced = {role: name for role, name in whole.columns.items() if role not in table.columns}
        if options.parent is None:
            replaced.pop("antibody", None)
        names = [*replaced.values()]
        ignored += describe_unused_chains(parsed["antibody"], table, options, names)
    if "antigen" in kinds:
        parsed["antigen"] = parse_antigens(table, options, references)
    positions = table.frame.index.to_numpy(np.int64)
    numbers = positions + table.first_row
    if table.reader.numbers is not None:
        numbers = np.array(table.reader.numbers, np.int64)[positions]
    is_empty = whole.are_empty()
    skipped = SkippedRows([(row, EMPTY_ROW) for row in numbers[is_empty].tolist()])
    is_bad = np.zeros(len(table.frame), np.bool_)
    for row, cell in _bad_cells(table, parsed).items():
        if not is_empty[row]:
            is_bad[row] = True
            skipped.rows.append((int(numbers[row]), cell))
    keep = np.flatnonzero(~(is_bad | is_empty))
    if len(skipped):
        table = replace(table, frame=table.frame.iloc[keep].reset_index(drop=True))
    sequences = {kind: _unique(kind, column, keep, numbers) for kind, column in parsed.items()}
    counts = {"rows": len(keep), "skipped_rows": len(skipped), **_count_changes(sequences)}
    # in text, an unmatched quotation mark makes one cell of several rows
    may_join_rows = bare_suffix(Path(whole.source)) in (".csv", ".tsv", ".txt")
    counts["line_breaks"] = count_line_breaks(whole.frame) if may_join_rows else 0
    remarks = table.reader.remarks if "antibody" in parsed else ()
    examples: dict[str, str] = {}
    for column in parsed.values():  # no word is of both kinds
        examples |= column.examples
    of_table = {field.name: getattr(table, field.name) for field in fields(Table)}
    return SequenceTable(
        **of_table,
        row_numbers=numbers[keep],
        positions=positions[keep],
        sequences=sequences,
        skipped=skipped,
        counts=counts,
        ignored=[*remarks, *ignored, *references.remarks],
        examples=examples,
    )


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


def _count_changes(sequences: Mapping[Kind, UniqueSequences]) -> dict[str, int]:
    forms: Counter[str] = Counter()
    replaced = 0
    for unique in sequences.values():
        forms.update(unique.forms)
        replaced += int(unique.replaced.sum())
    return count_changes(forms, replaced)


def _unique(
    kind: Kind, column: ParsedColumn, keep: NDArray[np.int64], numbers: NDArray[np.int64]
) -> UniqueSequences:
    """Merge cells with the same sequence, for instance in upper and in lower case."""
    codes, used = pd.factorize(column.codes[keep])
    chains = [column.chains[i] for i in used.tolist()]
    distinct = _number_distinct(chains)
    index = np.array([distinct[sequence] for sequence in chains], np.int64)[codes]
    _, first = np.unique(index, return_index=True)
    cells = column.codes[keep[first]]
    return UniqueSequences(
        kind=kind,
        chains=[*distinct],
        keys=keys_array(kind, [*distinct]),
        of_row=index,
        first_rows=numbers[keep[first]],
        replaced=column.replaced[cells],
        forms=[column.forms[i] for i in cells.tolist()],
    )
