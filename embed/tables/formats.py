"""Formats of tables: text, Excel, JSON, FASTA and Parquet, read in chunks of rows.

Promises that every column and row of a file is there, unchanged, or that one line says what is
wrong with the file. A format is one entry of `FORMATS`, found by the suffix of the file's name less
``.gz``; only those of `table.WRITERS` are written, too.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import math
import re
import warnings
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.api.types import is_string_dtype

from abag.core.errors import TableError
from abag.core.frames import plain_type, without_view
from abag.core.messages import counted, quoted, shell_quoted
from abag.embed.tables.airr import NO_NOTES, ReaderNotes, is_airr, join_cells
from abag.embed.tables.chains import KINDS, LONG_RUN, MISSING_TEXT, TEXT_ROLES, Kind, joined_list
from abag.embed.tables.columns import may_hold, quote_some
from abag.embed.tables.options import TableOptions

EXACT = 1e15
"""Numbers of less size are shown with all of their digits."""
_FOREIGN = {
    b"\x1f\x8b": "it is compressed by gzip; rename it to end in .gz",
    b"PK\x03\x04": "it is a zip archive; if it is an Excel file, rename it to end in .xlsx",
    b"\xd0\xcf\x11\xe0": "it is an Excel file in an old format; export it as CSV",
    b"PAR1": "it is a Parquet file; rename it to end in .parquet",
    b">": "it is FASTA, or its first name begins with '>'; rename it to end in .fasta",
}
"""Messages about other files that are called text, by their first bytes."""
_MORE_FIELDS = (
    "rows have more fields than the header; remove lines above it, name the column of row names, "
    "or remove the separators at the ends of the rows"
)
_ENCODING_BYTES = 1 << 20
"""Of text, from its start, that tell its encoding."""
MOST_TITLES = 20
"""Lines above the header of a table that may be titles and notes."""
_STATED_SEPARATOR = re.compile(rb'"?sep=([,;\t])"?[\r\n]*', re.IGNORECASE)
_QUOTED = re.compile(rb'"[^"]*"')
_QUOTED_NAMES = re.compile(rb'"[^"]*"(?: "[^"]*")+\s*')
_METADATA = re.compile(rb'"?\{\s*"{1,2}[^:]+:.*\}"?\s*')
"""A JSON object above the header, as files of OAS have it."""
MOST_EMPTY = 50_000_000
"""Empty cells between the first and the last value of a sheet; a table has few."""
_HIDDEN = re.compile(rb'<row (?=[^<>]*hidden="(?:1|true)")[^<>]*?r="(\d+)"')
_SHOWN_OTHERWISE = re.compile(
    r'%|,(?![#0?])|(?<!\[)[<>≤≥~]|"(?P<unit>[^";]*[^\W\d_][^";]*)"|\\[^\W\d_]'
)
"""In a number format: a factor, a relation or text such as a unit that is shown with the number."""
_SHOWN_RELATION = re.compile(r'["\\]*([<>≤≥~]=?)["\\ ]*[#0?.,]*[#0?](?:E[+-]0+)?')
"""A number format that shows a number as it is, behind a relation: the cell is a bound."""
_MERGED = re.compile(rb'<mergeCell\s[^<>]*?ref="([A-Z0-9:]+)"')
_UNCOMPUTED = re.compile(
    rb'<c r="([A-Z]{1,3}\d{1,7})"(?:(?! t="str")[^<>])*><f[^<>]*(?:/>|>[^<>]*</f>)'
    rb"(?:<v ?/>|<v></v>)?</c>"
)
"""A formula without the value that a spreadsheet program computes, which may be empty text."""
_ROLES = ("heavy", "light", "antigen")
CHAIN_ENDING = re.compile(
    r"(?P<stem>.+?)[\s_|:./-]+(?:(?P<heavy>h|vh|vhh|hc|heavy)|(?P<light>l|vl|lc|light|k|vk|kappa|"
    r"lambda)|(?P<antigen>ag|antigen))(?:[\s_-]*(?:chain|domain|seq|sequence|aa))*",
    re.IGNORECASE,
)
"""A name that ends in the role of its chain."""
_CHAIN_FIRST = re.compile(  # VHH-72 is the name of a nanobody
    r"(?P<role>(?:vh|hc|heavy|vl|lc|light|vk|kappa|lambda|antigen)"
    r"(?:[\s_-]*(?:chain|domain|seq|sequence|aa))*)[\s_|:./-]+(?P<stem>.+)",
    re.IGNORECASE,
)
"""A name that begins with it."""
EXCEL = (".xlsx", ".xlsm")
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
_SEEKING = (".parquet", *EXCEL)  # formats whose readers need random access


_DEFAULTS = TableOptions()
CHUNK_ROWS = 50_000  # rows in memory at a time: about 40 MB of antibodies and antigens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Choice of the rows, columns and cells that are read of a file."""

    rows: int | None = CHUNK_ROWS
    """Most rows per frame; None: one frame per file."""
    as_written: bool = False
    """Keep cells as in the file: text stays text, ``NA`` too, and Parquet keeps its types."""
    may_be_names: bool = False
    """Whether columns of sequences may hold names, of which ``NA`` is one."""
    kinds: Sequence[Kind] = KINDS
    """Kinds of sequences that are asked for."""
    table: TableOptions = _DEFAULTS
    """How the user says that the table is read; the file may lack some of the columns."""

    def sequence_columns(self, names: Sequence[str]) -> list[str]:
        """List the columns that hold, or may hold, sequences; they are read as text."""
        return may_hold(names, self.table.columns, TEXT_ROLES)


class Chunk(NamedTuple):
    """Some rows of a file."""

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
        yield Chunk(whole.iloc[start : start + rows], reader=reader)


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


def refuse_repeated(names: Sequence[str], below: Sequence[str] = ()) -> None:
    """Raise ValueError if two columns have one name; pandas would rename the second.

    `below` are the cells of the next line, which may be the names of groups of columns.
    """
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        are_names = len(may_hold(below, {}, TEXT_ROLES)) > 1
        advice = "Remove this line: the next has the names" if are_names else "Rename one"
        msg = f"two columns are called {repeated[0]!r}; expected names that differ. {advice}"
        raise ValueError(msg)


def read_text(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read text with the separator of its header line."""
    file, remarks = _in_utf8(file)
    top = _read_top(file)
    if comments := sum(line.startswith(b"#") for line in top.above):
        remarks.append(f"{counted(comments, 'line')} above the header, marked with '#', not read")
    if top.above and _METADATA.fullmatch(top.above[0]):
        remarks.append("1 line of metadata above the header, not read")
    remarks += _remarks_on_titles([line.decode().strip(' ,;\t\r\n"') for line in top.titles])
    above = len(top.above) + len(top.titles)
    yield from read_separated(file, top.separator, options, above=above, remarks=remarks)


def _in_utf8(file: IO[bytes]) -> tuple[IO[bytes], list[str]]:
    """Return text in UTF-8, with a remark if it was in the encoding of Excel for Windows."""
    start = file.read(_ENCODING_BYTES)
    file.seek(0)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return io.BytesIO(file.read().decode("utf-16").encode()), []
    _refuse_foreign(start)
    if b"\0" in start:
        msg = "it holds NUL bytes, as binary files do; save it as UTF-8 text"
        raise ValueError(msg)
    decoder = codecs.getincrementaldecoder("utf-8")()  # a block may end within a character
    remarks = []
    try:
        while block := file.read(_ENCODING_BYTES):
            decoder.decode(block)
    except UnicodeDecodeError as error:
        first = error.object[error.start : error.start + 1].decode("cp1252", "replace")
        remarks.append(
            f"not UTF-8, read as Windows-1252, in which the first other character is {first!r}: "
            "if that is wrong, save it as UTF-8"
        )
    file.seek(0)
    return (io.BytesIO(file.read().decode("cp1252").encode()) if remarks else file), remarks


def _refuse_foreign(start: bytes) -> None:
    """Raise ValueError for what is no text file of separated columns, by its first bytes."""
    for sign, msg in _FOREIGN.items():
        if start.startswith(sign):
            raise ValueError(msg)


class _Top(NamedTuple):
    """The lines of a text file above its header, and the separator of the columns."""

    above: list[bytes]
    """Blank lines, comments (``#``), metadata, or the separator for Excel (``sep=;``)."""
    titles: list[bytes]
    """Lines below these of one cell, or none, above a header of several."""
    separator: str


def _read_top(file: IO[bytes]) -> _Top:
    line = file.readline().removeprefix(codecs.BOM_UTF8)
    if stated := _STATED_SEPARATOR.fullmatch(line):
        return _Top([line], [], stated[1].decode())
    if _METADATA.fullmatch(line):
        header = file.readline()
        if not _METADATA.fullmatch(header):  # as in JSON Lines
            return _Top([line], [], _separator(header, file.readline()))
    above = list[bytes]()
    while line.startswith(b"#") or line.isspace():
        above.append(line)
        line = file.readline()
    _refuse_foreign(line)
    if above:  # of "#heavy,light", too, the first row has as many fields
        separator = _separator(above[-1], line)
        if not line or _fields(above[-1], separator) == _fields(line, separator) > 1:
            return _Top(above[:-1], [], separator)
    lines = [line, *islice(file, MOST_TITLES + 1), b""]
    number = _count_titles(map(_cells_of, lines))
    header, row = lines[number : number + 2]
    separator = _separator(header, row)
    if not number or _fields(header, separator) == _fields(row, separator) > 1:
        return _Top(above, lines[:number], separator)
    return _Top(above, [], _separator(lines[0], lines[1]))


def _separator(header: bytes, row: bytes) -> str:
    """Return the separator of a header line, which its first row has as often."""
    # not the name decides: public tables have tabs in files called .csv
    if _QUOTED_NAMES.fullmatch(header):  # as R writes them
        return " "

    def fitness(mark: str) -> tuple[bool, int]:
        fields = _fields(header, mark)
        return 1 < fields == _fields(row, mark), fields

    return max(",\t;", key=fitness)


def _fields(line: bytes, separator: str) -> int:
    return 1 + _QUOTED.sub(b"x", line).count(separator.encode())


def _cells_of(line: bytes) -> list[str]:
    """Divide a line of text at all marks that may separate its cells, outside of quotes."""
    if _QUOTED_NAMES.fullmatch(line):
        return line.decode("utf-8", "replace").split()
    bare = _QUOTED.sub(lambda cell: re.sub(rb'[,;\t\r"]', b" ", cell[0]), line)
    cells = re.split(r'[,;\t\r"]', bare.decode("utf-8", "replace").rstrip("\r\n"))
    return [cell.strip() for cell in cells]


def _count_titles(rows: Iterable[Sequence[str]]) -> int:
    """Count the rows that are blank, or have one cell of text, above the first with several."""
    is_one_name = False
    for number, cells in enumerate(islice(rows, MOST_TITLES + 1)):
        filled = [*filter(None, cells)]
        has_sequence = any(map(LONG_RUN.search, filled))
        if len(filled) > 1:
            return number - (has_sequence and is_one_name)
        if has_sequence:
            break
        is_one_name = len(cells) == 2 and not cells[0]  # of one column beside an index
    return 0


def _remarks_on_titles(lines: Sequence[str]) -> list[str]:
    """Say which lines above the header are not read; blank ones are not said."""
    titles = [*filter(None, lines)]
    if not titles:
        return []
    return [f"{counted(len(titles), 'line')} above the header not read: {quote_some(titles)}"]


_UNIT_ALONE = re.compile(
    r"[fpnuµμm]?M|[pnuµμm]?g/[mµμu]?L|k?(cal|J)/mol|(1/M|M-1|M\^-1|M⁻¹)[*·]?(/?s|s-1|s\^-1|s⁻¹)|1/Ms|"
    r"1/s|s-1|s\^-1|s⁻¹|°?C|°C|K|%|nm|min|s|h|kDa|Da|RU|AU|a\.u\.|mg|µg|μg|ug",
    re.IGNORECASE,
)
"""A cell that is a unit and no residue, name or class, apart from its brackets."""


def read_separated(
    file: IO[Any],
    separator: str,
    options: ReadOptions,
    *,
    first_row: int = 2,
    above: int = 0,
    remarks: Sequence[str] = (),
) -> Iterator[Chunk]:
    """Read text with this separator, after lines `above`; AIRR files become a row per cell."""
    header, *below = _first_lines(file, separator, above)
    names = [name or _unnamed(number, header) for number, name in enumerate(header)]
    first_row += above
    units = _units_below(below)
    if units:
        stated = [f"{name!r} in {unit}" for name, unit in zip(names, units, strict=True) if unit]
        remarks = [*remarks, f"row {first_row} is read as units: {', '.join(stated)}"]
        for at, unit in enumerate(units):
            # M is no part of KD_Mean
            if unit and not re.search(rf"(?<![^\W\d_]){re.escape(unit)}(?![^\W\d_])", names[at]):
                names[at] += f" ({unit})"
    # with low_memory, pandas chooses the type of a column anew within one chunk; blank lines are
    # rows, so that the others have the numbers that spreadsheets and editors show
    read: dict[str, Any] = {"sep": separator, "low_memory": False, "skip_blank_lines": False}
    read["skiprows"] = above
    if units or not header[0]:  # which may have no place in the header
        read |= {"names": names, "header": 0}
    if options.as_written:
        read["keep_default_na"] = False
    elif options.may_be_names:
        kept = {*options.sequence_columns(names)}
        kept |= {*may_hold(names, options.table.columns, ("antibody_name", "antigen_name"))}
        missing = {name: [""] if name in kept else ["", *MISSING_TEXT] for name in names}
        read |= {"keep_default_na": False, "na_values": missing}
    # text whatever it looks like: 1.10 may be a name, and 0012 another one than 12
    types = dict.fromkeys(options.sequence_columns(names), object)
    read["dtype"] = defaultdict(lambda: str, types)
    file.seek(0)
    notes = NO_NOTES._replace(remarks=tuple(remarks))
    if is_airr(names):  # the chains of a cell may be far apart
        whole = _with_missing(pd.read_csv(file, **read), options)
        joined, reader = join_cells(whole, options.table.chains)
        notes = reader._replace(remarks=notes.remarks + reader.remarks)
        yield from in_chunks(joined, options.rows, notes)
        return
    left_out = 1 if units else 0
    first_row += left_out
    if options.rows is None:
        whole = pd.read_csv(file, **read).iloc[left_out:]
        yield Chunk(_with_missing(whole, options), first_row, notes)
        return
    # closed also if the caller takes the first chunks only
    with pd.read_csv(file, chunksize=options.rows, **read) as frames:
        for frame in frames:
            yield Chunk(_with_missing(frame.iloc[left_out:], options), first_row, notes)
            left_out = 0


def _unnamed(number: int, header: Sequence[str]) -> str:
    """Name a column without a name as pandas does, which may have written the others."""
    name = f"Unnamed: {number}"
    for copy in itertools.count(1):
        if name not in header:
            break
        name = f"Unnamed: {number}.{copy}"
    return name


def _units_below(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the units in the first of two rows, with which instruments and papers begin.

    Nothing unless all its cells are units or empty, and the next row has other cells there.
    """
    if len(rows) < 2:
        return []
    row, next_row = rows
    units = [re.sub(r"[()\[\]\s]", "", cell) for cell in row]
    filled = [at for at, unit in enumerate(units) if unit]
    if not (filled and all(_UNIT_ALONE.fullmatch(units[at]) for at in filled)):
        return []
    are_labels = all(next_row[at].strip() not in ("", row[at].strip()) for at in filled)
    are_residues = all(len(row[at].strip()) == 1 for at in filled)  # K and M
    return units if are_labels and not are_residues and len(filled) < len(units) else []


def _with_missing(frame: pd.DataFrame, options: ReadOptions) -> pd.DataFrame:
    """Return rows as they are written: fields that a row lacks are empty text."""
    return frame.fillna("") if options.as_written else frame


def _first_lines(file: IO[Any], separator: str, above: int) -> list[list[str]]:
    """Return the cells of the header, and of up to two rows below it.

    The header alone, with an empty name, if R has left out that of the column of row names.
    """
    # without a header: pandas would take the first fields of longer rows for an index, so that all
    # columns shift
    top: dict[str, Any] = {"header": None, "dtype": object, "keep_default_na": False}
    top |= {"sep": separator, "skiprows": above}
    lines: list[list[str]] = []
    for rows in (3, 2):  # a third line of more fields is refused with its number
        file.seek(0)
        try:
            lines = pd.read_csv(file, nrows=rows, **top).fillna("").to_numpy().tolist()
            break
        except pd.errors.ParserError as error:
            reason = error
    if not lines:
        names = _names_above_row_names(file, separator, above)
        if not names:
            raise ValueError(_MORE_FIELDS if "Expected" in str(reason) else str(reason)) from reason
        lines = [["", *names]]
    refuse_repeated([name for name in lines[0] if name], *lines[1:2])
    return lines


def _names_above_row_names(file: IO[bytes], separator: str, above: int) -> list[str]:
    """Return the header if each row has one field more, first a name as R writes them; else none.

    Commas, other than between quoted names, may be within cells of text.
    """
    file.seek(0)
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    row_names = list[str]()
    has_values = False
    try:
        lines = islice(text, above, None)
        line = next(lines, "")
        (names,) = csv.reader([line], delimiter=separator)
        for row in filter(None, csv.reader(lines, delimiter=separator)):
            if len(row) != len(names) + 1 or LONG_RUN.search(row[0]):
                return []
            row_names.append(row[0])
            has_values |= row[-1] != ""  # unlike separators at the ends of rows
    except (csv.Error, ValueError):
        return []
    finally:
        text.detach()
    is_of_r = separator != "," or line.count('"') == 2 * len(names)
    is_distinct = 1 < len({*row_names}) == len(row_names)
    return names if is_of_r and is_distinct and has_values else []


def read_excel(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read the only sheet that has values, as a CSV export of it would be read."""
    cells, remarks = _read_sheet(file, options.table.sheet)
    first_row = int(cells.index[0]) + 2
    lines = []
    for row in cells.to_numpy().tolist():  # csv.writer takes four times as long
        fields = [cell.replace('"', '""') for cell in row]
        lines.append('"' + '","'.join(fields) + '"\n')
    text = io.BytesIO("".join(lines).encode())
    yield from read_separated(text, ",", options, first_row=first_row, remarks=remarks)


def _check_cells(sheet: Any) -> tuple[int, list[str]]:  # noqa: ANN401  # openpyxl ships no types
    """Refuse formulas without values; count hidden rows, and list merged cells."""
    before = b""
    hidden = set[bytes]()
    merged = dict[bytes, None]()
    with sheet._get_source() as part:
        while block := part.read(1 << 20):
            if formula := _UNCOMPUTED.search(before + block):
                msg = (
                    f"cell {formula[1].decode()} has a formula without a value; open the file in "
                    "Excel or LibreOffice and save it again, or write values"
                )
                raise ValueError(msg)
            merged |= dict.fromkeys(_MERGED.findall(before + block))
            hidden.update(_HIDDEN.findall(before + block))
            before = block[-1000:]
    return len(hidden), [cells.decode() for cells in merged]


def _refuse_merged(merged: Sequence[str], header: int) -> None:
    """Raise ValueError for merged cells in the table, of which all but the first are empty."""
    for cells in merged:
        rows = {*map(int, re.findall("[0-9]+", cells))}
        if max(rows, default=header) >= header:
            msg = f"cells {cells} are merged; unmerge them and fill each one"
            if len(rows) == 1:
                msg += ", or delete the row, if it is a title or a note"
            raise ValueError(msg)


def sheet_names(path: Path) -> list[str]:
    """List the sheets of a file; empty if it is no Excel file that can be read."""
    if path.suffix.lower() not in EXCEL or not path.is_file():
        return []
    with warnings.catch_warnings():  # of styles and extensions that openpyxl leaves out
        warnings.simplefilter("ignore")
        try:
            import openpyxl

            book = openpyxl.load_workbook(path, read_only=True)
        except (ImportError, *_READING):  # which reading it says
            return []
    return [sheet.title for sheet in book.worksheets]


def _read_sheet(file: IO[bytes], chosen: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Return the text of a plain sheet from its header on, and remarks on what it shows."""
    if not zipfile.is_zipfile(file):  # as a workbook with a password is not
        msg = "it is incomplete, has a password, or is not an .xlsx file; save it again as .xlsx"
        raise ValueError(msg)
    import openpyxl

    sheets: dict[str, tuple[pd.DataFrame, list[str]]] = {}
    with warnings.catch_warnings():  # of styles and extensions that openpyxl leaves out
        warnings.simplefilter("ignore")
        # data_only: the values that Excel computed last, in place of formulas; read_only: no cell
        # of a link, or an empty one that is far away, is made
        book = openpyxl.load_workbook(file, read_only=True, data_only=True, rich_text=True)
        for sheet in _choose_sheets(book.worksheets, chosen):
            hidden, merged = _check_cells(sheet)
            remarks = []
            if hidden:
                rows = counted(hidden, "hidden row")
                remarks.append(f"{rows} read as others: remove what a filter leaves out")
            cells = _filled_part(sheet, remarks)
            _refuse_merged(merged, 1 if cells is None else int(cells.index[0]) + 1)
            if cells is not None:
                sheets[sheet.title] = (cells, remarks)
    if not sheets:
        msg = "no cell has a value"
        raise ValueError(msg)
    if len(sheets) > 1:
        names = ", ".join(map(repr, sheets))
        example = shell_quoted(next(iter(sheets)))
        msg = (
            f"it has {len(sheets)} sheets with values, {names}; choose one with --sheet {example} "
            "or the like"
        )
        raise ValueError(msg)
    ((cells, remarks),) = sheets.values()
    unnamed = [column for column in cells.columns[1:] if cells[column].iloc[0] == ""]
    if unnamed:  # only the first may lack a name: pandas writes its index so
        letters = openpyxl.utils.get_column_letter(int(unnamed[0]) + 1)
        cell = f"{letters}{int(cells.index[0]) + 1}"
        msg = (
            f"cell {cell} is empty, but its column is not; expected the names of the columns in "
            "the first row"
        )
        raise ValueError(msg)
    return cells, remarks


def _filled_part(
    sheet: Any,  # noqa: ANN401  # openpyxl ships no types
    remarks: list[str],
) -> pd.DataFrame | None:
    """Return the text of the cells of a sheet, less titles, empty columns and empty rows around.

    Add to the `remarks` the titles, which columns of numbers are shown otherwise than stored, and
    how many rows are crossed out.
    """
    sheet.reset_dimensions()  # which some programs state too small
    filled: dict[int, dict[int, str]] = {}  # by column, then by row
    formats: dict[int, tuple[str, str]] = {}
    struck: dict[int, str] = {}
    has_struck = any(font.strike for font in sheet.parent._fonts)  # else no cell is asked
    for row, cells_of_row in enumerate(sheet.iter_rows()):
        for column, cell in enumerate(cells_of_row):
            if text := cell_text(_with_powers(cell.value)):
                if cell.data_type == "n" and _SHOWN_OTHERWISE.search(cell.number_format):
                    if relation := _SHOWN_RELATION.fullmatch(cell.number_format):
                        text = f"{relation[1]}{text}"
                    else:
                        formats.setdefault(column, (cell.number_format, text))
                filled.setdefault(column, {})[row] = text
                if has_struck and cell.font.strike:
                    struck.setdefault(row, cell.coordinate)
    if not filled:
        return None
    last_row = max(map(max, filled.values()))
    rows = range(min(map(min, filled.values())), last_row + 1)
    empty = len(rows) * len(filled) - sum(map(len, filled.values()))
    if empty > MOST_EMPTY:
        msg = (
            f"row {last_row + 1} has a value, with {empty:,} empty cells above; expected the rows "
            "of one table. Delete what is far below the table"
        )
        raise ValueError(msg)
    columns = {}
    for column in sorted(filled):
        columns[column] = [filled[column].get(row, "") for row in rows]
    cells = pd.DataFrame(columns, rows, dtype=object)
    titles = _count_titles(cells.iloc[: MOST_TITLES + 1].to_numpy().tolist())
    if titles:
        remarks += _remarks_on_titles(cells.iloc[:titles].agg("".join, axis=1).tolist())
        below = cells.iloc[titles:]
        cells = below.loc[:, (below != "").any()]
    for column, (number_format, text) in formats.items():
        name = cells[column].iloc[0] if column in cells else ""
        shown = _SHOWN_OTHERWISE.search(number_format)
        if shown and not (shown["unit"] and shown["unit"].strip() in name):
            remarks.append(
                f"column {name!r} is shown in the number format {number_format!r}, and read as it "
                f"is stored, such as {text}"
            )
    if struck:
        rows_struck = counted(len(struck), "row")
        remarks.append(
            f"{rows_struck} with cells that are struck through, the first is "
            f"{next(iter(struck.values()))}, read as others: remove what is not to be used"
        )
    return cells


def _with_powers(value: object) -> object:
    """Return the value of a cell, with a ``^`` before raised numbers: 12² is not 122."""
    if not isinstance(value, list):  # one of openpyxl, if parts of the text have their own format
        return value
    parts = []
    for part in value:
        is_raised = getattr(getattr(part, "font", None), "vertAlign", "") == "superscript"
        is_power = is_raised and re.match("[-−+]?[0-9]", str(part))
        parts.append(f"^{part}" if is_power else str(part))
    return "".join(parts)


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


def read_fasta(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read the records of a file as one table."""
    role = ""
    if [*options.kinds] == ["antigen"]:
        role = options.table.columns.get("antigen", "antigen")
    yield from in_chunks(_parse_fasta(file.read(), role), options.rows)


def fasta_records(content: bytes) -> list[tuple[str, str]]:
    """Return the headers of a FASTA file, without ``>``, with the residues; both may be empty.

    Raises
    ------
    ValueError
        If it is no such file.
    """
    text = re.sub("\r\n?", "\n", content.decode("utf-8-sig"))
    before, *records = re.split(r"^\s*>", text, flags=re.MULTILINE)
    if before.strip():
        line = before.strip().partition("\n")[0]
        msg = f"it begins with {line[:20]!r}, not with '>'"
        raise ValueError(msg)
    parsed = []
    for record in records:
        header, _, lines = record.partition("\n")
        parsed.append((" ".join(header.split()), "".join(lines.split())))
    return parsed


def _parse_fasta(content: bytes, only: str) -> pd.DataFrame:
    """Read FASTA: columns ``id`` and ``sequence``, or ``heavy``, ``light``, ``antigen``.

    Where antigens are asked for alone, each record is one, in the column `only`: what ends in -L or
    -H is a name (cathepsin-L). Unless an antigen shares its name with chains of an antibody.
    """
    records = fasta_records(content)
    names = [header.partition(" ")[0] for header, _ in records]
    ends = [CHAIN_ENDING.fullmatch(name) for name in names]
    if len({*names}) < len(names):  # as in "ab1 heavy chain" and "ab1 light chain"
        headers = [header for header, _ in records]
        whole = [CHAIN_ENDING.fullmatch(header) for header in headers]
        if all(whole):
            ends = whole
        elif not any(ends) and len({*headers}) == len(headers):  # as in "spike BA.1"
            names = headers
    if not any(ends):  # as in VH_ab1 and VL_ab1
        behind = [CHAIN_ENDING.fullmatch(role_last(name)) for name in names]
        if _share_names(behind, {"heavy"}, {"light"}):
            ends = behind
    if only and not _share_names(ends, {"antigen"}, {"heavy", "light"}):
        ends = [None] * len(names)
    without_end = "sequence" if not only or any(ends) else only
    rows: dict[str, dict[str, str]] = {}
    for (_, residues), name, end in zip(records, names, ends, strict=True):
        stem = end["stem"] if end else name
        role = str(end.lastgroup) if end else without_end
        row = rows.setdefault(stem, {})
        if role in row:
            msg = (
                f"record {quoted(name)} is the second {role} of {quoted(stem)}; expected "
                "distinct names"
            )
            raise ValueError(msg)
        # the table is read as CSV is, where these are empty cells
        if residues in ("", *MISSING_TEXT):
            msg = f"record {quoted(name)} holds {quoted(residues)}; expected residues"
            raise ValueError(msg)
        row[role] = residues
    roles = set[str]().union(*rows.values())
    if "sequence" in roles and len(roles) > 1:
        without_role = [stem for stem, row in rows.items() if "sequence" in row]
        name = without_role[0]
        msg = (
            f"record {quoted(name)} does not end in a role as the others do, such as _H, _L "
            "or _antigen"
        )
        raise ValueError(msg)
    columns = {"id": [*rows]}
    for role in (*_ROLES, "sequence", without_end):
        if role in roles:
            columns[role] = [row.get(role, "") for row in rows.values()]
    return pd.DataFrame(columns, dtype=str)


def role_last(name: str) -> str:
    """Put the role of a chain behind its name: VH_ab1 as ab1_VH."""
    first = _CHAIN_FIRST.fullmatch(name)
    return f"{first['stem']}_{first['role']}" if first else name


def _share_names(
    ends: Sequence[re.Match[str] | None], roles: Container[str], others: Container[str]
) -> bool:
    """Tell whether a record of some roles has the name of one of others, less the ending."""
    endings = [end for end in ends if end]
    names = {end["stem"] for end in endings if end.lastgroup in roles}
    return not names.isdisjoint(end["stem"] for end in endings if end.lastgroup in others)


def read_json(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read an object per line, or an array of objects, as a CSV file with the same cells."""
    records = [*_json_records(file.read().decode("utf-8-sig"))]
    names = [*dict.fromkeys(chain.from_iterable(record for _, record in records))]
    sequences = options.sequence_columns(names)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    for place, record in records:
        for name in sequences:
            record[name] = joined_list(record.get(name))
            if isinstance(record[name], dict | list):
                held = type(record[name]).__name__
                msg = f"{place}: {name!r} holds {held}; expected a sequence as text"
                raise ValueError(msg)
        writer.writerow([_json_cell(record.get(name)) for name in names])
    yield from read_separated(text, ",", options, first_row=1)


def _json_records(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file and where they are; numbers stay as written."""
    text = text.rstrip()
    if not text:
        msg = "it is empty"
        raise ValueError(msg)
    rows = _rows_of_object(text)
    if rows or text.lstrip().startswith("["):
        rows = rows or _parse_json(text, "the array")
        records = [(f"object {number}", row) for number, row in enumerate(rows, 1)]
    else:
        records = []
        # not splitlines: a text may contain U+2028 and other ends of lines
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                records.append((f"line {number}", _parse_json(line, f"line {number}")))
    if not records:
        msg = "its array is empty"
        raise ValueError(msg)
    for place, record in records:
        if not isinstance(record, dict) or not record:
            msg = (
                f"{place} is {json.dumps(record)[:20]}, not an object that is a row; expected "
                'objects such as {"heavy": "EVQ", "pKd": 8.5}, one per line or in an array'
            )
            raise ValueError(msg)
        yield place, record


def _rows_of_object(text: str) -> list[dict[str, Any]]:
    """Return the rows of a table that is one object, as pandas and others write it; else none.

    By default pandas has an object per column, with the cells by the index: numbers if not named.
    """
    try:
        whole = _parse_json(text, "") if text.lstrip().startswith("{") else None
    except ValueError:  # such as several lines
        return []
    if not whole:
        return []
    values = [*whole.values()]
    lists = [value for value in values if isinstance(value, list)]
    is_split = {"columns", "data"} <= {*whole} <= {"columns", "index", "data"}
    if is_split and isinstance(whole["data"], list):
        refuse_repeated(whole["columns"])
        return [dict(zip(whole["columns"], row, strict=True)) for row in whole["data"]]
    beside = [v for name, v in whole.items() if name != "schema" and not isinstance(v, list)]
    if len(lists) == 1 and all(str(value).isdecimal() or value is None for value in beside):
        (rows,) = lists  # beside counts, as of services; beside a schema of orient="table"
        if whole.get("data") is rows or (rows and isinstance(rows[0], dict)):
            return rows
    if len(lists) == len(values):
        sizes = {*map(len, values)}
        if len(sizes) == 1 and min(sizes) > 2:  # more than the chains of one antibody
            return [dict(zip(whole, row, strict=True)) for row in zip(*values, strict=True)]
    if all(isinstance(value, dict) and value for value in values):
        index = [*dict.fromkeys(chain.from_iterable(values))]
        if all(map(str.isdecimal, whole)):  # orient="index"
            return values
        if all(map(str.isdecimal, index)):
            return [{name: cells.get(row) for name, cells in whole.items()} for row in index]
    return [whole] if "\n" in text else []


def _parse_json(text: str, place: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(
            text,
            parse_float=str,  # 7.10 stays 7.10, and a long id all of its digits
            parse_int=str,
            parse_constant=str,
            object_pairs_hook=_distinct_names,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        msg = f"{place} is not JSON ({error}); expected one object per line, or an array of objects"
        raise ValueError(msg) from None


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _json_cell(value: object) -> str:
    """Return a value as text; lists and objects, which are passed on only, as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


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
        if not file.is_file():  # a pipe would be waited for
            msg = f"{file}: is not a regular file; expected a table. Save it to a file first."
            raise TableError(msg)
        suffix = bare_suffix(file)
        if suffix not in FORMATS:
            msg = (
                f"{file}: not a supported table format; expected a name that ends in "
                f"{', '.join(FORMATS)}, also with .gz, or a folder of .parquet files. "
                "Convert, unpack or rename it."
            )
            raise TableError(msg)
        if options.table.sheet is not None and suffix not in EXCEL:
            msg = (
                f"{file}: is not an Excel file; expected one that ends in {EXCEL[0]} with --sheet "
                f"{shell_quoted(options.table.sheet)}. Leave --sheet out."
            )
            raise TableError(msg)
        try:
            opening: Any = gzip.open if is_gzip(file) else Path.open
            with opening(file, "rb") as stream:
                if is_gzip(file) and suffix in _SEEKING:
                    # each seek backwards would decompress the file from its start
                    yield from FORMATS[suffix](io.BytesIO(stream.read()), options)
                else:
                    yield from FORMATS[suffix](stream, options)
        except ModuleNotFoundError as error:
            if suffix not in EXCEL:
                raise
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
            reason = _reason(error)
            says_what_to_do = ";" in reason  # as errors of this module do
            advice = "" if says_what_to_do else f"; expected a {suffix} table. Check the file"
            msg = f"{file}: cannot be read: {reason}{advice}."
            raise TableError(msg) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):  # its position counts from the start of a block
        byte = error.object[error.start]
        return f"byte 0x{byte:02x} is not utf-8; save it as UTF-8 (in Excel, as CSV UTF-8)"
    if isinstance(error, pd.errors.EmptyDataError):
        return "it is empty"
    if fields := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        expected, line, found = fields.groups()
        return (
            f"line {line} has {counted(int(found), 'field')}, and the header {expected}; quote "
            "cells that hold the separator, or remove lines above the header or below the table"
        )
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
    refuse_repeated(parquet.schema_arrow.names)
    for column in parquet.schema_arrow:  # of all columns, before sequences are encoded
        _refuse_unsupported(column)
    limits = filter(None, (options.rows, parquet.metadata.num_rows))
    rows = min(limits, default=1)  # a batch of 0 rows is an error, also of an empty file
    for batch in parquet.iter_batches(rows):
        batch.validate(full=True)  # text that is not UTF-8
        fields = [field.with_type(plain_type(field.type)) for field in batch.schema]
        table = batch.cast(pa.schema(fields))  # without metadata: what pandas noted may be wrong
        for name in options.sequence_columns(table.schema.names):
            at = table.schema.get_field_index(name)
            if pa.types.is_nested(table.schema.types[at]):
                texts = [*map(joined_list, table[at].to_pylist())]
                if not all(text is None or isinstance(text, str) for text in texts):
                    msg = (
                        f"column {name!r} has the type {table.schema.types[at]}; expected "
                        "sequences as text, or lists of chains. Convert it"
                    )
                    raise ValueError(msg)
                table = table.set_column(at, name, pa.array(texts, pa.large_string()))
        if options.as_written:
            yield Chunk(table.to_pandas(types_mapper=pd.ArrowDtype))
            continue
        for at, column in enumerate(table.schema):
            if pa.types.is_nested(column.type):  # no cell that can be compared, such as a vector
                text = pa.scalar(f"<{column.type}>")
                texts = pc.if_else(table[at].is_null(), pa.scalar(None, pa.string()), text)
                table = table.set_column(at, column.name, texts)
        frame = table.to_pandas()
        # pandas makes a new text per row each time it goes through categories
        types = {}
        for name, kind in frame.dtypes.items():
            if isinstance(kind, pd.CategoricalDtype) and is_string_dtype(kind.categories.dtype):
                types[name] = object
        yield Chunk(frame.astype(types))


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
        if kind != without_view(kind):  # Arrow casts views, but not those inside another type
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
    ".tab": read_text,
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".parquet": _read_parquet,
    **dict.fromkeys(EXCEL, read_excel),
    ".fasta": read_fasta,
    ".fa": read_fasta,
    ".faa": read_fasta,
}
"""Readers by the suffix of the file's name, less ``.gz``: each yields rows from top to bottom."""
IN_QUOTES = frozenset(suffix for suffix, read in FORMATS.items() if read is read_text)
"""Formats in which an unmatched quotation mark makes one cell of several rows."""
