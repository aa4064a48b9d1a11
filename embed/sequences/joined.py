"""Several tables read as one: the roles of columns are found per table.

Promises that rows keep the order of the tables, and that no column is lost: columns of the same
role get the name that they have in the first table, others stay, and one more names the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

import pandas as pd

from abag.core.errors import TableError
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.sequences.columns import SEQUENCE_ROLES
from abag.embed.sequences.contents import roles_by_content, with_roles, without_doubtful_assay
from abag.embed.sequences.delimited import cell_text
from abag.embed.sequences.references import find_references, with_references
from abag.embed.sequences.table_files import EXCEL, bare_suffix
from abag.embed.sequences.table_options import TableOptions
from abag.embed.sequences.tables import (
    CHUNK_ROWS,
    OneTable,
    Table,
    TableLike,
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
