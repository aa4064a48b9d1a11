"""Delimited text, such as CSV, read in chunks of rows.

Excel and JSON Lines are written as such text first, so that the same cells are read alike.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from abag.embed.sequences.airr import NO_NOTES, ReaderNotes, is_airr, join_cells
from abag.embed.sequences.chains import KINDS, MISSING_TEXT, Kind
from abag.embed.sequences.columns import SEQUENCE_ROLES, find_columns
from abag.embed.sequences.table_options import ChainPlaces

TEXT_ROLES = (*SEQUENCE_ROLES, "mutations", "antigen_mutations")
"""Roles of columns that are read as text."""
EXACT = 1e15
"""Numbers of less size are shown with all of their digits."""
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
_PANDAS_TEXT = pd.Series([""]).dtype
"""Type of text columns; object before pandas 3."""
_HAS_TEXT = isinstance(_PANDAS_TEXT, pd.StringDtype)
_ARROW_TEXT = pd.ArrowDtype(pa.string()) if _HAS_TEXT else _PANDAS_TEXT
"""Type by which pandas reads text about as fast as numbers."""
_MORE_FIELDS = (
    "rows have more fields than the header; remove lines above it, name the column of row names, "
    "or remove the separators at the ends of the rows"
)


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
    names: bool = False
    """Whether columns of sequences may hold names, of which ``NA`` is one."""

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


def in_chunks(
    whole: pd.DataFrame, rows: int | None, reader: ReaderNotes = NO_NOTES
) -> Iterator[Chunk]:
    """Cut a table that is in memory into chunks of rows; None: one chunk."""
    rows = rows or max(1, len(whole))
    for start in range(0, len(whole), rows):
        yield Chunk([*whole.columns], whole.iloc[start : start + rows], reader=reader)


def cell_text(cell: object) -> str:
    """Return a cell of any type as a text file has it: 12, not 12.0; empty if it is missing."""
    if cell is None or cell is pd.NA or cell is pd.NaT:
        return ""
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        number = float(cell)
        return str(int(number)) if number.is_integer() and abs(number) < EXACT else str(cell)
    return str(cell)


def refuse_repeated(names: Sequence[str]) -> None:
    """Raise ValueError if two columns have one name; pandas would rename the second."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        msg = f"two columns are called {repeated[0]!r}; expected distinct names"
        raise ValueError(msg)


def read_text(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read text with the separator that its header line has most of."""
    # not the name decides: public tables have tabs in files called .csv
    header = file.readline().removeprefix(b"\xef\xbb\xbf")
    for start, msg in _FOREIGN.items():
        if header.startswith((start, start.upper())):
            raise ValueError(msg)
    separator = max(",\t;", key=lambda mark: header.count(mark.encode()))
    yield from read_separated(file, separator, options)


def read_separated(
    file: IO[Any], separator: str, options: ReadOptions, first_row: int = 2
) -> Iterator[Chunk]:
    """Read text with this separator; AIRR files become a row per cell."""
    names = _header_names(file, separator)
    # with low_memory, pandas chooses the type of a column anew within one chunk
    read: dict[str, Any] = {"sep": separator, "low_memory": False}
    if options.as_written:
        read["keep_default_na"] = False
    elif options.names:
        read |= _without_na(names, options)
    # text whatever it looks like: 1.10 may be a name, and 0012 another one than 12
    types = dict.fromkeys(options.sequence_columns(names), object)
    read["dtype"] = defaultdict(lambda: _ARROW_TEXT, types)
    file.seek(0)
    if is_airr(names):  # the chains of a cell may be far apart
        joined, reader = join_cells(_as_text(pd.read_csv(file, **read)), options.chains)
        yield from in_chunks(joined, options.rows, reader)
        return
    if options.rows is None:
        yield _text_chunk(pd.read_csv(file, nrows=options.limit, **read), options, first_row)
        return
    # closed also if the caller takes the first chunks only
    with pd.read_csv(file, chunksize=options.rows, nrows=options.limit, **read) as frames:
        for frame in frames:
            yield _text_chunk(frame, options, first_row)


def _without_na(names: Sequence[str], options: ReadOptions) -> dict[str, Any]:
    """Return how pandas reads text in which ``NA`` and the like may be names."""
    roles, ties = find_columns(names, options.columns, options.source)
    kept = {*options.sequence_columns(names)}
    for role in ("antibody_name", "antigen_name"):
        kept |= {roles[role]} if role in roles else {*ties.get(role, ())}
    missing = {name: [""] if name in kept else ["", *MISSING_TEXT] for name in names}
    return {"keep_default_na": False, "na_values": missing}


def _text_chunk(frame: pd.DataFrame, options: ReadOptions, first_row: int) -> Chunk:
    texts = _as_text(frame)
    filled = texts.fillna("") if options.as_written else texts
    return Chunk([*frame.columns], filled, first_row)


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Give columns of Arrow's text the type that pandas itself gives text."""
    arrow = [name for name, kind in frame.dtypes.items() if isinstance(kind, pd.ArrowDtype)]
    return frame.astype(dict.fromkeys(arrow, _PANDAS_TEXT))


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
    refuse_repeated([name for name in names if name])
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]
