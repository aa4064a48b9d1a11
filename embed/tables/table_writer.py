"""Write a table in chunks; the file appears under its name only when it is whole.

Text tables hand on their columns with types, to Parquet files and data frames. Cells are read as
text. Columns of names, categories and sequences stay so; another column becomes numbers or truth
values if all its cells are, and no cell loses anything: 0012, 4E10 and 1.10 beside 1.1 stay text.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag.core.errors import TableError
from abag.core.files import replacing
from abag.core.messages import first_line
from abag.embed.tables.columns import ROLES, quote_names
from abag.embed.tables.formats import FORMATS, bare_suffix, is_gzip
from abag.embed.tables.table import read_texts

_NUMBER_ROLES = frozenset({"pkd", "label", "prediction", "sigma"})
_TEXT_ROLES = frozenset(ROLES) - _NUMBER_ROLES - {"censored"}
_INTEGER = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(
    r"[-+]?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][-+]\d{1,3})?"
    r"|[-+]?\d\.\d+[eE]\d{1,3}|[-+]?inf(inity)?",
    re.IGNORECASE,
)
"""A number as programs write it: not a well such as 4E10, nor more digits than a float has."""
_DECIMALS = re.compile(r"[^.]*\.(\d{2,}|\d)")
_TRUTH = {"true": True, "false": False}
_Type: TypeAlias = Literal["integer", "number", "truth", "text"]


WriteFrame: TypeAlias = Callable[[pd.DataFrame], None]
OpenWriter: TypeAlias = Callable[[IO[bytes]], AbstractContextManager[WriteFrame]]


class _Column:
    """What the cells of one column are, of all that were seen."""

    def __init__(self) -> None:
        self.types: set[_Type] = {"integer", "number", "truth"}
        """Types that all cells have."""
        self.decimals: set[int] = set()
        self.is_padded = False
        """Whether a cell such as 1.10 ends in a zero that its number lacks."""

    def add(self, texts: Iterable[str], *, is_number: bool) -> None:
        """Look at distinct cells; as the role of the column says, a number loses nothing."""
        for text in texts:
            types: set[_Type] = set()
            if _INTEGER.fullmatch(text):
                types.add("integer")
            if _NUMBER.fullmatch(text) or (is_number and _is_float(text)):
                types.add("number")
            if text.lower() in _TRUTH:
                types.add("truth")
            self.types &= types
            if not self.types:
                return
            decimals = _DECIMALS.fullmatch(text)
            if decimals and not is_number:
                self.decimals.add(len(decimals[1]))
                self.is_padded |= len(decimals[1]) > 1 and text.endswith("0")

    @property
    def type(self) -> _Type:
        """The type that all cells have; a column without cells, such as ``why_far``, is text."""
        if {"truth", "number"} <= self.types:  # no cell was seen
            return "text"
        if "number" in self.types and self.is_padded and len(self.decimals) > 1:
            return "text"
        for kind in ("integer", "number", "truth"):
            if kind in self.types:
                return kind
        return "text"


class ColumnTypes:
    """Types of the columns of a table, which is looked at in chunks before any is converted."""

    def __init__(self, *, text: Iterable[str] = (), numbers: Iterable[str] = ()) -> None:
        """Take the columns that are text, or numbers, whatever their cells look like."""
        self._text = {*text}
        self._numbers = {*numbers}
        self._columns: dict[str, _Column] = {}

    def add(self, frame: pd.DataFrame, roles: Mapping[str, str]) -> None:
        """Look at the cells of a chunk with these columns by role."""
        for role, name in roles.items():
            if role in _TEXT_ROLES:
                self._text.add(name)
            elif role in _NUMBER_ROLES:
                self._numbers.add(name)
        for name in map(str, frame.columns):
            column = self._columns.setdefault(name, _Column())
            cells = frame[name]
            is_text = cells.dtype == object or isinstance(cells.dtype, pd.StringDtype)
            if name in self._text or not is_text:
                column.types = set()
            if column.types:
                texts = _texts(cells).dropna().unique().tolist()
                column.add(texts, is_number=name in self._numbers)

    def apply(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Convert the columns of a chunk to their types; missing cells of others stay as read."""
        converted = {}
        for name in map(str, frame.columns):
            column = self._columns.get(name)
            if column is not None and column.type != "text":
                converted[name] = _convert(_texts(frame[name]), column.type)
        return frame.assign(**converted)


def with_types(
    frame: pd.DataFrame, roles: Mapping[str, str], text: Iterable[str] = ()
) -> pd.DataFrame:
    """Convert the columns of a whole table, of which `text` are no numbers, as `ColumnTypes`."""
    types = ColumnTypes(text=text)
    types.add(frame, roles)
    return types.apply(frame)


def _texts(cells: pd.Series) -> pd.Series:
    """Return the cells of a column as text without spaces at the ends; missing ones as None."""
    texts = read_texts(cells).astype(object)
    return texts.where(texts != "", None)


def _convert(texts: pd.Series, kind: _Type) -> pd.Series:
    if kind == "truth":
        truth = texts.map(lambda text: None if text is None else _TRUTH[text.lower()])
        return truth.astype("boolean" if truth.isna().any() else "bool")
    if kind == "integer":
        return pd.to_numeric(texts.astype("string")).astype(
            "Int64" if texts.isna().any() else "int64"
        )
    # not pd.to_numeric, which may miss the last digit
    return texts.map(float, na_action="ignore").astype("float64")


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


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
        has_return = any("\r" in str(name) for name in others) or any(
            others[name].astype("str").str.contains("\r", regex=False).any() for name in others
        )
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
