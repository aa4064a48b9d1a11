"""Write a table in chunks; the file appears under its name only when it is whole."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag.core.errors import TableError
from abag.core.files import replacing
from abag.core.messages import first_line
from abag.embed.tables.columns import quote_names
from abag.embed.tables.formats import FORMATS, bare_suffix, is_gzip

WriteFrame: TypeAlias = Callable[[pd.DataFrame], None]
OpenWriter: TypeAlias = Callable[[IO[bytes]], AbstractContextManager[WriteFrame]]


@contextmanager
def writing_table(path: Path) -> Iterator[WriteFrame]:
    """Yield a function that appends rows to a table; the file is replaced as the block ends.

    The suffix of `path` decides on the format.

    Raises
    ------
    TableError
        If the format is unknown, rows have other columns than those before, or the file cannot be
        written.
    """
    open_writer = check_writable(path)
    columns: list[object] = []

    def append(frame: pd.DataFrame) -> None:
        if frame.empty:
            return
        names = [*frame.columns]
        if columns not in ([], names):
            msg = (
                f"{path}: rows with the columns {quote_names(names)} follow rows with "
                f"{quote_names(columns)}; expected the same columns in every file of the table. "
                "Predict these files one by one."
            )
            raise TableError(msg)
        columns[:] = names
        try:
            write(frame)
        except (pa.ArrowException, OverflowError, NotImplementedError) as error:
            msg = (
                f"{path}: a column of the table cannot be written ({first_line(error)}); expected "
                "text, numbers or times of the years 1 to 9999. Convert it."
            )
            raise TableError(msg) from error

    try:
        with ExitStack() as files:
            file: Any = files.enter_context(files.enter_context(replacing(path)).open("wb"))
            if is_gzip(path):  # without name and time: the same rows give the same bytes
                file = files.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
            write = files.enter_context(open_writer(file))
            yield append
    except OSError as error:
        if error.filename != str(path):  # of another file, read in the block
            raise
        fix = "Free disk space or choose another --out, and run the command again."
        msg = f"{path}: cannot be written ({error}). {fix}"
        raise TableError(msg) from error


def check_writable(path: Path) -> OpenWriter:
    """Return what opens a writer of a file's format; raise `TableError` if there is none."""
    suffix = bare_suffix(path)
    if suffix not in WRITERS:
        read = suffix in FORMATS
        problem = f"{suffix} files are only read" if read else "not a supported table format"
        endings = ", ".join(WRITERS)
        msg = (
            f"{path}: {problem}; expected a name that ends in {endings}, also with .gz. Rename it."
        )
        raise TableError(msg)
    return WRITERS[suffix]


@contextmanager
def _open_text(file: IO[bytes], separator: str) -> Iterator[WriteFrame]:
    def write(frame: pd.DataFrame) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        # csv does not quote a lone carriage return, which readers take for the end of a row
        others = frame.select_dtypes(exclude=["number", "bool"])
        has_return = False
        for name in others:
            cells = "".join(map(str, others[name]))
            has_return = has_return or "\r" in cells or "\r" in str(name)
        frame.to_csv(
            text,
            index=False,
            header=file.tell() == 0,
            sep=separator,
            lineterminator="\n",
            quoting=csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL,
        )
        text.detach()

    yield write


@contextmanager
def _open_parquet(file: IO[bytes]) -> Iterator[WriteFrame]:
    with ExitStack() as files:
        writers: list[pq.ParquetWriter] = []

        def write(frame: pd.DataFrame) -> None:
            schema = writers[0].schema if writers else None
            table = pa.Table.from_pandas(frame, schema, preserve_index=False)
            table = table.replace_schema_metadata()  # another table's readers see only its types
            if not writers:
                writers.append(files.enter_context(pq.ParquetWriter(file, table.schema)))
            writers[0].write_table(table)

        yield write


WRITERS: dict[str, OpenWriter] = {
    ".csv": partial(_open_text, separator=","),
    ".tsv": partial(_open_text, separator="\t"),
    ".parquet": _open_parquet,
}
"""Writers by the suffix of the file's name, less ``.gz``."""
