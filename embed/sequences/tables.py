"""Read tables for every command, whole or in chunks, and find the roles of their columns.

Promises that every column and row of the file is there, unchanged, or that one line says what is
wrong with the file. A format is one entry of `FORMATS`, found by the suffix of the file's name less
``.gz``; only those of `table_writer.WRITERS` are written, too.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shlex
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from abag.core.errors import ColumnError, TableError
from abag.embed.sequences.airr import AIRR_TEXTS, NO_NOTES, ReaderNotes, is_airr, join_cells
from abag.embed.sequences.chains import KINDS, MISSING_TEXT, Kind
from abag.embed.sequences.columns import (
    SEQUENCE_ROLES,
    MissingColumn,
    find_columns,
    quote_names,
    quote_some,
    with_found,
)
from abag.embed.sequences.matrix import read_matrix
from abag.embed.sequences.table_options import DEFAULT_LAYOUT, ChainPlaces, FileOptions

OneTable: TypeAlias = Path | str | pd.DataFrame
"""A file, a folder of Parquet files, or a table in memory."""
TableLike: TypeAlias = OneTable | Sequence[OneTable]
"""A table, or several that are read as one (`embed.sequences.joined`)."""

EXCEL = ".xlsx"
TEXT_ROLES = (*SEQUENCE_ROLES, "mutations", "antigen_mutations")
"""Roles of columns that are read as text."""
CHUNK_ROWS = 50_000  # rows in memory at a time: about 40 MB of antibodies and antigens


class MissingReader(Exception):
    """A package that reads a format is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of a table, and the roles of its columns."""

    source: str
    """Name of the file, for messages."""
    frame: pd.DataFrame
    """Rows and columns in the order of the file; the index counts all rows of the table from 0."""
    first_row: int
    """Number of the first row of the table, as a spreadsheet shows it: 2 below a header."""
    columns: dict[str, str]
    """Names of columns by role."""
    ties: dict[str, list[str]]
    """Names of the columns that fit a role equally well, by role."""
    names: Sequence[str]
    """All columns of the file, also those that were not read."""
    as_written: bool
    """Whether missing cells of text files are still text (`MISSING_TEXT`)."""
    reader: ReaderNotes = NO_NOTES

    def column(self, role: str, advice: str = "") -> str:
        """Return the name of the column that plays a role.

        Raises
        ------
        ColumnError
            If no column plays it, or several fit; `advice` is added to what to do.
        """
        if role in self.columns:
            return self.columns[role]
        if role in self.ties:
            msg = (
                f"{self.source}: columns {quote_names(self.ties[role])} fit {role} equally well; "
                f"expected one. Choose with --column {role}=NAME."
            )
            raise ColumnError(msg)
        problem = f"{self.source}: no column for {role}"
        remedy = f"Name it with --column {role}=NAME{advice}."
        raise MissingColumn(with_found(problem, self.names, remedy))

    def has(self, role: str) -> bool:
        """Tell whether one or several columns fit a role."""
        return role in self.columns or role in self.ties

    def cells(self, role: str) -> pd.Series:
        """Return the cells of the column that plays a role, missing ones as pandas has them."""
        return self._with_missing(self.frame[self.column(role)])

    def _with_missing(self, cells: pd.Series) -> pd.Series:
        is_text = isinstance(cells.dtype, pd.StringDtype) or cells.dtype == np.dtype(object)
        if self.as_written and is_text:  # Parquet marks missing cells, and has other types here
            return cells.mask(cells.isin(MISSING_TEXT))
        return cells

    def are_empty(self) -> NDArray[np.bool_]:
        """Mark the rows in which every cell is empty, as spreadsheets write them; shape (R,)."""
        empty = np.ones(len(self.frame), np.bool_)
        for number in range(self.frame.shape[1]):
            if not empty.any():
                break
            cells = self._with_missing(self.frame.iloc[empty, number])
            still_empty = cells.isna().tolist()
            for at, cell in enumerate(cells.tolist()):
                if isinstance(cell, str):
                    still_empty[at] = cell.strip() == ""
            empty[empty] = still_empty
        return empty


def read_table(
    table: OneTable,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    as_written: bool = False,
    chains: ChainPlaces = "as-given",
    kinds: Sequence[Kind] = KINDS,
    files: FileOptions = DEFAULT_LAYOUT,
) -> Table:
    """Read a whole table and find the roles of its columns, except those that the user chose.

    With `as_written`, cells stay as in the file: text stays text (an id such as ``007``, or
    ``NA``), and Parquet keeps its types. Otherwise pandas chooses types for all but sequences.
    `chains` and `kinds` are those of `ReadOptions`.

    Raises
    ------
    TableError
        If the file cannot be read, or has no rows.
    ColumnError
        If a column that the user chose does not exist.
    """
    first, *others = read_table_chunks(
        table,
        columns=columns,
        limit=limit,
        rows=None,
        as_written=as_written,
        chains=chains,
        kinds=kinds,
        files=files,
    )
    if not others:
        return first
    frame = pd.concat([first.frame, *(chunk.frame for chunk in others)], ignore_index=True)
    roles, ties = find_columns(frame.columns, columns or {}, first.source)
    return replace(first, frame=frame, columns=roles, ties=ties, names=[*frame.columns])


def read_table_chunks(
    table: OneTable,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    rows: int | None = CHUNK_ROWS,
    as_written: bool = False,
    only_sequences: bool = False,
    chains: ChainPlaces = "as-given",
    kinds: Sequence[Kind] = KINDS,
    files: FileOptions = DEFAULT_LAYOUT,
) -> Iterator[Table]:
    """Read a table as `read_table`, in chunks of `rows`; None: one chunk per file.

    With `only_sequences`, columns of a Parquet file that hold no sequences may be left out.
    """
    chosen = dict(columns or {})
    if isinstance(table, pd.DataFrame):
        source = "table"
        _refuse_unclear_columns(table)
        chunks = in_chunks(table, None if files.matrix else rows)
    else:
        source = Path(table).name or str(table)
        options = ReadOptions(
            rows=rows,
            limit=limit,
            as_written=as_written,
            only_sequences=only_sequences,
            columns=chosen,
            source=source,
            chains=chains,
            kinds=kinds,
            sheet=files.sheet,
        )
        if files.matrix:
            options = replace(options, rows=None, limit=None, as_written=True, only_sequences=False)
        chunks = read_file_chunks(Path(table), options)
    if files.matrix:
        pairs, matrix_roles, notes = _read_matrix(chunks, chosen, source)
        if not as_written:
            pairs = pairs.apply(_as_numbers)
        chunks = in_chunks(pairs, rows, notes)
        chosen = matrix_roles | chosen
    start = 0
    for names, whole, first_row, reader in chunks:
        frame = whole if limit is None else whole.head(limit - start)
        if len(frame):
            roles, ties = find_columns(names, chosen, source)
            yield Table(
                source=source,
                frame=frame.set_axis(pd.RangeIndex(start, start + len(frame))),
                first_row=first_row,
                columns=roles,
                ties=ties,
                names=names,
                as_written=as_written,
                reader=reader,
            )
        start += len(frame)
        if start == limit:
            return
    if not start:
        msg = f"{source}: the table has no rows; expected at least one."
        raise TableError(msg)


def _read_matrix(
    chunks: Iterator[Chunk], chosen: Mapping[str, str], source: str
) -> tuple[pd.DataFrame, dict[str, str], ReaderNotes]:
    read = [*chunks]
    if not read:
        msg = f"{source}: the table has no rows; expected at least one."
        raise TableError(msg)
    cells = pd.concat([chunk.frame for chunk in read], ignore_index=True).astype(object)
    texts = cells.map(lambda cell: "" if pd.isna(cell) else str(cell))
    texts.columns = [str(name) for name in texts]
    try:
        return read_matrix(texts, chosen, source, read[0].first_row)
    except ValueError as error:
        msg = f"{source}: {error}."
        raise TableError(msg) from None


def _as_numbers(cells: pd.Series) -> pd.Series:
    """Return a column as numbers if all its cells are, as pandas reads CSV files."""
    try:
        return pd.to_numeric(cells)
    except ValueError:
        return cells


# --- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Choice of the rows, columns and cells that are read of a file."""

    rows: int | None
    """Most rows per frame; None: one frame per file."""
    limit: int | None
    """Rows to read from the top; None: all. A reader may return more."""
    as_written: bool
    """Keep cells as in the file: text stays text, ``NA`` too, and Parquet keeps its types."""
    only_sequences: bool
    """Whether other columns may be left out."""
    columns: Mapping[str, str]
    """Names of columns by role, as the user gave them."""
    source: str
    """Name of the file, for messages."""
    chains: ChainPlaces = "as-given"
    """``most``: of several chains of an AIRR cell, take the one that was seen most."""
    kinds: Sequence[Kind] = KINDS
    """Kinds of sequences that are asked for."""
    sheet: str | None = None
    """Sheet of an Excel file; None: the only one with values."""

    def sequence_columns(self, names: Sequence[str]) -> list[str]:
        """List the columns that hold, or may hold, sequences; they are read as text."""
        columns, ties = find_columns(names, self.columns, self.source)
        distinct: dict[str, None] = {}
        for role in TEXT_ROLES:
            if role in columns:
                distinct[columns[role]] = None
            distinct |= dict.fromkeys(ties.get(role, ()))
        return [*distinct]


class Chunk(NamedTuple):
    """Some rows of a file."""

    names: list[str]
    """All columns of the file; the frame may lack some."""
    frame: pd.DataFrame
    first_row: int = 1
    """Number of the first row of the file; 2 where a spreadsheet shows the header as row 1."""
    reader: ReaderNotes = NO_NOTES
    """Notes on all rows of the file."""


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
)
_FOREIGN = {
    b"\x1f\x8b": "it is compressed by gzip; rename it to end in .gz",
    b"PK\x03\x04": "it is a zip archive; if it is an Excel file, rename it to end in .xlsx",
    b"\xd0\xcf\x11\xe0": "it is an Excel file in an old format; export it as CSV",
    b"PAR1": "it is a Parquet file; rename it to end in .parquet",
    b"\xff\xfe": "it is UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16 text; save it as UTF-8",
    b"sep=": "its first line tells Excel the separator; remove that line",
    b">": "it is FASTA, or its first name begins with '>'; rename it to end in .fasta",
}
"""Messages about other files that are called text, by their first bytes."""
_MORE_FIELDS = (
    "rows have more fields than the header; remove lines above it, name the column of row names, "
    "or remove the separators at the ends of the rows"
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
    paths = sorted(folder.rglob("*.parquet"))
    files = [path for path in paths if not _is_hidden(path.relative_to(folder))]
    partitions = [path for path in files if "=" in str(path.parent.relative_to(folder))]
    if partitions:
        msg = (
            f"{partitions[0].parent}: the name of this folder states a column, which is not "
            "supported; expected all columns in the files. Write the column into them, and rename "
            "the folder."
        )
        raise TableError(msg)
    if not files:
        msg = f"{folder}: holds no .parquet file; expected a table. Give a file or such a folder."
        raise TableError(msg)
    return files


def _is_hidden(path: Path) -> bool:
    """Tell whether a file or folder in a path is one that readers of Parquet folders leave out."""
    return any(part.startswith(("_", ".")) for part in path.parts)


def in_chunks(
    whole: pd.DataFrame, rows: int | None, reader: ReaderNotes = NO_NOTES
) -> Iterator[Chunk]:
    """Cut a table that is in memory into chunks of rows; None: one chunk."""
    rows = rows or max(1, len(whole))
    for start in range(0, len(whole), rows):
        yield Chunk([*whole.columns], whole.iloc[start : start + rows], reader=reader)


def _refuse_unclear_columns(frame: pd.DataFrame) -> None:
    """Raise `TableError` if a column of a DataFrame has no name of its own."""
    levels = frame.columns.nlevels
    if levels > 1:
        msg = (
            f"table: the columns have names of {levels} levels; expected one name each. Join them, "
            "for example with table.columns = table.columns.map(' '.join)."
        )
        raise TableError(msg)
    try:
        _refuse_repeated([*map(str, frame.columns)])
    except ValueError as error:
        msg = f"table: {error}. Rename one, or remove it."
        raise TableError(msg) from None


def _refuse_repeated(names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        msg = f"two columns are called {repeated[0]!r}; expected distinct names"
        raise ValueError(msg)


# --- text -----------------------------------------------------------------------------------------


def _read_text(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    # Public tables have tabs in files called .csv, so the header line decides.
    header = file.readline().removeprefix(b"\xef\xbb\xbf")
    for start, msg in _FOREIGN.items():
        if header.startswith((start, start.upper())):
            raise ValueError(msg)
    separator = max(",\t;", key=lambda mark: header.count(mark.encode()))
    yield from _read_separated(file, separator, options)


def _read_separated(
    file: IO[Any], separator: str, options: ReadOptions, first_row: int = 2
) -> Iterator[Chunk]:
    names = _header_names(file, separator)
    read: dict[str, Any] = {"sep": separator, "low_memory": False}
    if options.as_written:
        read |= {"dtype": str, "keep_default_na": False}
    else:
        texts = [*options.sequence_columns(names), *(name for name in AIRR_TEXTS if name in names)]
        read["dtype"] = dict.fromkeys(texts, object)  # as str, half the time goes into Arrow
    file.seek(0)
    if is_airr(names):  # the chains of a cell may be far apart
        joined, reader = join_cells(pd.read_csv(file, **read), options.chains)
        yield from in_chunks(joined, options.rows, reader)
        return
    rows: Any = pd.read_csv(file, chunksize=options.rows, nrows=options.limit, **read)
    for frame in [rows] if options.rows is None else rows:
        filled = frame.fillna("") if options.as_written else frame
        yield Chunk([*frame.columns], filled, first_row)


def _header_names(file: IO[Any], separator: str) -> list[str]:
    """Return the names in the header; refuse a first row that has more fields."""
    # pandas would take its first fields for an index, so that all columns shift
    file.seek(0)
    top: dict[str, Any] = {"header": None, "dtype": str, "keep_default_na": False}
    try:
        rows = pd.read_csv(file, sep=separator, nrows=2, **top)
    except pd.errors.ParserError as error:
        raise ValueError(_MORE_FIELDS if "Expected" in str(error) else str(error)) from error
    names = rows.iloc[0].tolist()
    _refuse_repeated([name for name in names if name])
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]


def _read_fasta(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    text = re.sub("\r\n?", "\n", file.read().decode("utf-8-sig"))
    role = options.columns.get("antigen", "antigen") if [*options.kinds] == ["antigen"] else ""
    yield from in_chunks(_parse_fasta(text, role), options.rows)


# --- Excel ----------------------------------------------------------------------------------------


def _read_excel(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read the only sheet that has values, as a CSV export of it would be read."""
    rows, first_row = _read_sheet(file, options.sheet)
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    yield from _read_separated(text, ",", options, first_row)


def _read_sheet(file: IO[bytes], chosen: str | None) -> tuple[list[list[str]], int]:
    """Return the rows of a plain sheet from its header on, and the number of the second."""
    if not zipfile.is_zipfile(file):
        msg = "it is incomplete, has a password, or is not an .xlsx file; save it again as .xlsx"
        raise ValueError(msg)
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise MissingReader from error
    sheets: dict[str, pd.DataFrame] = {}
    with warnings.catch_warnings():  # of styles and extensions that openpyxl leaves out
        warnings.simplefilter("ignore")
        worksheets = openpyxl.load_workbook(file, data_only=True).worksheets
        for sheet in _choose_sheets(worksheets, chosen):
            merged = sheet.merged_cells.ranges
            if merged:
                msg = f"cells {min(map(str, merged))} are merged; unmerge them and fill each one"
                raise ValueError(msg)
            rows = [[*map(_excel_cell, row)] for row in sheet.values]
            cells = pd.DataFrame(rows, dtype=object).fillna("")
            filled = (cells != "").any(axis=1)
            if filled.any():
                cells = cells.loc[filled.idxmax() : filled[::-1].idxmax()]
                sheets[sheet.title] = cells.loc[:, (cells != "").any()]
    if len(sheets) != 1:
        names = ", ".join(map(repr, sheets))
        first = shlex.quote(next(iter(sheets), ""))
        several = f"it has {len(sheets)} sheets with values, {names}; choose one with --sheet"
        raise ValueError(f"{several} {first} or the like" if sheets else "no cell has a value")
    (cells,) = sheets.values()
    header = int(cells.index[0]) + 1
    unnamed = [column for column in cells.columns[1:] if cells[column].iloc[0] == ""]
    if unnamed:  # only the first may lack a name: pandas writes its index so
        letters = openpyxl.utils.get_column_letter(int(unnamed[0]) + 1)
        msg = (
            f"cell {letters}{header} is empty, but its column is not; expected the names of the "
            "columns in the first row"
        )
        raise ValueError(msg)
    return cells.to_numpy().tolist(), header + 1


def _excel_cell(value: object) -> str:
    return "" if value is None else str(value)


def _choose_sheets(sheets: Sequence[Any], chosen: str | None) -> list[Any]:
    """Return the sheet that the user chose, or all."""
    if chosen is None:
        return [*sheets]
    exact = [sheet for sheet in sheets if sheet.title == chosen]
    alike = [sheet for sheet in sheets if sheet.title.strip().lower() == chosen.strip().lower()]
    if not exact and len(alike) != 1:
        titles = quote_some([sheet.title for sheet in sheets])
        msg = f"it has no sheet {chosen!r}; choose another with --sheet, of {titles}"
        raise ValueError(msg)
    return exact or alike


# --- JSON Lines -----------------------------------------------------------------------------------


def _read_json_lines(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read an object per line, as a CSV file with the same cells would be read."""
    records = [*_json_records(file.read().decode("utf-8-sig"))]
    distinct: dict[str, None] = {}
    for _, record in records:
        distinct |= dict.fromkeys(record)
    names = [*distinct]
    sequences = options.sequence_columns(names)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    for number, record in records:
        for name in sequences:
            if isinstance(record.get(name), dict | list):
                held = type(record[name]).__name__
                msg = f"line {number}: {name!r} holds {held}; expected a sequence as text"
                raise ValueError(msg)
        writer.writerow([_json_cell(record.get(name)) for name in names])
    yield from _read_separated(text, ",", options, first_row=1)


def _json_records(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file and the numbers of their lines; numbers stay as written."""
    lines = text.rstrip().split("\n")
    if lines == [""]:
        msg = "it is empty"
        raise ValueError(msg)
    if lines[0].lstrip().startswith("["):
        msg = (
            "line 1 begins a JSON array; save one object per line, as pandas does with "
            "to_json(path, orient='records', lines=True)"
        )
        raise ValueError(msg)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(
                line,
                parse_float=str,
                parse_int=str,
                parse_constant=str,
                object_pairs_hook=_distinct_names,
            )
        except json.JSONDecodeError as error:
            msg = f"line {number} is not JSON ({error.msg}); expected one object per line"
            raise ValueError(msg) from None
        if not isinstance(record, dict) or not record:
            msg = (
                f"line {number} holds {line.strip()[:20]!r}, not an object; expected one object "
                'such as {"heavy": "EVQ", "pKd": 8.5} per line'
            )
            raise ValueError(msg)
        yield number, record


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _json_cell(value: object) -> str:
    """Return a value as text; lists and objects, which are passed on only, as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


# --- FASTA: one chain per record ------------------------------------------------------------------
#
# Chains belong together by the endings of their names: ``ab1_H``, ``ab1_L``, ``ab1_antigen``.

_ENDINGS = {
    "heavy": "h|vh|hc|heavy",
    "light": "l|vl|lc|light|k|vk|kappa|lambda",
    "antigen": "ag|antigen",
}
_NAMED_ENDINGS = "|".join(f"(?P<{role}>{ending})" for role, ending in _ENDINGS.items())
_NAME = re.compile(rf"(.+)[_|:./-](?:{_NAMED_ENDINGS})", re.IGNORECASE)


def _parse_fasta(text: str, only: str = "") -> pd.DataFrame:
    """Read FASTA: columns ``id`` and ``sequence``, or ``heavy``, ``light``, ``antigen``.

    Where antigens are asked for alone, each record is one, in the column `only`: what ends in -L or
    -H is a name (cathepsin-L). Unless an antigen shares its name with chains of an antibody.
    """
    first, *records = re.split(r"^\s*>", text, flags=re.MULTILINE)
    if first.strip():
        line = first.strip().partition("\n")[0]
        msg = f"it begins with {line[:20]!r}, not with '>'"
        raise ValueError(msg)
    names = [(record.partition("\n")[0].split() or [""])[0] for record in records]
    ends = [_NAME.fullmatch(name) for name in names]
    if only and not _names_pairs(ends):
        ends = [None] * len(names)
    without_end = "sequence" if not only or any(ends) else only
    rows: dict[str, dict[str, str]] = {}
    for record, name, end in zip(records, names, ends, strict=True):
        lines = record.split("\n")[1:]
        stem = end[1] if end else name
        role = str(end.lastgroup) if end else without_end
        row = rows.setdefault(stem, {})
        if role in row:
            msg = f"record {name!r} is the second {role} of {stem!r}; expected distinct names"
            raise ValueError(msg)
        row[role] = "".join(map(str.strip, lines))
        if row[role] in ("", *MISSING_TEXT):
            msg = f"record {name!r} holds {row[role]!r}; expected residues"
            raise ValueError(msg)
    roles = set[str]().union(*rows.values())
    if "sequence" in roles and len(roles) > 1:
        name = next(stem for stem, row in rows.items() if "sequence" in row)
        msg = f"record {name!r} does not end in a role as the others do, such as _H, _L or _antigen"
        raise ValueError(msg)
    columns = {"id": [*rows]}
    for role in (*_ENDINGS, "sequence", without_end):
        if role in roles:
            columns[role] = [row.get(role, "") for row in rows.values()]
    return pd.DataFrame(columns, dtype=str)


def _names_pairs(ends: Sequence[re.Match[str] | None]) -> bool:
    """Tell whether an antigen has the name of an antibody's chain, less the ending."""
    endings = [end for end in ends if end]
    antigens = {end[1] for end in endings if end.lastgroup == "antigen"}
    chains = {end[1] for end in endings if end.lastgroup != "antigen"}
    return not antigens.isdisjoint(chains)


# --- Parquet --------------------------------------------------------------------------------------


def _read_parquet(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    # By default every byte read is kept until the file is closed.
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
    names = parquet.schema_arrow.names
    _refuse_repeated(names)
    for field in parquet.schema_arrow:  # of all columns, before sequences are encoded
        _refuse_unsupported(field)
    # without any sequence column, everything is read and the caller names the missing role
    wanted = (options.sequence_columns(names) or None) if options.only_sequences else None
    rows = min(filter(None, (options.rows, options.limit, parquet.metadata.num_rows)), default=1)
    for batch in parquet.iter_batches(rows, columns=wanted):
        batch.validate(full=True)  # text that is not UTF-8
        fields = [field.with_type(_without_view(field.type)) for field in batch.schema]
        table = batch.cast(pa.schema(fields))  # without metadata: what pandas noted may be wrong
        types = pd.ArrowDtype if options.as_written else None
        yield Chunk(names, table.to_pandas(types_mapper=types))


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
    if any(kind != _without_view(kind) for kind in inner[1:]):
        msg = f"column {field.name!r} has the type {field.type}; convert it to {pa.string()}"
        raise ValueError(msg)
    for kind in filter(pa.types.is_timestamp, inner):
        try:
            pa.scalar(0, kind).as_py()
        except ValueError as error:
            zone = f"times of the unknown zone {kind.tz!r}"
            msg = f"column {field.name!r} has {zone}; convert it to UTC"
            raise ValueError(msg) from error


FORMATS: dict[str, Callable[[IO[bytes], ReadOptions], Iterator[Chunk]]] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
    EXCEL: _read_excel,
    ".fasta": _read_fasta,
    ".fa": _read_fasta,
}
"""Readers by the suffix of the file's name, less ``.gz``: each yields rows from top to bottom."""
_SEEKING = (".parquet", EXCEL)  # formats whose readers need random access
