"""A table's rows in and out, some at a time, every cell as it is in the file.

Text tables are read as text, so that an id such as 007 comes out as it went in; Parquet keeps its
types. A table is written under a partial name and renamed when it is whole.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag import AbagError
from abag.core.files import replacing

if TYPE_CHECKING:
    from types import TracebackType

ROWS = 50_000
"""Rows in memory at a time: about 40 MB of antibodies and antigens."""
KINDS = (".csv", ".tsv", ".parquet")
# What pandas reads as nothing: the rest of abag reads tables so.
BLANK = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)


class BadFile(AbagError):
    """A table that cannot be read, or cannot be written where it was asked for."""


def read_rows(
    table: Path | str | pd.DataFrame, *, limit: int | None = None, rows: int = ROWS
) -> Iterator[pd.DataFrame]:
    """Read a table from top to bottom, ``rows`` at a time.

    Parameters
    ----------
    table : path or DataFrame
        CSV or TSV (the header line tells the separator) or Parquet, each also with ``.gz``, or a
        folder of Parquet files, which are read in the order of their names.
    limit : int, optional
        Stop after so many rows.

    Yields
    ------
    DataFrame
        With a RangeIndex; cells of text tables are text, blank ones empty.

    Raises
    ------
    BadFile
    """
    left = limit
    for frame in _frames(table, rows):
        part = frame if left is None else frame.head(left)
        yield part.reset_index(drop=True)
        left = None if left is None else left - len(part)
        if left == 0:
            return


def blanked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in which ``NA`` and the like are nothing, as pandas reads a text table."""
    text = [
        name
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, pd.StringDtype) or dtype is np.dtype(object)  # not Parquet's
    ]
    blank = {str(name): frame[name].mask(frame[name].isin(BLANK)) for name in text}
    return frame.assign(**blank)


def _frames(table: Path | str | pd.DataFrame, rows: int) -> Iterator[pd.DataFrame]:
    if isinstance(table, pd.DataFrame):
        yield from (table.iloc[at : at + rows] for at in range(0, len(table), rows))
        return
    path = Path(table)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        msg = f"{path}: a folder without Parquet files; expected a table. Check the path."
        raise BadFile(msg)
    for file in files:
        try:
            with _opened(file) as stream:
                read = _read_parquet if kind_of(file) == ".parquet" else _read_text
                yield from read(stream, rows)
        except (OSError, EOFError, zlib.error, ValueError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            msg = f"{file}: cannot be read: {reason}; expected a {kind_of(file)[1:]} table. Check the file."  # noqa: E501
            raise BadFile(msg) from error


def _zipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a table, unpacked."""
    with ExitStack() as files:
        file: Any = files.enter_context(path.open("rb"))
        if _zipped(path):
            file = files.enter_context(gzip.open(file))
            if kind_of(path) == ".parquet":  # its reader goes back: gzip would begin anew each time
                packed, file = file, files.enter_context(tempfile.TemporaryFile(prefix="abag-"))
                shutil.copyfileobj(packed, file, 1 << 20)
        yield file


def kind_of(path: Path) -> str:
    """Tell a table's kind by its name: ``.csv``, ``.tsv`` or ``.parquet``.

    Raises
    ------
    BadFile
    """
    suffix = Path(path.stem if _zipped(path) else path.name).suffix.lower()
    if suffix not in KINDS:
        msg = f"{path}: no known kind of table; expected a name that ends in {', '.join(KINDS)} or these with .gz. Rename it."  # noqa: E501
        raise BadFile(msg)
    return suffix


def _read_parquet(file: IO[bytes], rows: int) -> Iterator[pd.DataFrame]:
    # by default every byte that was read is kept until the file is closed, and a column of a row
    # group, which may be the whole table's, comes in one piece
    frugal = {"pre_buffer": False, "buffer_size": 1 << 16}
    for batch in pq.ParquetFile(file, **frugal).iter_batches(batch_size=rows):
        yield pa.table(batch).to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)


def _read_text(file: IO[bytes], rows: int) -> Iterator[pd.DataFrame]:
    # Public tables come as .csv with tabs inside; the header line does not lie.
    first = file.readline()
    options: dict[str, Any] = {
        "sep": max(",\t;", key=lambda mark: first.count(mark.encode())),
        "dtype": str,
        "keep_default_na": False,
    }
    file.seek(0)
    names = pd.read_csv(file, header=None, nrows=1, **options).iloc[0]
    if names.duplicated().any():
        msg = (
            f"column {names[names.duplicated()].iloc[0]!r} is there twice; expected distinct names"
        )
        raise ValueError(msg)
    file.seek(0)
    for frame in pd.read_csv(file, chunksize=rows, **options):
        if not isinstance(frame.index, pd.RangeIndex):  # pandas took surplus fields for an index
            msg = "rows have more fields than the header"
            raise ValueError(msg)
        yield frame.fillna("")


class RowWriter:
    """Writes frames of the same columns under one another; whole under its name, or not there."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self._kind = kind_of(path)
        self._parquet: pq.ParquetWriter | None = None

    def __enter__(self) -> RowWriter:
        try:
            with ExitStack() as opening:
                partial = opening.enter_context(replacing(self.path))
                raw = opening.enter_context(partial.open("wb"))
                self._open = opening.pop_all()
        except OSError as error:
            msg = f"{self.path}: cannot be written ({error}). Give --out another place."
            raise BadFile(msg) from error
        # no name and no time inside: the same rows are the same bytes
        zipped = gzip.GzipFile("", "wb", 6, raw, mtime=0) if _zipped(self.path) else None
        self._file = self._open.enter_context(zipped) if zipped else raw
        return self

    def write(self, frame: pd.DataFrame) -> None:
        """Add rows."""
        if frame.empty:
            return
        try:
            if self._kind == ".parquet":
                self._write_parquet(frame)
            else:
                self._write_text(frame)
        except OSError as error:
            msg = f"{self.path}: could not be written ({error}). Free space and run the same command again."  # noqa: E501
            raise BadFile(msg) from error
        self.rows += len(frame)

    def _write_text(self, frame: pd.DataFrame) -> None:
        text = io.TextIOWrapper(cast("IO[bytes]", self._file), encoding="utf-8", newline="")
        separator = "\t" if self._kind == ".tsv" else ","
        frame.to_csv(text, index=False, header=self.rows == 0, sep=separator, lineterminator="\n")
        text.detach()

    def _write_parquet(self, frame: pd.DataFrame) -> None:
        if self._parquet is None:
            schema = pa.Table.from_pandas(frame, preserve_index=False).schema.remove_metadata()
            self._parquet = self._open.enter_context(pq.ParquetWriter(self._file, schema))
        table = pa.Table.from_pandas(frame, schema=self._parquet.schema, preserve_index=False)
        self._parquet.write_table(table)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._open.__exit__(kind, error, trace)
        except OSError as error:
            msg = f"{self.path}: could not be written ({error}). Free space and run the same command again."  # noqa: E501
            raise BadFile(msg) from error
