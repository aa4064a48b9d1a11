"""Tables in memory, of pandas and of others: read as pandas, results returned as they came.

Others export their columns by the Arrow PyCapsule interface (Polars, PyArrow, DuckDB, and pandas
itself). Their columns keep the types of Arrow, so that whole numbers with missing cells stay whole
numbers with missing cells.

References
----------
The Arrow PyCapsule interface: https://arrow.apache.org/docs/format/CDataInterface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa

from abag.core.errors import TableError
from abag.core.messages import first_line

NESTED_CELLS = (list, tuple, dict, set)
"""Types of cells that hold several values."""


class ArrowTable(Protocol):
    """A table that exports its columns, such as one of Polars or PyArrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows."""


ListsByColumn: TypeAlias = Mapping[str, Sequence[Any]]
"""Cells by the name of their column."""
AnyTable: TypeAlias = Path | str | pd.DataFrame | ArrowTable | ListsByColumn
"""A file, or a table in memory."""
AnyTables: TypeAlias = AnyTable | Sequence[AnyTable]
"""A table, or several that are read as one."""


def as_pandas(table: Any, name: str) -> Any:  # noqa: ANN401 - any argument
    """Return a table in memory as a pandas DataFrame; a path, or what is no table, as it is.

    Parameters
    ----------
    table : object
        Or a list of tables, each of which is converted.
    name : str
        That of the argument, for messages.

    Raises
    ------
    TableError
        If the table is lazy, or has columns that pandas cannot hold.
    """
    if isinstance(table, list | tuple):
        if len(table) and all(map(_is_record, table)):
            msg = (
                f"{name}: a record per row; expected columns. Pass pandas.DataFrame({name}), or a "
                "mapping of column names to lists."
            )
            raise TableError(msg)
        return [as_pandas(part, name) for part in table]
    if isinstance(table, pd.DataFrame):
        return _with_plain_types(table)
    if table is None or isinstance(table, str | PathLike):
        return table
    kind = type(table).__name__
    for method in ("collect", "compute"):  # of Polars, Spark and Narwhals; of Dask
        if callable(getattr(table, method, None)):
            msg = (
                f"{name}: a {kind} is lazy; expected rows in memory. Pass what its "
                f"{method}() returns."
            )
            raise TableError(msg)
    if isinstance(table, Mapping):
        return _from_columns(table, name)
    if not is_table(table):
        return table
    try:
        columns = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        msg = (
            f"{name}: a {kind} is not a table that can be read ({first_line(error)}); expected "
            "columns of text, numbers or truth values. Pass a DataFrame."
        )
        raise TableError(msg) from error
    for number, column in enumerate(columns.columns):
        columns = columns.set_column(number, columns.field(number).name, _without_views(column))
    frame: pd.DataFrame = columns.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _is_record(part: object) -> bool:
    """Tell whether a mapping has one cell per column, and not a list."""
    return isinstance(part, Mapping) and all(
        isinstance(cell, str) or not isinstance(cell, Iterable) for cell in part.values()
    )


def is_frame(value: object) -> bool:
    """Tell whether a result is a pandas DataFrame."""
    return isinstance(value, pd.DataFrame)


def is_table(value: object) -> bool:
    """Tell whether an argument is a table in memory."""
    exports = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    return exports or isinstance(value, pd.DataFrame | Mapping)


def as_it_came(frame: pd.DataFrame, table: object) -> Any:  # noqa: ANN401 - a table of any kind
    """Return a result as the kind of table that it was computed from.

    Parameters
    ----------
    frame : DataFrame
    table : object
        What the caller passed: a Polars DataFrame gives one, a mapping of columns gives a dict of
        lists, and other tables than those of pandas a PyArrow table. A path gives pandas.
    """
    if isinstance(table, Mapping):
        return {str(name): _cells(frame[name]) for name in frame}
    if isinstance(table, pd.DataFrame) or not is_table(table):
        return frame
    columns = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    is_polars = type(table).__module__.partition(".")[0] == "polars"
    build: Any = type(table)
    return build(columns) if is_polars else columns


def nested_columns(frame: pd.DataFrame) -> dict[str, str]:
    """Return the columns with cells that hold several values each, and the type of one of them."""
    kinds = {}
    for number, dtype in enumerate(frame.dtypes):
        kind = ""
        if isinstance(dtype, pd.ArrowDtype) and pa.types.is_nested(dtype.pyarrow_dtype):
            kind = str(dtype.pyarrow_dtype)
        elif pd.api.types.is_object_dtype(dtype):
            kind = _nested_kind(frame.iloc[:, number])
        if kind:
            kinds[str(frame.columns[number])] = kind
    return kinds


def _nested_kind(cells: pd.Series) -> str:
    """Return the type of a cell that holds several values; empty if there is none."""
    # looked at one by one only where not all cells are of one plain type
    if pd.api.types.infer_dtype(cells, skipna=True) != "mixed":
        return ""
    for cell in cells:
        if isinstance(cell, NESTED_CELLS) or getattr(cell, "shape", ()) != ():
            return type(cell).__name__
    return ""


def _from_columns(columns: Mapping[Any, Any], name: str) -> pd.DataFrame:
    lists = dict[Any, list[Any]]()
    for column, cells in columns.items():
        if isinstance(cells, str | Mapping) or not isinstance(cells, Iterable):
            msg = (
                f"{name}: column {str(column)!r} is {type(cells).__name__}; expected a list with "
                "one cell per row. Pass a mapping of column names to lists."
            )
            raise TableError(msg)
        lists[column] = list(cells)  # an index of a Series must not order its cells
    lengths = [*map(len, lists.values())]
    if len({*lengths}) > 1:
        msg = (
            f"{name}: columns have {min(lengths):,} to {max(lengths):,} cells; expected columns of "
            "equal length. Correct them."
        )
        raise TableError(msg)
    return pd.DataFrame(lists)


def without_view(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values for which all functions of pandas and Arrow exist."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the same for a type of columns, of which pandas has no half-precision numbers."""
    return pa.float32() if pa.types.is_float16(kind) else without_view(kind)


def _with_plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns of Arrow's types are such that pandas works with them."""
    if not frame.columns.is_unique:  # refused later
        return frame
    changed = {}
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, pd.ArrowDtype):
            kind = dtype.pyarrow_dtype
            if plain_type(kind) != kind:
                cells: Any = pa.array(frame[name].array).cast(plain_type(kind))
                changed[name] = pd.arrays.ArrowExtensionArray(cells)
    if not changed:
        return frame
    plain = frame.copy(deep=False)
    for name, column in changed.items():
        plain[name] = column
    return plain


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a type that pandas works with; categories as the text of each cell."""
    if pa.types.is_dictionary(column.type):
        chunks = []
        for chunk in column.chunks:
            values = chunk.dictionary
            values = values.cast(plain_type(values.type))
            chunks.append(values.take(chunk.indices))
        return pa.chunked_array(chunks, type=None if chunks else pa.large_string())
    return column.cast(plain_type(column.type))


def _cells(column: pd.Series) -> list[Any]:
    """Return the cells of a column; missing ones are None, as in a list that a person writes."""
    return [None if pd.isna(cell) else cell for cell in column.tolist()]
