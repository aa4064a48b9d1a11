"""The files that ``store export`` writes, by suffix.

Each writer gets the path of an empty file, which becomes visible only when it is whole, and asks
for the vectors part by part. N rows, D numbers per row.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from abag import AbagError
from abag.core.messages import say

CSV_ROWS, PARQUET_ROWS, TEXT_ROWS = 1_000, 8_192, 8_192
"""Rows that are converted at a time, and rows of a row group."""
_SEPARATORS = str.maketrans("/\\\0", "___")
_NPY_HEADER = np.lib.format.write_array_header_2_0


class CannotExport(AbagError):
    """The vectors or the table's columns cannot be written to the chosen file."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What a file is to hold."""

    frame: pd.DataFrame
    """N rows: the table's columns, if any, then keys and lengths."""
    names: list[str]
    """Names of the D numbers."""
    dtype: np.dtype[Any]
    about: Mapping[str, Mapping[str, str]]
    """Encoder, fingerprint and pooling by kind."""
    parts: Callable[[], Iterator[NDArray[Any]]]
    """Reads the vectors in the order of the rows, (n, D) at a time."""

    def slices(self, rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the vectors in order, at most `rows` at a time, each time after its first row."""
        at = 0
        for part in self.parts():
            for start in range(0, len(part), rows):
                vectors = part[start : start + rows]
                yield at, vectors
                at += len(vectors)


# --- npz ------------------------------------------------------------------------------------------


def _write_npz(path: Path, exported: Exported) -> None:
    """Write arrays that ``numpy.load`` reads without pickle; vectors are not compressed."""
    shape = len(exported.frame), len(exported.names)
    frame = _without_separators(exported.frame, "npz")
    with zipfile.ZipFile(path, "w") as file:
        with _array(file, "vectors", exported.dtype, shape) as out:
            for part in exported.parts():
                out.write(np.ascontiguousarray(part).data)
        for name in frame:
            _write_column(file, str(name), frame[name])
        text = np.array(json.dumps(exported.about))
        with _array(file, "about", text.dtype, ()) as out:
            out.write(text.tobytes())


def _array(
    file: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> IO[bytes]:
    """Open an array of an npz file, whose values are to be written in C order."""
    entry = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: the same content gives the same bytes
    entry.compress_type = zipfile.ZIP_STORED if name == "vectors" else zipfile.ZIP_DEFLATED
    out = file.open(entry, "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    _NPY_HEADER(out, header)
    return out


def _write_column(file: zipfile.ZipFile, name: str, column: pd.Series[Any]) -> None:
    """Write numbers as they are, and anything else as text; a missing text is empty."""
    plain = _plain(column)
    if not pd.api.types.is_object_dtype(plain.dtype):
        values = plain.to_numpy()
        with _array(file, name, values.dtype, values.shape) as out:
            out.write(np.ascontiguousarray(values).tobytes())
        return
    texts = plain.where(plain.notna(), "")
    dtype = np.dtype(f"<U{max(1, int(texts.map(len).max()))}")
    with _array(file, name, dtype, (len(texts),)) as out:
        for at in range(0, len(texts), TEXT_ROWS):  # 4 bytes per character of the longest text
            out.write(texts.iloc[at : at + TEXT_ROWS].to_numpy().astype(dtype).tobytes())


# --- AnnData --------------------------------------------------------------------------------------


def _write_h5ad(path: Path, exported: Exported) -> None:
    """Write an AnnData file: vectors in X, the rows in obs, the names of the numbers in var."""
    try:
        from anndata.io import write_elem
    except ModuleNotFoundError as error:
        msg = (
            "--to FILE.h5ad needs the package anndata, which is not installed; expected it. "
            "Run: pip install 'abag[h5ad]'"
        )
        raise CannotExport(msg) from error
    import h5py

    frame = _without_separators(exported.frame, "h5ad")
    obs = pd.DataFrame({str(name): _anndata_column(frame[name]) for name in frame})
    var = pd.DataFrame(index=pd.Index(exported.names, dtype=object))
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        shape = len(frame), len(exported.names)
        x_ND = file.create_dataset("X", shape=shape, dtype=exported.dtype)
        x_ND.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        for at, part in exported.slices(len(frame)):
            x_ND[at : at + len(part)] = part
        try:
            write_elem(file, "obs", obs.set_axis(pd.Index([*map(str, obs.index)], dtype=object)))
        except (TypeError, ValueError) as error:  # such as a text that contains NUL
            reason = " ".join(str(error).split())
            msg = f"the table's columns cannot be written as h5ad ({reason}). Use .parquet."
            raise CannotExport(msg) from error
        write_elem(file, "var", var)
        write_elem(file, "uns", {"abag": exported.about})


def _anndata_column(column: pd.Series[Any]) -> pd.Series[Any]:
    """Convert text as AnnData does itself: repeated or missing text becomes categories."""
    plain = _plain(column)
    if not pd.api.types.is_object_dtype(plain.dtype):
        return plain
    present = pd.Index(plain.dropna().unique(), dtype=object)
    if len(present) == len(plain):
        return plain
    return pd.Series(pd.Categorical(plain, categories=present), index=plain.index)


# --- Parquet and CSV ------------------------------------------------------------------------------


def _write_parquet(path: Path, exported: Exported) -> None:
    """Write the vectors as one column of lists of D numbers."""
    arrow = _arrow_table(exported.frame)
    width, number = len(exported.names), pa.from_numpy_dtype(exported.dtype)
    schema = arrow.schema.append(pa.field("vector", pa.list_(number, width)))
    schema = schema.with_metadata({"abag": json.dumps(exported.about)})
    with pq.ParquetWriter(path, schema, use_dictionary=arrow.column_names) as writer:
        for at, part in exported.slices(PARQUET_ROWS):
            flat = pa.array(np.ascontiguousarray(part).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(flat, width)
            rows = [column.combine_chunks() for column in arrow.slice(at, len(part)).columns]
            writer.write_table(pa.table([*rows, vectors], schema=schema))


def _write_csv(path: Path, exported: Exported) -> None:
    """Write one column per number; the text of a float16 is that of the equal float32."""
    arrow = _arrow_table(exported.frame)
    for number, field in enumerate(arrow.schema):
        if pa.types.is_nested(field.type):
            texts = [str(value) for value in arrow.column(number).to_pylist()]
            arrow = arrow.set_column(number, field.name, pa.array(texts))
    numbers = [pa.field(name, pa.float32()) for name in exported.names]
    schema = pa.schema([*arrow.schema, *numbers])
    with pyarrow.csv.CSVWriter(path, schema) as writer:
        for at, part in exported.slices(CSV_ROWS):
            columns = np.ascontiguousarray(part.T, np.float32)
            rows = arrow.slice(at, len(part)).columns
            writer.write_table(pa.table([*rows, *map(pa.array, columns)], schema=schema))


def _arrow_table(frame: pd.DataFrame) -> pa.Table:
    """Convert columns to Arrow; those of mixed types become text."""
    columns: dict[str, pa.Array] = {}
    for name in frame:
        try:
            columns[str(name)] = pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, TypeError):
            texts = _plain(frame[name].astype(object))
            columns[str(name)] = pa.array(texts.where(texts.notna(), None))
    return pa.table(columns)


def _plain(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of numbers, truth values or times of NumPy, or of str and missing values."""
    kind = pd.api.types
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufM":
        return column
    if kind.is_bool_dtype(column.dtype) and not column.hasnans:
        return column.astype(bool)
    if kind.is_numeric_dtype(column.dtype) and not kind.is_bool_dtype(column.dtype):
        return column.astype(float if column.hasnans or kind.is_float_dtype(column.dtype) else int)
    texts = column.astype(object)
    return texts.where(texts.isna(), texts.map(str)).where(texts.notna(), None)


def _without_separators(frame: pd.DataFrame, suffix: str) -> pd.DataFrame:
    """Replace what separates folders in the names of columns, and report it."""
    names = {name: str(name).translate(_SEPARATORS) for name in frame}
    for old, new in names.items():
        if str(old) != new:
            say(f"column {old!r} is written as {new!r}: names in {suffix} files cannot contain /")
    own = [*names.values(), "vectors", "about"]
    if repeated := sorted({name for name in own if own.count(name) > 1}):
        msg = (
            f"the table has several columns called {repeated[0]!r}, or the export adds one; "
            "expected distinct names. Rename them in the table."
        )
        raise CannotExport(msg)
    return frame.set_axis(list(names.values()), axis=1)


EXPORT_FORMATS: Mapping[str, Callable[[Path, Exported], None]] = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".h5ad": _write_h5ad,
    ".csv": _write_csv,
}
"""Writers by the suffix of the file's name."""
