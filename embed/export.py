"""``store export``: vectors as a file that NumPy, pandas, pyarrow or AnnData read.

A file is written whole or not at all. All its vectors are in memory: 2 GB per million at 1,024
numbers of float16; for ``.h5ad`` the file, too.

N rows, D numbers per row.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, hex_keys, sort_keys
from abag.core.errors import OutputError
from abag.core.files import replacing, why_not_writable
from abag.core.messages import counted, first_line
from abag.embed.options import ExportOptions
from abag.embed.store.store import EncoderFolder, Store, folder_with, open_store
from abag.embed.tables.chains import Kind
from abag.embed.tables.layout import tables_of
from abag.embed.tables.pairs import SequenceTable, read_pairs
from abag.embed.tables.table import with_types


class ExportSummary(TypedDict):
    """The keys of ``abag store export --json``."""

    to: str
    rows: int
    width: int
    """Numbers per row."""
    dtype: str
    """Number format of the vectors in the file; CSV holds the same numbers as text."""
    kind: str
    encoders: dict[str, str]
    """Folder of the encoder in the store, by kind."""
    poolings: dict[str, str]
    skipped_rows: int
    bytes: int
    seconds: float


def describe_export(summary: ExportSummary) -> str:
    """Describe an export in one line, as ``abag store export`` prints it."""
    return (
        f"{summary['rows']:,} {summary['kind']} vectors of {summary['width']:,} "
        f"{summary['dtype']} in {summary['to']}"
    )


class _Given(NamedTuple):
    """The vectors of one kind that each row gets."""

    folder: EncoderFolder
    pooling: str
    keys: NDArray[np.uint8]  # shape (N, 16)


class _Exported(NamedTuple):
    """The content of a file."""

    frame: pd.DataFrame  # N rows: the table's columns, if any, then keys and lengths
    names: list[str]  # names of the D numbers
    vectors_ND: NDArray[Any]
    about: dict[str, dict[str, str]]  # encoder, fingerprint and pooling by kind


def vector_names(kind: Kind, pooling: str, width: int) -> list[str]:
    """Name the numbers of a vector, such as ``antigen_mean_0``."""
    return [f"{kind}_{pooling}_{i}" for i in range(width)]


def export_vectors(
    store: Store | Path | str,
    to: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of ExportOptions
) -> ExportSummary:
    """Write stored vectors to a file for NumPy, pandas, pyarrow or AnnData.

    Parameters
    ----------
    store : Store or path
    to : path
        Its suffix decides on the format: ``.npz``, ``.parquet``, ``.h5ad`` or ``.csv``. Written
        whole or not at all.
    **options
        Fields of `ExportOptions`.

    Returns
    -------
    dict
        The object that ``abag store export --json`` prints.

    Raises
    ------
    OutputError
        If the file exists, its format is not supported, or it cannot be written.
    MissingVectors
        If the store lacks a sequence of the table.
    AbagError
        If the store, the table or an option is invalid; nothing is written then.
    """
    start_s = time.monotonic()
    to = Path(to)
    chosen = ExportOptions.from_keywords(options, "export_vectors")
    if to.suffix.lower() not in FORMATS:
        msg = (
            f"{to}: not a supported format; expected a name that ends in "
            f"{', '.join(FORMATS)}. Give another --to."
        )
        raise OutputError(msg)
    tables = [] if chosen.table is None else tables_of(chosen.table)
    read = [*tables, *chosen.sequences]
    why = why_not_writable(to, read, force=chosen.force, option="--to")
    if why:
        raise OutputError(why)
    opened = store if isinstance(store, Store) else open_store(store)
    table = _read_table(opened, to, chosen)
    sides = []
    if table is None:
        sides.append(_stored_side(opened, chosen))
    else:
        for kind, unique in table.sequences.items():
            view = chosen.vectors_of(kind)
            folder = folder_with(opened, kind, view["encoder"], unique.keys, table.source)
            sides.append(_Given(folder, view["pooling"], unique.keys[unique.of_row]))
    exported = _read_vectors(sides, table, chosen)
    _write(to, exported)
    encoders: dict[str, str] = {}
    poolings: dict[str, str] = {}
    for side in sides:
        encoders[side.folder.kind] = side.folder.path.name
        poolings[side.folder.kind] = side.pooling
    return ExportSummary(
        to=str(to),
        rows=len(exported.frame),
        width=len(exported.names),
        dtype=str(exported.vectors_ND.dtype),
        kind="pair" if len(sides) > 1 else sides[0].folder.kind,
        encoders=encoders,
        poolings=poolings,
        skipped_rows=len(table.skipped) if table else 0,
        bytes=to.stat().st_size,
        seconds=round(time.monotonic() - start_s, 3),
    )


def _write(to: Path, exported: _Exported) -> None:
    """Write the file, whole or not at all."""
    try:
        with replacing(to) as partial:
            FORMATS[to.suffix.lower()](partial, exported)
    except OSError as error:
        why = first_line(error)  # HDF5 appends lines of its own
        msg = f"{to}: cannot be written ({why}); expected a writable path. Give another --to."
        raise OutputError(msg) from error
    except (pa.ArrowException, OverflowError) as error:
        why = first_line(error)
        msg = (
            f"{to}: a column of the table cannot be written ({why}); expected text, numbers or "
            "times of the years 1 to 9999. Convert it."
        )
        raise OutputError(msg) from error


def _read_table(store: Store, to: Path, options: ExportOptions) -> SequenceTable | None:
    """Read the table, if one is given; cells for a text file stay as they are written."""
    if options.table is None:
        return None
    stored = _stored_kinds(store)
    kind = options.kind or (stored[0] if len(stored) == 1 else "pair")
    # of pairs, all that the table has
    kinds = tuple(name for name in options.kinds if kind in ("pair", name)) or options.kinds
    is_csv = to.suffix.lower() == ".csv"
    table = read_pairs(options.table, options, kinds=kinds, as_written=is_csv)
    table.report_notes()
    if not is_csv and table.holds_texts:
        table = replace(table, frame=with_types(table.frame, table.columns))
    return table


def _stored_kinds(store: Store) -> list[Kind]:
    kinds = sorted({folder.kind for folder in store.folders() if folder.rows})
    if not kinds:
        msg = f"{store.path}: holds no vectors; expected some. Run abag embed first."
        raise OutputError(msg)
    return kinds


def _stored_side(store: Store, options: ExportOptions) -> _Given:
    """Return every vector of one encoder, each sequence once, in the order of the shards."""
    kinds = _stored_kinds(store)
    kind = options.kind or kinds[0]
    if options.kind is None and len(kinds) > 1:
        msg = (
            f"{store.path}: holds vectors of antibodies and of antigens; expected the choice of "
            "one. Give --kind antibody or --kind antigen, or --table TABLE for both."
        )
        raise OutputError(msg)
    assert kind != "pair"  # refused by ExportOptions
    chosen = options.vectors_of(kind)
    folder = store.folder(kind, chosen["encoder"])
    if not folder.rows:
        damaged = f" ({counted(len(folder.damaged), 'damaged shard')})" if folder.damaged else ""
        msg = f"{folder.path}: holds no vectors{damaged}; expected some. Run abag embed first."
        raise OutputError(msg)
    keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *folder.keys()])
    order, repeated = sort_keys(keys)
    return _Given(folder, chosen["pooling"], keys[np.sort(order[~repeated])])


def _read_vectors(
    sides: list[_Given], table: SequenceTable | None, options: ExportOptions
) -> _Exported:
    formats: set[str] = set()
    for side in sides:
        formats |= {shard.number_format_of(side.pooling) for shard in side.folder.shards()}
    is_half = options.dtype == "stored" and formats == {"float16"}
    frame = pd.DataFrame(index=pd.RangeIndex(len(sides[0].keys)))
    names: list[str] = []
    vectors = []
    about: dict[str, dict[str, str]] = {}
    for folder, pooling, keys in sides:
        frame[f"{folder.kind}_key"] = pd.Series(hex_keys(keys), dtype=object)
        frame[f"{folder.kind}_length"] = folder.read_array(keys, "length", np.int32)
        folder.read(keys[:1], pooling)  # refuses what is not a pooling
        vectors.append(folder.read_array(keys, pooling, np.float16 if is_half else np.float32))
        names += vector_names(folder.kind, pooling, vectors[-1].shape[1])
        about[folder.kind] = {
            "encoder": folder.name,
            "fingerprint": folder.fingerprint,
            "pooling": pooling,
        }
    if table is not None:
        added = {*frame.columns, *names, "vector", "vectors", "about"}
        taken = sorted(added.intersection(map(str, table.frame.columns)))
        if taken:
            msg = (
                f"{table.source}: column {taken[0]!r} has the name of a column that the export "
                "adds; expected another name. Rename it in the table."
            )
            raise OutputError(msg)
        frame = pd.concat([table.frame.set_axis(frame.index), frame], axis=1)
    vectors_ND = vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)
    return _Exported(frame, names, vectors_ND, about)


# --- formats: the file that a writer fills becomes visible when it is whole -----------------------


def _write_npz(path: Path, exported: _Exported) -> None:
    """Write arrays that ``numpy.load`` reads without pickle."""
    arrays: dict[str, NDArray[Any]] = {"vectors": exported.vectors_ND}
    for name in exported.frame:
        column = _plain(exported.frame[name])
        is_text = column.dtype == object
        arrays[str(name)] = column.fillna("").to_numpy().astype(str) if is_text else column.array
    arrays["about"] = np.array(json.dumps(exported.about))
    with zipfile.ZipFile(path, "w") as file:  # np.savez takes no array called "file"
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal content, equal bytes
            with file.open(entry, "w", force_zip64=True) as out:
                np.lib.format.write_array(out, np.asarray(array), allow_pickle=False)


def _write_h5ad(path: Path, exported: _Exported) -> None:
    """Write an AnnData file: vectors in X, the rows in obs, the names of the numbers in var."""
    try:
        from anndata import AnnData
        from anndata.io import write_elem
    except ModuleNotFoundError as error:
        msg = (
            "--to FILE.h5ad needs the package anndata, which is not installed; expected it. "
            "Run: pip install anndata"
        )
        raise OutputError(msg) from error
    obs = _as_obs(exported.frame)
    var = pd.DataFrame(index=pd.Index(exported.names, dtype=object))
    image = io.BytesIO()
    try:
        annotated = AnnData(exported.vectors_ND, obs=obs, var=var, uns={"abag": exported.about})
        # in memory: HDF5 crashes, perhaps when Python exits, if it cannot write what it closes
        with h5py.File(image, "w") as file:
            write_elem(file, "/", annotated)
    except (TypeError, ValueError) as error:  # such as a text that contains NUL
        reason = " ".join(str(error).split())
        msg = f"the table's columns cannot be written as h5ad ({reason}). Use .parquet."
        raise OutputError(msg) from error
    path.write_bytes(image.getvalue())


def _as_obs(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the columns of a frame to what AnnData can write."""
    obs = pd.DataFrame(index=pd.Index([*map(str, frame.index)], dtype=object))
    for name in frame:
        column = _plain(frame[name]).set_axis(obs.index)
        if column.dtype.kind == "M":  # AnnData has no times
            texts = [None if moment is pd.NaT else str(moment) for moment in column]
            column = pd.Series(texts, obs.index, dtype=object)
        if column.dtype == object:  # AnnData cannot write the strings of pandas 3
            categories = pd.Index(column.dropna().unique(), dtype=object)
            column = column.astype(pd.CategoricalDtype(categories))
        allowed = str(name).replace("/", "_")  # / separates the groups of HDF5
        if allowed in obs:
            msg = f"the table has several columns called {allowed!r}. Rename them in the table."
            raise OutputError(msg)
        obs[allowed] = column
    return obs


def _write_parquet(path: Path, exported: _Exported) -> None:
    """Write the vectors as one column of lists of D numbers."""
    table = _arrow_table(exported.frame)
    names = table.column_names
    numbers = exported.vectors_ND.reshape(-1)
    vectors = pa.FixedSizeListArray.from_arrays(numbers, len(exported.names))
    table = table.append_column("vector", vectors)
    table = table.replace_schema_metadata({"abag": json.dumps(exported.about)})
    pq.write_table(table, path, row_group_size=8_192, use_dictionary=names)


def _write_csv(path: Path, exported: _Exported) -> None:
    """Write one column per number; the text of a float16 is that of the equal float32."""
    table = _arrow_table(exported.frame)
    for number, field in enumerate(table.schema):
        kind = field.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_plain = pa.types.is_primitive(kind) and not pa.types.is_duration(kind)
        if not (is_text or is_plain):
            texts = _plain(exported.frame.iloc[:, number].astype(object))
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    numbers = map(pa.array, np.ascontiguousarray(exported.vectors_ND.T, np.float32))
    names = [*table.column_names, *exported.names]
    pyarrow.csv.write_csv(pa.table([*table.columns, *numbers], names=names), path)


FORMATS: Mapping[str, Callable[[Path, _Exported], None]] = {
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".h5ad": _write_h5ad,
    ".csv": _write_csv,
}
"""Writers by the suffix of the file's name."""


def _arrow_table(frame: pd.DataFrame) -> pa.Table:
    """Convert columns to Arrow; those of mixed types become text."""
    columns: dict[str, pa.Array] = {}
    for name in frame:
        try:
            columns[str(name)] = pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, TypeError, OverflowError):
            columns[str(name)] = pa.array(_plain(frame[name].astype(object)), from_pandas=True)
    return pa.table(columns)


def _plain(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of numbers, truth values or times of NumPy, or of str and missing values."""
    kind = pd.api.types
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufM":
        return column
    is_missing_truth = kind.is_bool_dtype(column.dtype) and column.hasnans
    if kind.is_numeric_dtype(column.dtype) and not is_missing_truth:
        return column.astype(float if column.hasnans else column.to_numpy().dtype)
    texts = column.astype(object)
    return texts.where(texts.isna(), texts.map(str)).where(texts.notna(), None)
