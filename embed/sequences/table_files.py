"""Files of tables, read by their formats.

Promises that every column and row of the file is there, unchanged, or that one line says what is
wrong with the file. A format is one entry of `FORMATS`, found by the suffix of the file's name less
``.gz``; only those of `table_writer.WRITERS` are written, too.
"""

from __future__ import annotations

import gzip
import io
import shlex
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_string_dtype

from abag.core.errors import TableError
from abag.embed.sequences.delimited import Chunk, ReadOptions, read_text, refuse_repeated
from abag.embed.sequences.excel import MissingReader, read_excel
from abag.embed.sequences.fasta import read_fasta
from abag.embed.sequences.json_lines import read_json_lines

EXCEL = ".xlsx"
_READING = (
    OSError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    ValueError,
    pa.ArrowException,
    # pandas, pyarrow and openpyxl raise these for damaged files and types they cannot convert
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    SyntaxError,
    OverflowError,  # pandas 3.0, of a whole number with hundreds of digits
)


def read_file_chunks(path: Path, options: ReadOptions) -> Iterator[Chunk]:
    """Read a file, or a folder of Parquet files in the order of their names.

    Raises
    ------
    TableError
        If a file cannot be read, or is of an unknown format.
    """
    if not path.exists():
        kind = path.suffix or "readable"
        msg = f"{path}: does not exist; expected a {kind} table. Check the path."
        raise TableError(msg)
    for file in _parquet_files(path) if path.is_dir() else [path]:
        suffix = bare_suffix(file)
        _refuse_unreadable(file, suffix, options.sheet)
        try:
            opening: Any = gzip.open if is_gzip(file) else Path.open
            with opening(file, "rb") as stream:
                if is_gzip(file) and suffix in _SEEKING:
                    # each seek backwards would decompress the file from its start
                    yield from FORMATS[suffix](io.BytesIO(stream.read()), options)
                else:
                    yield from FORMATS[suffix](stream, options)
        except MissingReader as error:
            msg = (
                f"{file}: Excel files need openpyxl, which is not installed. Run pip install "
                "openpyxl, or save the sheet as CSV."
            )
            raise TableError(msg) from error
        except MemoryError as error:
            msg = (
                f"{file}: needs more memory than there is ({_reason(error) or 'no reason given'}); "
                "expected a table that fits. Divide it, or use a machine with more memory."
            )
            raise TableError(msg) from error
        except _READING as error:
            msg = (
                f"{file}: cannot be read: {_reason(error)}; expected a {suffix} table. "
                "Check the file."
            )
            raise TableError(msg) from error


def _refuse_unreadable(file: Path, suffix: str, sheet: str | None) -> None:
    """Refuse a file of a format, or a kind of file, that cannot be read with these options."""
    if suffix not in FORMATS:
        msg = (
            f"{file}: not a supported table format; expected a name that ends in "
            f"{', '.join(FORMATS)}, also with .gz, or a folder of .parquet files. "
            "Convert or rename it."
        )
        raise TableError(msg)
    if sheet is not None and suffix != EXCEL:
        msg = (
            f"{file}: is not an Excel file; expected one that ends in {EXCEL} with --sheet "
            f"{shlex.quote(sheet)}. Leave --sheet out."
        )
        raise TableError(msg)
    if not file.is_file():  # a pipe would be waited for
        msg = f"{file}: is not a regular file; expected a table. Save it to a file first."
        raise TableError(msg)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):  # its position counts from the start of a block
        byte = error.object[error.start]
        return f"byte 0x{byte:02x} is not utf-8; save it as UTF-8 (in Excel, as CSV UTF-8)"
    if isinstance(error, pd.errors.EmptyDataError):
        return "it is empty"
    return " ".join(str(error).split())


def bare_suffix(path: Path) -> str:
    """Return the suffix of a file's name less ``.gz``, in lower case."""
    return Path(path.stem if is_gzip(path) else path.name).suffix.lower()


def is_gzip(path: Path) -> bool:
    """Tell whether a file's name says that it is compressed."""
    return path.suffix.lower() == ".gz"


def _parquet_files(folder: Path) -> list[Path]:
    """List the files of a folder, less those that other readers of such folders leave out."""
    files = []
    for path in sorted(folder.rglob("*.parquet")):
        inside = path.relative_to(folder)
        if any(part.startswith(("_", ".")) for part in inside.parts):  # such as Spark's _temporary
            continue
        if "=" in str(inside.parent):
            msg = (
                f"{path.parent}: the name of this folder states a column, which is not supported; "
                "expected all columns in the files. Write the column into them, and rename the "
                "folder."
            )
            raise TableError(msg)
        files.append(path)
    if not files:
        msg = f"{folder}: holds no .parquet file; expected a table. Give a file or such a folder."
        raise TableError(msg)
    return files


def _read_parquet(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    # By default every byte read is kept until the file is closed.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    names = parquet.schema_arrow.names
    refuse_repeated(names)
    for field in parquet.schema_arrow:  # of all columns, before sequences are encoded
        _refuse_unsupported(field)
    wanted = None
    if options.only_sequences:
        # without any sequence column, everything is read and the caller names the missing role
        wanted = options.sequence_columns(names) or None
    limits = filter(None, (options.rows, options.limit, parquet.metadata.num_rows))
    rows = min(limits, default=1)  # a batch of 0 rows is an error, also of an empty file
    for batch in parquet.iter_batches(rows, columns=wanted):
        batch.validate(full=True)  # text that is not UTF-8
        fields = [field.with_type(_without_view(field.type)) for field in batch.schema]
        table = batch.cast(pa.schema(fields))  # without metadata: what pandas noted may be wrong
        types = pd.ArrowDtype if options.as_written else None
        yield Chunk(names, _with_shared_texts(table.to_pandas(types_mapper=types)))


def _with_shared_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return categories of text as text, of which each row refers to one of the categories."""
    for name, dtype in frame.dtypes.items():
        # pandas makes a new text per row each time it goes through categories
        if isinstance(dtype, pd.CategoricalDtype) and is_string_dtype(dtype.categories.dtype):
            texts = np.array([*dtype.categories, None], object)
            codes = frame[name].cat.codes.to_numpy()  # -1: missing
            frame[name] = pd.Series(texts[codes], frame.index, object)
    return frame


def _without_view(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values for which all functions of pandas and Arrow exist."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def _refuse_unsupported(field: pa.Field) -> None:
    """Raise ValueError for a column of a type that fails when its values are used."""
    inner = [field.type]
    for kind in inner:  # grows: the types that a list or a record consists of
        inner += [kind.field(number).type for number in range(kind.num_fields)]
        if pa.types.is_dictionary(kind):
            inner.append(kind.value_type)
        elif isinstance(kind, pa.BaseExtensionType):
            inner.append(kind.storage_type)
    for kind in inner[1:]:
        if kind != _without_view(kind):  # Arrow casts views, but not those inside another type
            msg = f"column {field.name!r} has the type {field.type}; convert it to {pa.string()}"
            raise ValueError(msg)
    for kind in filter(pa.types.is_timestamp, inner):
        try:
            pa.scalar(0, kind).as_py()  # Arrow accepts any zone, and looks it up only here
        except (ValueError, KeyError) as error:  # of zoneinfo, or of pytz if it is installed
            zone = f"times of the unknown zone {kind.tz!r}"
            msg = f"column {field.name!r} has {zone}; convert it to UTC"
            raise ValueError(msg) from error


FORMATS: dict[str, Callable[[IO[bytes], ReadOptions], Iterator[Chunk]]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".parquet": _read_parquet,
    EXCEL: read_excel,
    ".fasta": read_fasta,
    ".fa": read_fasta,
}
"""Readers by the suffix of the file's name, less ``.gz``: each yields rows from top to bottom."""
_SEEKING = (".parquet", EXCEL)  # formats whose readers need random access
