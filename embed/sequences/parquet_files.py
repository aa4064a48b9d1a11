"""Parquet files as frames, a small part of the file in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

_BATCH_ROWS, _CHUNK_BYTES = 1_000, 64 << 20
"""Rows decoded at a time, and how much of them is joined to a chunk."""


def read_parquet(
    file: IO[bytes],
    *,
    rows: int | None,
    limit: int | None,
    as_written: bool,
    pick: Callable[[Sequence[str]], list[str]] | None,
) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Read a file from top to bottom: the names of all columns, and rows of some or all of them.

    Parameters
    ----------
    rows : int or None
        Most rows per frame; None: one frame.
    limit : int or None
        Rows to read from the top. More may be returned.
    as_written : bool
        Keep the file's types.
    pick : callable or None
        Chooses the columns to read by their names; None, or if it chooses none: all.

    Raises
    ------
    ValueError, pyarrow.ArrowException, OSError
        The file is damaged.
    """
    # By default every byte read is kept until the file is closed.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    names = parquet.schema_arrow.names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        msg = f"two columns are called {repeated[0]!r}; expected distinct names"
        raise ValueError(msg)
    # without any sequence column, everything is read and the caller names the missing role
    wanted = (pick(names) or None) if pick else None
    if wanted and _all_may_lack_cells(parquet.metadata, wanted):
        wanted = None  # only all of its cells tell whether a row is empty
    if rows is None and limit is None:
        yield names, _frame(parquet.read(columns=wanted), as_written)
        return
    batches = parquet.iter_batches(min(_BATCH_ROWS, rows or _BATCH_ROWS), columns=wanted)
    parts = _joined(_up_to(batches, limit), rows)
    if rows is None:
        whole = [*parts] or [parquet.schema_arrow.empty_table()]
        yield names, _frame(pa.concat_tables(whole), as_written)
        return
    for table in parts:
        yield names, _frame(table, as_written)


def _all_may_lack_cells(file: pq.FileMetaData, columns: Sequence[str]) -> bool:
    """Tell whether each of these columns may lack a cell, by the statistics in the file."""
    lacking = set()
    for group in map(file.row_group, range(file.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema in columns and not _is_filled(column.statistics):
                lacking.add(column.path_in_schema)
    return lacking.issuperset(columns)


def _is_filled(counts: pq.Statistics | None) -> bool:
    """Tell whether every cell is sure to have content: blanks come before letters."""
    if counts is None or not (counts.has_null_count and counts.has_min_max) or counts.null_count:
        return False
    return not isinstance(counts.min, str) or bool(counts.min.strip())


def _up_to(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Stop after `limit` rows."""
    read = 0
    for batch in batches:
        yield batch
        read += len(batch)
        if limit is not None and read >= limit:
            return


def _joined(batches: Iterable[pa.RecordBatch], rows: int | None) -> Iterator[pa.Table]:
    """Join batches to tables of up to `rows` rows and about `_CHUNK_BYTES`."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        if held and (rows is not None and held_rows + len(batch) > rows):
            yield pa.Table.from_batches(held)
            held, held_rows, held_bytes = [], 0, 0
        held.append(batch)
        held_rows, held_bytes = held_rows + len(batch), held_bytes + batch.nbytes
        if held_bytes > _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _frame(table: pa.Table, as_written: bool) -> pd.DataFrame:
    table.validate(full=True)  # text that is not UTF-8
    table = table.replace_schema_metadata()  # what pandas noted may be wrong
    found: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype if as_written else None)
    return found
