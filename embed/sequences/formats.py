"""Table formats: how each is read in chunks and written.

A format is one entry of `FORMATS`, found by the suffix of the file's name less ``.gz``; adding
one takes a reader, a writer and that entry.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag import AbagError
from abag.embed.sequences.sequence_files import (
    AIRR_MARKS,
    airr_text_columns,
    join_chains,
    read_fasta,
)
from abag.embed.sequences.spreadsheets import read_sheet


class BadTable(AbagError):
    """A table that cannot be read or written, or has no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read of a file, and how."""

    rows: int | None
    """Most rows per frame; None: one frame per file."""
    limit: int | None
    """Rows to read from the top; None: all. A reader may return more."""
    as_written: bool
    """Keep cells as in the file: text stays text, ``NA`` too, and Parquet keeps its types."""
    only_sequences: bool
    """Other columns may be left out."""
    sequence_columns: Callable[[Sequence[str]], list[str]]
    """Picks from all column names those that hold sequences, which are read as text."""


# pandas, pyarrow and openpyxl raise the latter for damaged files and types they cannot convert
_READING = (
    OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError, pa.ArrowException,
    TypeError, LookupError, AttributeError, RuntimeError, SyntaxError,
)  # fmt: skip
_FOREIGN = {
    b"\x1f\x8b": "compressed by gzip; rename it to end in .gz",
    b"PK\x03\x04": "a zip archive; if it is an Excel file, rename it to end in .xlsx",
    b"\xd0\xcf\x11\xe0": "an Excel file in an old format; export it as CSV",
    b"PAR1": "a Parquet file; rename it to end in .parquet",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
"""What text files are mistaken for, by their first bytes."""
_HIVE_EMPTY = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder whose rows have none."""
Chunk: TypeAlias = tuple[list[str], pd.DataFrame]
"""Names of all columns of the file; rows with some or all of these columns."""
WriteFrame: TypeAlias = Callable[[pd.DataFrame], None]


@dataclass(frozen=True, slots=True)
class TableFormat:
    """How one kind of file is read and written."""

    read: Callable[[IO[bytes], ReadOptions], Iterator[Chunk]]
    """Yields the rows from top to bottom."""
    open_writer: Callable[[IO[bytes]], AbstractContextManager[WriteFrame]] | None = None
    """Gives a function that appends the rows of a frame; all frames have the same columns. None:
    files of this kind are only read."""
    random_access: bool = False
    """The reader seeks, so that ``.gz`` has to be unpacked first."""


def read_file_chunks(path: Path, options: ReadOptions) -> Iterator[Chunk]:
    """Read a file, or a folder of Parquet files in the order of their names.

    Files and folders whose names begin with ``_`` or ``.`` belong to other tools and are skipped.
    A folder named ``column=value`` adds that column to the files inside it.

    Raises
    ------
    BadTable
        The path does not exist, or cannot be read as its format.
    """
    if not path.suffix and not path.exists():
        msg = f"{path}: does not exist; expected a table. Check the path."
        raise BadTable(msg)
    for file in _parquet_files(path) if path.is_dir() else [path]:
        suffix = suffix_of(file)
        if file.exists() and not file.is_file():  # a pipe would be waited for
            msg = f"{file}: is not a regular file; expected a table. Save it to a file first."
            raise BadTable(msg)
        try:
            form = FORMATS[suffix]
            with _opened(file, unpack=form.random_access) as stream:
                for names, frame in form.read(stream, options):
                    yield _with_partition_columns((names, frame), file, path, options)
        except FileNotFoundError as error:
            msg = f"{file}: does not exist; expected a {suffix} table. Check the path."
            raise BadTable(msg) from error
        except _READING as error:
            msg = (
                f"{file}: cannot be read: {_reason(error)}; expected a {suffix} table. "
                "Check the file."
            )
            raise BadTable(msg) from error


def _reason(error: BaseException) -> str:
    """Say in one line why a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):  # its position counts from the start of a block
        byte = error.object[error.start]
        return f"byte 0x{byte:02x} is not utf-8; save it as UTF-8 (in Excel, as CSV UTF-8)"
    if isinstance(error, pd.errors.EmptyDataError):
        return "it is empty"
    return " ".join(str(error).split())


def suffix_of(path: Path) -> str:
    """Return the key of a file's format in `FORMATS`; raise `BadTable` for an unknown one."""
    if (suffix := bare_suffix(path)) not in FORMATS:
        msg = (
            f"{path}: not a supported table format; expected a name that ends in "
            f"{', '.join(FORMATS)}, also with .gz, or a folder of .parquet files. "
            "Convert or rename it."
        )
        raise BadTable(msg)
    return suffix


def bare_suffix(path: Path) -> str:
    """Return the suffix of a file's name less ``.gz``, in lower case."""
    return Path(path.stem if is_gzip(path) else path.name).suffix.lower()


def is_gzip(path: Path) -> bool:
    """Tell whether a file's name says that it is compressed."""
    return path.suffix.lower() == ".gz"


def _parquet_files(folder: Path) -> list[Path]:
    files = [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    ]
    if not files:
        msg = f"{folder}: holds no .parquet file; expected a table. Give a file or such a folder."
        raise BadTable(msg)
    return files


@contextmanager
def _opened(path: Path, *, unpack: bool) -> Iterator[IO[bytes]]:
    with ExitStack() as files:
        file: Any = files.enter_context(path.open("rb"))
        if is_gzip(path):
            file = files.enter_context(gzip.open(file))
            if unpack:  # each seek backwards would decompress the file from its start
                packed, file = file, files.enter_context(tempfile.TemporaryFile(prefix="abag-"))
                shutil.copyfileobj(packed, file, 1 << 20)
                file.seek(0)
        yield file


CARRIAGE_RETURN = (
    "a carriage return without a line feed is in no quotation marks; expected line feeds"
)
_TOO_MANY_RETURNS = 3
_LONE_RETURN = re.compile(rb"\r[^\r\n]|\r{%d}\n" % _TOO_MANY_RETURNS)
"""Rows may end in a line feed after up to two returns."""
FOR_EXCEL = "its first line tells Excel the separator; remove that line"


class _CheckedReturns(io.RawIOBase):
    """A text file whose rows end in line feeds, in which a carriage return alone is refused.

    pandas would end a row there, and drop an empty cell after it.
    """

    def __init__(self, file: IO[bytes], separator: str) -> None:
        self._file = file
        self._opening = {separator.encode(), b"\n", b"\r", b'"'}
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._quoted, self._last, self._returns = False, b"\n", b""
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        part = self._file.read(len(buffer))
        buffer[: len(part)] = part
        self._follow(part)
        return len(part)

    def _follow(self, part: bytes) -> None:
        """Follow which text is in quotation marks, as the parser of pandas does."""
        first, *after_marks = part.split(b'"')
        self._follow_text(first)
        for text in after_marks:
            if self._returns:
                raise ValueError(CARRIAGE_RETURN)
            closes = self._quoted
            self._quoted = not closes and self._last in self._opening
            self._last = b'"' if closes else b""  # a mark right after a closing one opens again
            self._follow_text(text)

    def _follow_text(self, text: bytes) -> None:
        if not self._quoted and (self._returns or b"\r" in text):
            carried = self._returns + text  # the line feed after a return may be in the next part
            if _LONE_RETURN.search(carried):
                raise ValueError(CARRIAGE_RETURN)
            self._returns = carried[len(carried.rstrip(b"\r")) :][:_TOO_MANY_RETURNS]
        self._last = text[-1:] or self._last


def _with_partition_columns(chunk: Chunk, file: Path, root: Path, options: ReadOptions) -> Chunk:
    """Add the columns that the folders between `root` and `file` name, as Hive and Spark do."""
    names, frame = chunk
    values: dict[str, str] = {}
    for part in file.relative_to(root).parts[:-1]:
        name, mark, text = part.partition("=")
        if not mark:
            continue
        if (name := unquote(name)) in values:
            msg = f"{file}: the path names column {name!r} twice; expected once. Rename a folder."
            raise BadTable(msg)
        values[name] = "" if text == _HIVE_EMPTY else unquote(text)
        if name in frame:
            _check_agrees(frame[name], values[name], file)
    added = {name: text for name, text in values.items() if name not in names}
    if not added:
        return chunk
    names = [*names, *added]
    wanted = options.sequence_columns(names) if options.only_sequences else added
    return names, frame.assign(**{name: added[name] for name in added if name in wanted})


def _check_agrees(cells: pd.Series, text: str, file: Path) -> None:
    """Refuse a column of a file in which a cell is not what the path says."""
    number = pd.to_numeric(text, errors="coerce")
    same = cells.astype(str).eq(text) | pd.to_numeric(cells, errors="coerce").eq(number)
    same |= cells.isna() & (text == "")
    other = cells[~same.fillna(value=False).astype(bool)]
    if len(other):
        held = getattr(other.iloc[0], "item", lambda: other.iloc[0])()
        msg = (
            f"{file}: column {cells.name!r} is {held!r} in the file and {text!r} in its path; "
            "expected the same value. Remove one of the two, or rename the folder."
        )
        raise BadTable(msg)


# --- text -----------------------------------------------------------------------------------------


def _read_text(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    # Public tables have tabs in files called .csv, so the header line decides.
    header = file.readline()
    for magic, what in _FOREIGN.items():
        if header.startswith(magic):
            msg = f"it is {what}"
            raise ValueError(msg)
    if header.removeprefix(b"\xef\xbb\xbf").lower().startswith(b"sep="):
        raise ValueError(FOR_EXCEL)
    separator = max(",\t;", key=lambda mark: header.count(mark.encode()))
    rows = file
    if header.endswith(b"\n"):
        rows = io.BufferedReader(_CheckedReturns(file, separator), 1 << 20)
    yield from _read_separated(rows, separator, options)


def _read_separated(file: IO[Any], separator: str, options: ReadOptions) -> Iterator[Chunk]:
    read: dict[str, Any] = {"sep": separator, "low_memory": False}
    header_names = _header_names(file, separator)
    if options.as_written:
        read |= {"dtype": str, "keep_default_na": False}
        names = [*header_names]
        _refuse_repeated(names)
    else:
        file.seek(0)
        names = [*pd.read_csv(file, nrows=0, **read).columns]
        texts = [*options.sequence_columns(names), *airr_text_columns(names)]
        read["dtype"] = dict.fromkeys(texts, object)  # as str, half the time goes into Arrow
    file.seek(0)
    if AIRR_MARKS.issubset(names):  # the chains of a cell may be far apart
        yield from in_chunks(join_chains(pd.read_csv(file, **read)), options.rows)
        return
    rows: Any = pd.read_csv(file, chunksize=options.rows, nrows=options.limit, **read)
    for frame in [rows] if options.rows is None else rows:
        yield [*frame.columns], frame.fillna("") if options.as_written else frame


def _refuse_repeated(names: Sequence[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        msg = f"two columns are called {repeated[0]!r}; expected distinct names"
        raise ValueError(msg)


def _header_names(file: IO[Any], separator: str) -> pd.Series[str]:
    """Return the names in the header; refuse a first row that has more fields.

    pandas would take its first fields for an index, so that all columns shift, and no type tells an
    index of row numbers from that of pandas. Later rows with more fields are an error of pandas.
    """
    file.seek(0)
    top: dict[str, Any] = {"header": None, "dtype": str, "keep_default_na": False}
    try:
        rows: pd.DataFrame = pd.read_csv(file, sep=separator, nrows=2, **top)
    except pd.errors.ParserError as error:
        if "Expected" not in str(error):
            raise
        msg = (
            "rows have more fields than the header; remove lines above it, name the column of row "
            "names, or remove the separators at the ends of the rows"
        )
        raise ValueError(msg) from error
    return rows.iloc[0]


def in_chunks(whole: pd.DataFrame, rows: int | None) -> Iterator[Chunk]:
    """Cut a table that is in memory into chunks of rows; None: one chunk."""
    rows = rows or max(1, len(whole))
    for start in range(0, len(whole), rows):
        yield [*whole.columns], whole.iloc[start : start + rows]


def _read_fasta(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    lines = io.TextIOWrapper(file, "utf-8-sig")
    try:
        whole = read_fasta(lines)
    finally:
        lines.detach()  # the file is closed where it was opened
    yield from in_chunks(whole, options.rows)


def _read_excel(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(read_sheet(file))
    yield from _read_separated(text, ",", options)


def _has_cr(frame: pd.DataFrame) -> bool:
    text = frame.select_dtypes(exclude=["number", "bool"])
    columns: list[Iterable[object]] = [[*frame], *(text[name] for name in text)]
    return any("\r" in "".join(map(str, cells)) for cells in columns)


def _text_format(separator: str) -> TableFormat:
    @contextmanager
    def open_writer(file: IO[bytes]) -> Iterator[WriteFrame]:
        header = True

        def write(frame: pd.DataFrame) -> None:
            nonlocal header
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            # csv does not quote a lone CR, which readers take for the end of a row
            frame.to_csv(
                text, index=False, header=header, sep=separator, lineterminator="\n",
                quoting=csv.QUOTE_ALL if _has_cr(frame) else csv.QUOTE_MINIMAL,
            )  # fmt: skip
            text.detach()
            header = False

        yield write

    return TableFormat(_read_text, open_writer)


# --- Parquet --------------------------------------------------------------------------------------


def _read_parquet(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    # By default every byte read is kept until the file is closed.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    names = parquet.schema_arrow.names
    _refuse_repeated(names)
    wanted = (options.sequence_columns(names) or None) if options.only_sequences else None
    # without any sequence column, everything is read and the caller names the missing role
    if wanted and _all_may_lack_cells(parquet.metadata, wanted):
        wanted = None  # only all of its cells tell whether a row is empty
    rows = min(filter(None, (options.rows, options.limit, parquet.metadata.num_rows)), default=1)
    for batch in parquet.iter_batches(rows, columns=wanted):
        batch.validate(full=True)  # text that is not UTF-8
        table = batch.replace_schema_metadata()  # what pandas noted may be wrong
        types = pd.ArrowDtype if options.as_written else None
        yield names, table.to_pandas(types_mapper=types)


def _all_may_lack_cells(file: pq.FileMetaData, columns: Sequence[str]) -> bool:
    """Tell whether each of these columns may lack a cell, by the statistics in the file."""
    groups = map(file.row_group, range(file.num_row_groups))
    chunks = (group.column(at) for group in groups for at in range(group.num_columns))
    lacking = {chunk.path_in_schema for chunk in chunks if not _is_filled(chunk.statistics)}
    return lacking.issuperset(columns)


def _is_filled(counts: pq.Statistics | None) -> bool:
    """Tell whether every cell is sure to have content: blanks come before letters."""
    if counts is None or not (counts.has_null_count and counts.has_min_max) or counts.null_count:
        return False
    return not isinstance(counts.min, str) or bool(counts.min.strip())


@contextmanager
def _open_parquet_writer(file: IO[bytes]) -> Iterator[WriteFrame]:
    with ExitStack() as files:
        writer: pq.ParquetWriter | None = None

        def write(frame: pd.DataFrame) -> None:
            nonlocal writer
            if writer is None:
                writer = files.enter_context(pq.ParquetWriter(file, _schema_of(frame)))
            table = pa.Table.from_pandas(frame, schema=writer.schema, preserve_index=False)
            writer.write_table(table)

        yield write


def _schema_of(frame: pd.DataFrame) -> pa.Schema:
    """Return the types of the columns; pandas reads counts with empty cells as integers again."""
    nullable = [isinstance(one, pd.Int16Dtype | pd.BooleanDtype) for one in frame.dtypes]
    schema = pa.Table.from_pandas(frame, preserve_index=False).schema
    # of other columns, which may be those of another table, pandas sees what any reader sees
    ours = pa.Table.from_pandas(frame.loc[:, nullable], preserve_index=False).schema
    return schema.with_metadata(ours.metadata if any(nullable) else None)


FORMATS: dict[str, TableFormat] = {
    ".csv": _text_format(","),
    ".tsv": _text_format("\t"),
    ".parquet": TableFormat(_read_parquet, _open_parquet_writer, random_access=True),
    ".xlsx": TableFormat(_read_excel, random_access=True),
    ".fasta": TableFormat(_read_fasta),
    ".fa": TableFormat(_read_fasta),
}
"""By the suffix of the file's name, less ``.gz``."""
