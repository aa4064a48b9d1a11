"""Parquet files as frames, a small part of the file in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from abag.embed.sequences.limits import MAX_ROW_BYTES, TOO_LONG, check_fits_memory
from abag.embed.sequences.parquet_pages import Pages, measure_pages

_BATCH_ROWS, _BATCH_BYTES = 1_000, 64 << 20
"""Rows decoded at a time, and how much of them is joined to a chunk."""
_SHARED_BYTES = 4 << 20
"""How much is joined of texts that share prefixes, and decoded at a time, or one row."""
_USUAL_SHARED_BYTES = 24 << 20
"""The latter where pages have a usual size (1 MiB): nearly all texts are much shorter, and rows
decoded one by one take ten times as long."""


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
        Keep the file's types. Otherwise text is an object, and equal texts near each other are one.
    pick : callable or None
        Chooses the columns to read by their names; None, or if it chooses none: all.

    Raises
    ------
    ValueError, pyarrow.ArrowException, OSError
        The file is damaged, or has rows or a size that would fill the memory.
    """
    # By default every byte read is kept until the file is closed, and a column of a row group,
    # which may be the whole table, is decoded at once.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    names = parquet.schema_arrow.names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        msg = f"two columns are called {repeated[0]!r}; expected distinct names"
        raise ValueError(msg)
    # without any sequence column, everything is read and the caller names the missing role
    wanted = (pick(names) or None) if pick else None
    if wanted and _all_may_lack_cells(parquet.metadata, wanted):
        wanted = None  # only all of its cells tell whether a row is empty
    pages = measure_pages(file, parquet.schema, wanted)
    if pages.mean_row_bytes > MAX_ROW_BYTES:
        raise ValueError(TOO_LONG)
    check_fits_memory(pages.largest_bytes)
    if rows is None:
        share = 1.0 if limit is None else min(1.0, limit / max(1, parquet.metadata.num_rows))
        check_fits_memory(int(pages.total_bytes * share))
    step = _rows_per_batch(pages, rows)
    most_bytes = _SHARED_BYTES if pages.prefix_bytes else _BATCH_BYTES

    def read() -> Iterator[pa.Table]:
        batches = _bounded(parquet.iter_batches(step, columns=wanted), limit)
        return _join_batches(batches, rows or most_bytes, step, most_bytes)

    if rows is None:
        if pages.prefix_bytes:  # the pages do not tell how long the texts are
            _check_unpacked(read(), as_written)
        yield names, _whole(read(), as_written)
        return
    for table in read():
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


def _rows_per_batch(pages: Pages, rows: int | None) -> int:
    longest = max(1, pages.mean_row_bytes, pages.longest_bytes)
    most = _BATCH_ROWS
    if pages.prefix_bytes:
        is_usual = pages.prefix_bytes <= _SHARED_BYTES
        shared_bytes = _USUAL_SHARED_BYTES if is_usual else _SHARED_BYTES
        most = max(1, shared_bytes // pages.prefix_bytes)
    return min(_BATCH_ROWS, rows or _BATCH_ROWS, most, max(1, _BATCH_BYTES // longest))


def _bounded(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Stop after `limit` rows, and at rows that are longer than the pages told."""
    read = 0
    for batch in batches:
        if batch.nbytes > MAX_ROW_BYTES * max(1, len(batch)):
            raise ValueError(TOO_LONG)
        yield batch
        read += len(batch)
        if limit is not None and read >= limit:
            return


def _join_batches(
    batches: Iterable[pa.RecordBatch], rows: int, step: int, most_bytes: int
) -> Iterator[pa.Table]:
    """Join batches of up to `step` rows to tables of up to `rows` rows and about `most_bytes`."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_rows, held_bytes = held_rows + len(batch), held_bytes + batch.nbytes
        if held_rows > rows - step or held_bytes > most_bytes:
            yield _checked(held)
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield _checked(held)


def _checked(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    table.validate(full=True)  # text that is not UTF-8
    return table.replace_schema_metadata()  # what pandas noted may be wrong


def _frame(table: pa.Table, as_written: bool) -> pd.DataFrame:
    found: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype if as_written else None)
    return found


def _check_unpacked(tables: Iterable[pa.Table], as_written: bool) -> None:
    """Refuse tables that would fill the memory, as `_whole` does, but hold one at a time."""
    held_bytes = 0
    for table in tables:
        texts = [] if as_written else _texts(table)
        held_bytes += table.drop_columns(texts).nbytes
        for name in texts:
            column = table.column(name)
            # a copy of one long text would be most of the memory that this takes
            held_bytes += (column.unique() if len(column) > 1 else column).nbytes + 8 * len(column)
        check_fits_memory(held_bytes)


def _texts(table: pa.Table) -> list[str]:
    """Return the names of the columns of text."""
    return [one.name for one in table.schema if _is_text(one.type)]


def _whole(tables: Iterable[pa.Table], as_written: bool) -> pd.DataFrame:
    """Join tables to one frame; without `as_written`, equal texts of a table are one object."""
    texts: dict[str, list[NDArray[Any]]] = {}
    others: list[pa.Table] = []
    names: list[str] = []
    held_bytes = 0
    for table in tables:
        names = table.column_names
        shared = [] if as_written else _texts(table)
        for name in shared:
            cells, cell_bytes = _objects(table.column(name))
            texts.setdefault(name, []).append(cells)
            held_bytes += cell_bytes
        others.append(table.drop_columns(shared))
        held_bytes += others[-1].nbytes
        check_fits_memory(held_bytes)
    if not others:
        return pd.DataFrame()
    columns: dict[str, Any] = {}
    plain = [name for name in names if name not in texts]
    if plain:
        columns |= dict(_frame(pa.concat_tables(others), as_written))
    for name, parts in texts.items():
        columns[name] = pd.Series(np.concatenate(parts), dtype=object)
    return pd.DataFrame({name: columns[name] for name in names})


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _objects(column: pa.ChunkedArray) -> tuple[NDArray[Any], int]:
    """Return texts as Python objects, equal ones as the same, NaN for missing; and their bytes."""
    array = column.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    distinct = np.array([*array.dictionary.to_pylist(), np.nan], dtype=object)
    index = array.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)
    return distinct[index], array.dictionary.nbytes + 8 * len(index)
