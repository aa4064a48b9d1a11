"""Reads tables for every command, whole or in chunks, and finds the roles of their columns.

Promises that every column and row of the file is there, unchanged, or that one line says what is
wrong with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.embed.sequences.chains import MISSING_TEXT
from abag.embed.sequences.columns import (
    AmbiguousColumn,
    MissingColumn,
    find_columns,
    quote_names,
    sequence_columns,
)
from abag.embed.sequences.formats import BadTable, ReadOptions, in_chunks, read_file_chunks

TableLike: TypeAlias = Path | str | pd.DataFrame
"""A file, a folder of Parquet files, or a table in memory."""

CHUNK_ROWS = 50_000
"""Rows in memory at a time: about 40 MB of antibodies and antigens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of a table, and the roles of its columns."""

    source: str
    """Name of the file, for messages."""
    frame: pd.DataFrame
    """Rows and columns in the order of the file; the index counts all rows of the table from 0."""
    columns: dict[str, str]
    """Role to column name."""
    ties: dict[str, list[str]]
    """Roles that several columns fit equally well."""
    names: Sequence[str]
    """All columns of the file, also those that were not read."""
    as_written: bool
    """Whether missing cells of text files are still text (`MISSING_TEXT`)."""

    @property
    def found(self) -> str:
        """The columns of the file, quoted for a message."""
        return quote_names(self.names)

    def column(self, role: str) -> str:
        """Return the name of the column that plays a role.

        Raises
        ------
        MissingColumn
            No column plays the role.
        AmbiguousColumn
            Several columns fit it equally well.
        """
        if role in self.columns:
            return self.columns[role]
        if role in self.ties:
            msg = (
                f"{self.source}: columns {quote_names(self.ties[role])} fit {role} equally well; "
                f"expected one. Choose with --column {role}=NAME."
            )
            raise AmbiguousColumn(msg)
        msg = (
            f"{self.source}: no column for {role}; found {self.found}. "
            f"Name it with --column {role}=NAME."
        )
        raise MissingColumn(msg)

    def has(self, role: str) -> bool:
        """Tell whether one or several columns fit the role."""
        return role in self.columns or role in self.ties

    def cells(self, role: str) -> pd.Series:
        """Return the cells of `column`, missing ones as pandas has them."""
        return self._with_missing(self.frame[self.column(role)])

    def _with_missing(self, cells: pd.Series) -> pd.Series:
        text = isinstance(cells.dtype, pd.StringDtype) or cells.dtype == np.dtype(object)
        if self.as_written and text:  # Parquet marks missing cells, and has other types here
            return cells.mask(cells.isin(MISSING_TEXT))
        return cells

    def are_empty(self) -> NDArray[np.bool_]:
        """Mark the rows in which every cell is empty or missing, shape (R,).

        Spreadsheets write such rows below and inside a table, and do not show them.
        """
        empty = np.full(len(self.frame), len(self.names) == self.frame.shape[1])
        for number in range(self.frame.shape[1]):
            if not empty.any():
                break
            cells = self._with_missing(self.frame.iloc[empty, number])
            empty[empty] = [
                cell.strip() == "" if isinstance(cell, str) else missing
                for cell, missing in zip(cells, cells.isna(), strict=True)
            ]
        return empty


def read_table(
    table: TableLike,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    as_written: bool = False,
) -> Table:
    """Read a whole table and find the roles of its columns.

    Parameters
    ----------
    table : path or DataFrame
        CSV or TSV (the header line decides on the separator), Parquet, Excel or FASTA, also with
        ``.gz``, or a folder of Parquet files.
    columns : mapping, optional
        Role to column name, as chosen by the user; takes precedence over what is detected.
    limit : int, optional
        Read only the first rows.
    as_written : bool
        Keep cells as in the file: text stays text (an id such as ``007``, or ``NA``), and Parquet
        keeps its types. Otherwise pandas chooses the types, except that sequences are text.

    Raises
    ------
    BadTable
        The table cannot be read, or has no rows.
    MissingColumn
        ``columns`` names a role or column that does not exist.
    """
    given = columns or {}
    read = read_table_chunks(table, columns=given, limit=limit, rows=None, as_written=as_written)
    first, *others = chunks = [*read]
    if not others:
        return first
    frame = pd.concat([chunk.frame for chunk in chunks], ignore_index=True)
    roles, ties = find_columns(frame.columns, given, first.source)
    return replace(first, frame=frame, columns=roles, ties=ties, names=[*frame.columns])


def read_table_chunks(
    table: TableLike,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    rows: int | None = CHUNK_ROWS,
    as_written: bool = False,
    only_sequences: bool = False,
) -> Iterator[Table]:
    """Read a table in chunks of rows, so that it may be larger than memory; see `read_table`.

    Parameters
    ----------
    rows : int or None
        Most rows per chunk; None for one chunk per file.
    only_sequences : bool
        The other columns are not needed; of Parquet they are not read.

    Raises
    ------
    BadTable, MissingColumn
        As for `read_table`.
    """
    given = columns or {}
    if isinstance(table, pd.DataFrame):
        source, chunks = "table", in_chunks(table, rows)
    else:
        source = Path(table).name or str(table)
        options = ReadOptions(
            rows=rows, limit=limit, as_written=as_written, only_sequences=only_sequences,
            sequence_columns=partial(sequence_columns, given=given, source=source),
        )  # fmt: skip
        chunks = read_file_chunks(Path(table), options)
    start = 0
    for names, whole in chunks:
        frame = whole if limit is None else whole.head(limit - start)
        if len(frame):
            roles, ties = find_columns(names, given, source)
            frame = frame.set_axis(pd.RangeIndex(start, start + len(frame)))
            yield Table(
                source=source, frame=frame, columns=roles, ties=ties, names=names,
                as_written=as_written,
            )  # fmt: skip
        start += len(frame)
        if start == limit:
            return
    if not start:
        msg = f"{source}: the table has no rows; expected at least one."
        raise BadTable(msg)
