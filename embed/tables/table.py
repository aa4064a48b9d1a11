"""Tables of every command: read whole or in chunks, with the roles of their columns, and written.

A table is a file (`formats`), a matrix or a data frame. Promises that it keeps all of its rows and
columns, and that rows are numbered as in the file. Each cell of a matrix that is not empty becomes
one row, with the row number of the matrix, and empty cells become none. Numbers may be written as
people and spreadsheets write them.

A table is written in chunks; the file appears under its name only when it is whole. Text tables
hand on their columns with types, to Parquet files and data frames. Columns of names, categories and
sequences stay text; another column becomes numbers or truth values if all its cells are, and no
cell loses anything: 0012, 4E10 and 1.10 beside 1.1 stay text.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from html import unescape
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_any_real_numeric_dtype

from abag.core.arrays import Floats
from abag.core.errors import AbagError, ColumnError, TableError
from abag.core.files import replacing
from abag.core.frames import nested_columns
from abag.core.messages import counted, first_line
from abag.embed.tables.airr import NO_NOTES, ReaderNotes
from abag.embed.tables.chains import ANTIBODY_ROLES, CHAIN_ROLES, MISSING_TEXT, joined_list
from abag.embed.tables.columns import (
    ROLES,
    UNNAMED,
    MissingColumn,
    find_columns,
    may_hold,
    quote_names,
    quote_some,
    with_found,
)
from abag.embed.tables.formats import (
    FORMATS,
    Chunk,
    ReadOptions,
    bare_suffix,
    cell_text,
    in_chunks,
    is_gzip,
    read_file_chunks,
    refuse_repeated,
)
from abag.embed.tables.options import TableOptions

_SIGNS = str.maketrans(
    dict.fromkeys("−‐‑‒–﹣－", "-")
    | dict.fromkeys("≈≃≅∼～", "~")
    | {"＞": ">", "＜": "<", "⩾": "≥", "≧": "≥", "⩽": "≤", "≦": "≤"}
)
"""Signs that are set for a minus or a relation."""
_EXPONENT = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_RAISED = str.maketrans(_EXPONENT, "0123456789+-")
ERROR_SIGN = r"(?:±|\+\s*/\s*-)"
_POWER = re.compile(
    rf"(?<=[0-9)])\s*[x×·⋅∙*]\s*10\s*(?:\^\s*[({{]?([-+]?[0-9]{{1,2}})[)}}]?|([-+][0-9]{{1,2}})|"
    rf"([{_EXPONENT}]+))\s*(?=$|\(?\s*{ERROR_SIGN}|\)$)",
    re.IGNORECASE,
)
"""A power of ten behind a number; 1.2 x 109 may have lost that its 9 was raised."""
_GROUPED = re.compile(
    "(?<![0-9.,])[0-9]{1,3}(?:[\u00a0\u2007\u2008\u2009\u200a\u202f][0-9]{3})+(?![0-9])"
)
"""Digits in groups of three with a no-break or thin space between them."""
_POINT = re.compile(r"[-+]?[0-9]*\.[0-9]*(e[-+]?[0-9]+)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(
    r"[-+]?([0-9]{1,3}(\.[0-9]{3})+(,[0-9]+)?|[0-9]+,[0-9]+(e[-+]?[0-9]+)?)", re.IGNORECASE
)
_THOUSANDS_COMMA = re.compile(r"[-+]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]+)?")
_THOUSANDS_POINT = re.compile(r"[-+]?[1-9][0-9]{0,2}(\.[0-9]{3}){2,}")
_UNCLEAR_POINT = re.compile(r"[-+]?[1-9][0-9]{0,2}(\.[0-9]{3})?")
Commas: TypeAlias = Literal["", "decimals", "thousands", "unclear"]
_REMOVE_MARKS: dict[str, Callable[[str], str]] = {
    "decimals": lambda text: text.replace(".", "").replace(",", "."),
    "thousands": lambda text: text.replace(",", ""),
    "unclear": lambda text: "" if "." in text else text,
}
"""How numbers of a column are spelled without its marks, by the meaning of its commas."""

SIDES = {">": 1, "≥": 1, "<": -1, "≤": -1, "": 0, "=": 0, "~": 0}
"""Relations by their first character: on which side of a number the value lies."""
SIGN_OF_WORDS = {
    **dict.fromkeys(("gt", "ge", "gte", "greater than", "more than", "greater"), ">"),
    **dict.fromkeys(("lt", "le", "lte", "less than", "less"), "<"),
    **dict.fromkeys(("eq", "equal", "equals", "equal to", "exact", "interpolated"), "="),
    "lower bound": ">",
    "upper bound": "<",
}
"""Relations in words, in lower case."""
_WORDS_OF_BOUND = re.compile(
    r"\A\s*(?:(?P<above>(?:greater|more|higher|larger) than|above|over|at least|gte?|ge)"
    r"|(?:less|lower|smaller) than|below|under|at most|up to|lte?|le)\s+(?=[.0-9])",
    re.IGNORECASE,
)
"""The same before a number."""
BOUND_WORDS = ("lower", "upper", "lower bound", "upper bound")
"""Those that are of the number in the row, whatever its unit."""
_BOUND = re.compile(r"\s*([<>≥≤=~])=?\s*(?=[-+.\d])")
_WITH_ERROR = re.compile(
    r"\s*(?P<both>\()?\s*(?P<number>[-+]?[0-9.,]*[0-9](?P<power>e[-+]?[0-9]+)?)\s*"
    rf"(?P<error>(?P<bracket>\()?\s*{ERROR_SIGN}\s*"
    r"(?:[0-9.,]*[0-9](?(power)(?:e[-+]?[0-9]+)?)|nan|n/?a|n\.?d\.?)\s*"
    r"(?(bracket)\)))\s*(?(both)\)(?P<behind>e[-+]?[0-9]+)?)\s*",
    re.IGNORECASE,
)
"""A power behind the error alone may be of both, as in 3.2 ± 0.4 x 10^-9, and is none here."""


def signs_of_words(column: str) -> Mapping[str, str]:
    """Return the relations in words of a column of this name: ``lower`` is a bound, or less."""
    is_of_bounds = "bound" in column.lower()
    return {**SIGN_OF_WORDS, "lower": ">", "upper": "<"} if is_of_bounds else SIGN_OF_WORDS


def plain_number(text: str) -> str:
    """Spell a number with ASCII signs: ``−1.5`` as ``-1.5``, ``12 500`` with thin spaces as 12500.

    Powers of ten, ``1.2 × 10⁻⁹``, become ``1.2e-9``, and ``above 5``, or ``&gt;5`` of a web page,
    ``>5``. Text of anything else keeps its meaning. Spaces in other places stay, so that it is no
    number.
    """
    if "&" in text:
        text = unescape(text)
    text = _WORDS_OF_BOUND.sub(lambda words: ">" if words["above"] else "<", text, count=1)
    if not text.isascii():
        # invisible characters, such as a byte order mark
        visible = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")
        signs = visible.translate(_SIGNS)
        text = _GROUPED.sub(lambda found: re.sub(r"\s", "", found[0]), signs).strip()
    if "10" not in text:
        return text
    return _POWER.sub(lambda found: "e" + found[found.lastindex or 0].translate(_RAISED), text)


def without_error(number: str) -> str:
    """Leave out the error behind a plain number, as in ``3.2 ± 0.4`` and ``(3.2 ± 0.4)e-9``."""
    found = _WITH_ERROR.fullmatch(number)
    # of 1.200 ± 150,5 the error says that the point is no decimal point
    if found is None or ("," in found["error"] and "," not in found["number"]):
        return number
    return found["number"] + (found["behind"] or "")


def read_names(cells: pd.Series) -> pd.Series:
    """Return names as text without spaces at their ends, (R,): ``NA`` is one; empty if missing."""
    return cells.astype(object).map(cell_text).str.strip()


def read_texts(cells: pd.Series) -> pd.Series:
    """Return cells as text without spaces at their ends, (R,); empty where one is missing."""
    texts = read_names(cells)
    return texts.mask(texts.isin(MISSING_TEXT), "")


def meaning_of_commas(cells: Sequence[object]) -> Commas:
    """Tell what the commas in a column of numbers are before; empty if it has none.

    Cells such as ``0,5`` and ``1.234,5``, or ``1,234.5`` and ``1,234,567``, tell it for the others.
    Points between thousands, as in ``1.234.567``, are unclear beside ``1.234``.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    marked = [text for text in texts if "," in text or text.count(".") > 1]
    if not marked:
        return ""
    are_decimals = all(map(_DECIMAL_COMMA.fullmatch, marked))
    are_thousands = all(map(_THOUSANDS_COMMA.fullmatch, marked))
    if are_thousands and not are_decimals:
        return "thousands"
    has_points = any(isinstance(cell, float) and not math.isnan(cell) for cell in cells)
    has_points |= any("." in text and _POINT.fullmatch(text) for text in texts)
    if are_decimals and not are_thousands and not has_points:
        return "decimals"
    return "unclear" if any(map(_THOUSANDS_POINT.fullmatch, marked)) else ""


def with_unclear_point(cells: Iterable[object]) -> str:
    """Return a number such as ``1.000`` of which none of a column shows what its point is before.

    Empty if one does, as ``1.5`` and ``0.125``, or if there are no points.
    """
    texts = [
        _BOUND.sub("", without_error(plain_number(cell))).strip()
        for cell in cells
        if isinstance(cell, str)
    ]
    numbers = [text for text in texts if any(map(str.isdigit, text))]
    pointed = [text for text in numbers if "." in text]
    return pointed[0] if pointed and all(map(_UNCLEAR_POINT.fullmatch, numbers)) else ""


class CellNumbers(NamedTuple):
    """The numbers in the cells of a column, and how they are written."""

    values: Floats
    """Shape (R,); NaN for what is neither a number nor text of one."""
    sides: NDArray[np.int8]
    """Shape (R,); on which side of its number each value lies: 1 above, -1 below, 0 exact."""
    commas: Commas = ""
    """What the commas in the cells are before, where the column tells it."""


def read_numbers(cells: pd.Series) -> Floats:
    """Convert cells to numbers, shape (R,); NaN for what is neither a number nor text of one."""
    return _read_cells(cells, with_bounds=False).values


def read_bounds(cells: pd.Series) -> CellNumbers:
    """Convert cells as `read_numbers` does, also those such as ``>1000`` and ``3.2 ± 0.4``."""
    return _read_cells(cells, with_bounds=True)


def _read_cells(cells: pd.Series, *, with_bounds: bool) -> CellNumbers:
    sides = np.zeros(len(cells), np.int8)
    if infer_dtype(cells, skipna=True) == "string":  # of text alone: spared a loop over the cells
        numbers = pd.to_numeric(cells, errors="coerce")
        if (numbers.isna() == cells.isna()).all():
            # a copy: pandas' is read-only
            return CellNumbers(numbers.to_numpy(np.float64, na_value=np.nan, copy=True), sides)
    commas: Commas = ""
    if not is_any_real_numeric_dtype(cells.dtype):  # pandas converts dates and booleans too
        values: list[object] = []
        for at, cell in enumerate(listed_cells(cells)):
            if isinstance(cell, str):
                number = plain_number(cell)
                if with_bounds and (bound := _BOUND.match(number)):
                    sides[at] = SIDES[bound[1]]
                    number = number[bound.end() :]
                elif with_bounds:
                    number = without_error(number)
                values.append(number)
            else:
                values.append(cell if _is_number(cell) else None)
        commas = meaning_of_commas(values)
        if remove_marks := _REMOVE_MARKS.get(commas):
            values = [remove_marks(cell) if isinstance(cell, str) else cell for cell in values]
        cells = pd.Series(values, dtype=object)
    numbers = pd.to_numeric(cells, errors="coerce")
    return CellNumbers(numbers.to_numpy(np.float64, na_value=np.nan), sides, commas)


def _is_number(cell: object) -> bool:
    if isinstance(cell, int) and abs(cell) > sys.float_info.max:
        return False  # pandas would raise OverflowError
    kinds = (int, float, Decimal, np.integer, np.floating)
    return isinstance(cell, kinds) and not isinstance(cell, bool)


ANTIGEN_COLUMN = "antigen"
LABEL_COLUMN = "label"
_QUANTITY = "p?KD|p?[IE]C[589]0"
_UNIT = "[fpnuµμm]M|[pnuµμm]?g[ /_]?m?L"
_HEADER_OF_MATRIX = re.compile(
    rf"((?P<before>{_QUANTITY})[\s_:-]+)?(?P<antigen>.+?)([\s_-]+(?P<behind>{_QUANTITY}))?"
    rf"([\s_-]+(?P<bare>{_UNIT})|\s*[(\[](?P<unit>{_UNIT}|M)[)\]])?",
    re.IGNORECASE,
)
"""A header that says, beside the antigen, what the labels are: ``IL-6 (nM)``, ``BA.1-IC50``."""
_OF_ANTIBODIES = ("heavy", "light", "antibody", "antibody_name", "id", "mutations")
"""Roles of columns that say which antibody a row has."""
_NUMBER = re.compile(r"\s*[<>=~≤≥]*\s*[-+]?[\d.,\s]*\d[\d.,\s]*(e[-+]?\d+)?\s*", re.IGNORECASE)
"""A label or bound, also one that is then refused for its decimal comma."""
UNIT_IN_CELL = r"(?:[munpfµμ]?M|[munpµμ]?g\s?/\s?m?[lL])"
_UNIT_OF_CELL = re.compile(rf"\s*{UNIT_IN_CELL}\s*$", re.IGNORECASE)
_CLASS = re.compile(
    "yes|no|y|n|true|false|t|f|[+]+|[+]/-|±|-|pos(itive)?|neg(ative)?|none|weak|low|medium|high|"
    "strong|(non?[ -]?)?(binder|binding)",
    re.IGNORECASE,
)
"""A label that is yes, no, or another class."""
_NO_BINDING = frozenset(
    "nb nobinding nobind nobinder nonbinder nonbinders nonbinding notbinding doesnotbind dnb "
    "nobindingdetected nobindingobserved nodetectablebinding nd notdetected nondetected "
    "notdetectable nonedetected undetectable undetected bdl belowdetection belowdetectionlimit "
    "belowlimitofdetection belowlod nbd nosignal noresponse noaffinity nomeasurablebinding inf "
    "infinity".split()
)
"""Words for a pair that does not bind, without spaces and signs."""
_MOST_MARKS = 2
"""Words of a column of labels for pairs that have none."""
OneTable: TypeAlias = Path | str | pd.DataFrame
"""A file, a folder of Parquet files, or a table in memory."""
TableLike: TypeAlias = OneTable | Sequence[OneTable]
"""A table, or several that are read as one (`embed.tables.pairs`)."""
LOOKED_AT = 1_000
"""Distinct cells of a column by which its content is recognized."""


def listed_cells(cells: pd.Series) -> list[object]:
    """List the cells of a column; None for each where Python lacks one of their times."""
    try:
        return cells.tolist()
    except OverflowError:  # of Arrow
        return [None] * len(cells)


def says_no_binding(cell: object) -> bool:
    """Tell whether a cell says in words, or by an infinite Kd, that a pair does not bind."""
    if not isinstance(cell, str):
        return isinstance(cell, float) and math.isinf(cell)
    if re.search(r"[1-9]", cell):  # a value, unlike "0, no binding"
        return False
    return re.sub(r"[^a-z]", "", cell.lower()) in _NO_BINDING


def _is_measurement(text: str) -> bool:
    """Tell whether a cell is a number, a bound, or says no binding."""
    number = without_error(plain_number(_UNIT_OF_CELL.sub("", text)))
    return says_no_binding(text) or _NUMBER.fullmatch(number) is not None


def _is_class(text: str) -> bool:
    return _CLASS.fullmatch(text) is not None


def _holds_labels(cells: pd.Series, is_label: Callable[[str], bool]) -> bool:
    """Tell whether at least half of the filled cells are labels.

    Or fewer, if the others are one or two words, such as ``-`` and ``NT`` for pairs not tested.
    """
    filled = cells.dropna().tolist()
    others = [text for text in filled if not is_label(text)]
    labels = len(filled) - len(others)
    return labels > 0 and (len(filled) <= 2 * labels or len({*others}) <= _MOST_MARKS)


class NoRows(TableError):
    """A table has no rows."""


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
    na_is_text: bool
    """Whether missing cells of columns of text may still be text (`MISSING_TEXT`)."""
    reader: ReaderNotes = NO_NOTES

    @property
    def names(self) -> list[str]:
        """All columns of the table."""
        return [*self.frame.columns]

    @property
    def is_matrix(self) -> bool:
        """Whether its rows were the cells of a matrix, whose labels no header names."""
        return self.reader.numbers is not None

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
            other = "light" if role == "heavy" else "heavy"
            if role in CHAIN_ROLES and other in self.ties:
                msg += f" So do {quote_names(self.ties[other])} for {other}."
            raise ColumnError(msg)
        self.refuse_missing(f"no column for {role}", f"Name it with --column {role}=NAME{advice}.")

    def refuse(self, why: str, error: type[AbagError] = TableError) -> NoReturn:
        """Raise an error of the table: what is wrong with it, what was expected, what to do."""
        msg = f"{self.source}: {why}"
        raise error(msg)

    def refuse_missing(self, problem: str, advice: str) -> NoReturn:
        """Raise `MissingColumn`, which lists the columns that there are."""
        self.refuse(with_found(problem, self.names, advice), MissingColumn)

    def with_roles(self, chosen: Mapping[str, str]) -> Table:
        """Return it with the roles of its columns by their names, some chosen by the user."""
        columns, ties = find_columns(self.names, {**self.columns, **chosen}, self.source)
        return replace(self, columns=columns, ties=ties)

    def has(self, role: str) -> bool:
        """Tell whether one or several columns fit a role."""
        return role in self.columns or role in self.ties

    def factorize(self, role: str, *, by_name: bool = False) -> tuple[NDArray[np.int64], list[Any]]:
        """Return the index of each row's cell, (R,), and the distinct cells, the missing one first.

        In a column of names, ``NA`` and the like are cells as others.

        Raises
        ------
        TableError
            If the column holds lists or the like.
        """
        name = self.column(role)
        cells = self.frame[name]
        try:
            codes, distinct = pd.factorize(cells if by_name else self._with_missing(cells))
        except (TypeError, NotImplementedError) as error:  # lists, structs
            msg = (
                f"{self.source}: column {name!r} holds {cells.dtype} values; expected text. "
                "Convert it."
            )
            raise TableError(msg) from error
        return codes.astype(np.int64) + 1, ["", *distinct.tolist()]  # -1: missing

    def distinct_cells(self, name: str) -> list[object]:
        """Return distinct cells of a column that are not empty, from its first rows."""
        filled = self.frame[name].dropna().iloc[: 50 * LOOKED_AT]
        try:
            found = filled.iloc[: 2 * LOOKED_AT].unique()
            if len(found) < LOOKED_AT:  # else the rest need not be hashed
                found = filled.unique()
            cells = listed_cells(pd.Series(found[:LOOKED_AT]))
        except (TypeError, NotImplementedError):  # lists, structs
            return []
        return [cell for cell in cells if cell_text(cell).strip()]

    def _with_missing(self, cells: pd.Series) -> pd.Series:
        is_text = isinstance(cells.dtype, pd.StringDtype) or cells.dtype == np.dtype(object)
        if self.na_is_text and is_text:  # Parquet marks missing cells, and has other types here
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
            for at, cell in enumerate(listed_cells(cells)):
                if isinstance(cell, str):
                    still_empty[at] = cell.strip() == ""
            empty[empty] = still_empty
        return empty

    def are_comments(self) -> NDArray[np.bool_]:
        """Mark the rows with a text behind # in their first cell, and no other; shape (R,)."""
        comment = np.zeros(len(self.frame), np.bool_)
        first = listed_cells(self.frame.iloc[:, 0])
        marked = [isinstance(cell, str) and cell.startswith("#") for cell in first]
        if any(marked):
            comment[marked] = replace(self, frame=self.frame.iloc[marked, 1:]).are_empty()
        return comment


def open_table(table: OneTable, reading: ReadOptions) -> Iterator[Table]:
    """Read the rows of a table in chunks, numbered through all of them.

    Only the columns of a matrix play roles: which those of others play, nobody has decided yet.

    Raises
    ------
    TableError
        If the file cannot be read, or there is no row.
    """
    options = reading.table
    limit = options.limit
    if isinstance(table, pd.DataFrame):
        source = "table"
        _refuse_unclear_columns(table)
        if not all(isinstance(name, str) for name in table.columns):
            table = table.set_axis([*map(str, table.columns)], axis=1)
        nested = [*nested_columns(table)]
        for name in reading.sequence_columns([*table.columns]):
            if name in nested:
                texts = [*map(joined_list, table[name])]
                table = table.assign(**{name: pd.Series(texts, table.index, object)})
        for name, kind in nested_columns(table[nested]).items():
            msg = (
                f"{source}: column {name!r} has cells of the nested type {kind}; expected "
                "text, numbers or truth values. Divide it into columns of its own, or leave it out."
            )
            raise TableError(msg)
        chunks = in_chunks(table, None if options.matrix else reading.rows)
    else:
        source = Path(table).name or str(table)
        most = reading.rows if limit is None else min(limit, reading.rows or limit)
        of_file = replace(reading, rows=most)
        if options.matrix:
            # a matrix is turned as a whole; `rows` and `limit` are then those of its pairs
            of_file = replace(of_file, rows=None, as_written=True)
        chunks = read_file_chunks(Path(table), of_file)
    roles: dict[str, str] = {}
    if options.matrix:
        pairs, roles, notes = _read_matrix(chunks, options.columns, source)
        chunks = in_chunks(pairs, reading.rows, notes)
    tables = []
    start = 0
    for chunk in chunks:
        frame = chunk.frame if limit is None else chunk.frame.head(limit - start)
        rows = Table(
            source=source,
            frame=frame.set_axis(pd.RangeIndex(start, start + len(frame))),
            first_row=chunk.first_row,
            columns=roles,
            ties={},
            na_is_text=reading.as_written or reading.may_be_names,
            reader=chunk.reader,
        )
        start += len(frame)
        if len(frame) and reading.rows is not None:
            yield rows
        elif len(frame):
            tables.append(rows)
        if start == limit:
            break
    _refuse_no_rows(start, source)
    if tables:  # the files of a folder, whose columns may differ
        frames = [part.frame for part in tables]
        yield replace(tables[0], frame=pd.concat(frames) if len(frames) > 1 else frames[0])


def _read_matrix(
    chunks: Iterator[Chunk], chosen: Mapping[str, str], source: str
) -> tuple[pd.DataFrame, dict[str, str], ReaderNotes]:
    """Make a row per antibody and antigen of a matrix.

    Returns its columns without labels with `ANTIGEN_COLUMN` and a column of labels, the roles that
    it gives, and the row numbers of the matrix.
    """
    read = [*chunks]
    cells = pd.concat([chunk.frame for chunk in read], ignore_index=True).astype(object)
    _refuse_no_rows(len(cells), source)
    cells = cells.map(cell_text)
    texts = cells.mask(cells.isin(MISSING_TEXT)).apply(lambda column: column.str.strip())
    texts = texts.mask(texts == "")
    names = [*cells]
    columns, ties = find_columns(names, chosen, source)
    named: set[str] = set()
    for role in _OF_ANTIBODIES:
        if role in columns:
            named.add(columns[role])
        named.update(ties.get(role, ()))
    index = {*filter(UNNAMED.fullmatch, names)}
    free = [name for name in names if name not in named and name not in index]
    antigens: list[str] = []
    for is_label in (_is_measurement, _is_class):  # beside numbers, a yes describes the antibody
        antigens = antigens or [name for name in free if _holds_labels(texts[name], is_label)]
    others = [name for name in names if name not in antigens]
    if not antigens or not others:
        missing = "columns of labels" if not antigens else "column that names the antibodies"
        msg = (
            f"{source}: it has no {missing}; --matrix expects a row per antibody and a column "
            "per antigen with numbers, or words such as yes and no, in the cells. Leave --matrix "
            "out for a table with a row per pair."
        )
        raise TableError(msg)
    antigen_names, label_column = _names_in_headers(antigens)
    taken = {ANTIGEN_COLUMN, label_column}.intersection(others)
    if taken:
        msg = (
            f"{source}: it has a column {min(taken)!r}, which --matrix makes of the other columns; "
            "rename or remove that column, or leave --matrix out for a table with a row per pair."
        )
        raise TableError(msg)
    labels = texts[antigens].to_numpy(object)
    row, column = np.nonzero(pd.notna(labels))
    frame = cells[others].iloc[row].reset_index(drop=True)
    frame[ANTIGEN_COLUMN] = np.array(antigen_names, object)[column]
    frame[label_column] = labels[row, column]
    roles = {"antigen": ANTIGEN_COLUMN, "pkd": label_column}
    texts_only = [name for name in others if name not in index] or others
    if len(texts_only) == 1 and not named:
        roles["antibody"] = texts_only[0]
    empty = labels.size - len(row)
    size = f"{counted(len(cells), 'row')} and {counted(len(antigens), 'antigen')}"
    remark = (
        f"matrix of {size}, read from the headers ({quote_some(antigens)}): "
        f"{counted(len(row), 'label')}, {counted(empty, 'empty cell')} left out as not measured"
    )
    return (
        frame,
        roles,
        ReaderNotes(
            remarks=(*read[0].reader.remarks, remark),
            numbers=tuple((row + read[0].first_row).tolist()),
        ),
    )


def _names_in_headers(headers: Sequence[str]) -> tuple[list[str], str]:
    """Return the antigens that headers name, and the name of a column for what all say of labels.

    Headers that do not say the same, or from which nothing else would be left, are antigens.
    """
    antigens = []
    labels = []
    for header in headers:
        found = _HEADER_OF_MATRIX.fullmatch(header.strip())
        quantity = found and (found["before"] or found["behind"])
        unit = found and (found["bare"] or found["unit"])
        antigens.append(found["antigen"] if found else header)
        labels.append(f"{quantity or 'affinity'} ({unit})" if unit else quantity or LABEL_COLUMN)
    if len({label.lower() for label in labels}) > 1 or len({*antigens}) < len(headers):
        return [*headers], LABEL_COLUMN
    return antigens, labels[0]


def _refuse_no_rows(rows: int, source: str) -> None:
    if not rows:
        msg = f"{source}: the table has no rows; expected at least one."
        raise NoRows(msg)


def read_table(table: OneTable, sheet: str | None = None) -> Table:
    """Read a whole table as it is written, and find the roles of its columns by their names.

    `sheet` is that of an Excel file with several.

    Raises
    ------
    TableError
        If the file cannot be read, or has no rows.
    """
    reading = ReadOptions(rows=None, as_written=True, table=TableOptions(sheet=sheet))
    return next(open_table(table, reading)).with_roles({})


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
        refuse_repeated([*map(str, frame.columns)])
    except ValueError as error:
        msg = f"table: {error}. Rename one, or remove it."
        raise TableError(msg) from None
    in_columns = {role for role in ANTIBODY_ROLES if may_hold(frame.columns, {}, [role])}
    lacking = {"antibody"} if not in_columns else set()
    if "antibody" not in in_columns:
        lacking |= {*CHAIN_ROLES} - in_columns
    for name in frame.index.names:
        # left out without a word, an antibody would have one chain
        if name is not None and may_hold([name], {}, lacking):
            msg = (
                f"table: {quote_names([name])} is in the index; expected a column. Pass "
                "table.reset_index()."
            )
            raise TableError(msg)


# ---- writing ------------------------------------------------------------------------------------


_NUMBER_ROLES = frozenset({"pkd", "label", "prediction", "sigma"})
_READ_AS_TEXT = frozenset(ROLES) - _NUMBER_ROLES - {"censored"}
_INTEGER = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_AS_WRITTEN = re.compile(
    r"[-+]?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][-+]\d{1,3})?"
    r"|[-+]?\d\.\d+[eE]\d{1,3}|[-+]?inf(inity)?",
    re.IGNORECASE,
)
"""A number as programs write it: not a well such as 4E10, nor more digits than a float has."""
_DECIMALS = re.compile(r"[^.]*\.(\d{2,}|\d)")
_TRUTH = {"true": True, "false": False}
_CellType: TypeAlias = Literal["integer", "number", "truth", "text"]


WriteFrame: TypeAlias = Callable[[pd.DataFrame], None]
OpenWriter: TypeAlias = Callable[[IO[bytes]], AbstractContextManager[WriteFrame]]


class _CellTypes:
    """What the cells of one column are, of all that were seen."""

    def __init__(self) -> None:
        self.types: set[_CellType] = {"integer", "number", "truth"}
        """Types that all cells have."""
        self.decimals: set[int] = set()
        self.is_padded = False
        """Whether a cell such as 1.10 ends in a zero that its number lacks."""

    def add(self, texts: Iterable[str], *, is_number: bool) -> None:
        """Look at distinct cells; as the role of the column says, a number loses nothing."""
        for text in texts:
            types: set[_CellType] = set()
            if _INTEGER.fullmatch(text):
                types.add("integer")
            if _AS_WRITTEN.fullmatch(text) or (is_number and _is_float(text)):
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
    def type(self) -> _CellType:
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
        self._columns: dict[str, _CellTypes] = {}

    def add(self, frame: pd.DataFrame, roles: Mapping[str, str]) -> None:
        """Look at the cells of a chunk with these columns by role."""
        for role, name in roles.items():
            if role in _READ_AS_TEXT:
                self._text.add(name)
            elif role in _NUMBER_ROLES:
                self._numbers.add(name)
        for name in map(str, frame.columns):
            column = self._columns.setdefault(name, _CellTypes())
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


def _convert(texts: pd.Series, kind: _CellType) -> pd.Series:
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
        options: dict[str, Any] = {
            "index": False,
            "header": file.tell() == 0,
            "sep": separator,
            "lineterminator": "\n",
        }
        text = frame.to_csv(**options)
        # csv does not quote a lone carriage return, which readers take for the end of a row
        if "\r" in text:
            text = frame.to_csv(**options, quoting=csv.QUOTE_ALL)
        file.write(text.encode())

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
