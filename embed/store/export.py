"""``store export``: vectors as a file that other programs read.

The vectors stream from the store to the file; keys, lengths and the table's columns are in memory.
N rows, D numbers per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, hex_keys, sort_keys
from abag.core.files import refusal_to_write, replacing
from abag.core.messages import bar, first_line, reporting
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.sequences.pairs import SequenceTable, read_pairs
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.export_formats import EXPORT_FORMATS, CannotExport, Exported
from abag.embed.store.options import ExportOptions
from abag.embed.store.store import Store, folder_with, open_store

PART_BYTES = 128 << 20
"""Vectors in memory at a time; each part of a table reads every shard that it needs once."""


class ExportSummary(TypedDict):
    """The keys of ``abag store export --json``."""

    to: str
    rows: int
    width: int
    """Numbers per row."""
    dtype: str
    """Of the vectors in the file; CSV holds the same numbers as text."""
    kind: str
    encoders: dict[str, str]
    """Folder of the encoder in the store, by kind."""
    poolings: dict[str, str]
    skipped_rows: int
    bytes: int
    seconds: float


def describe_export(summary: ExportSummary) -> str:
    """Describe what was written."""
    return (
        f"{summary['rows']:,} {summary['kind']} vectors of {summary['width']:,} "
        f"{summary['dtype']} in {summary['to']}"
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """The vectors of one kind that each row gets."""

    folder: EncoderFolder
    pooling: str
    keys: NDArray[np.uint8]
    """Shape (N, 16)."""

    @property
    def is_double(self) -> bool:
        """Whether any shard holds float32."""
        return any(block.arrays[self.pooling].dtype == "<f4" for block in self.folder.blocks())

    @property
    def width(self) -> int:
        """Numbers per vector."""
        return self.folder.blocks()[0].widths[self.pooling]

    def names(self) -> list[str]:
        """Return the names of the numbers, such as ``antigen_mean_0``."""
        return vector_names(self.folder.kind, self.pooling, self.width)


def vector_names(kind: Kind, pooling: str, width: int) -> list[str]:
    """Name the numbers of a vector, such as ``antigen_mean_0``."""
    return [f"{kind}_{pooling}_{i}" for i in range(width)]


def export_vectors(
    store: Store | Path | str,
    to: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of ExportOptions
) -> ExportSummary:
    """Write stored vectors to a file that NumPy, pandas, pyarrow or AnnData read.

    Parameters
    ----------
    store : Store or path
        Folder, or a file made by ``abag store pack``.
    to : path
        Its suffix decides on the format: ``.npz``, ``.parquet``, ``.h5ad`` or ``.csv``. Written
        whole or not at all.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Whether to draw a progress bar on stderr.
    **options
        Fields of `ExportOptions`.

    Returns
    -------
    dict
        The object that ``abag store export --json`` prints.

    Raises
    ------
    CannotExport
        If the file exists, its format is not supported, or it cannot be written.
    VectorsMissing
        If the store lacks a sequence of the table.
    AbagError
        If the store, the table or an option is invalid; nothing is written then.
    """
    start_s, to = time.monotonic(), Path(to)
    chosen = ExportOptions.from_keywords(options, "export_vectors")
    with reporting(say, bars=progress):
        _check_target(to, chosen.table, force=chosen.force)
        opened = store if isinstance(store, Store) else open_store(store)
        table = _read_table(opened, to, chosen)
        sides = _sides_of_table(opened, table, chosen) if table else [_stored_side(opened, chosen)]
        exported = _exported(sides, table, chosen)
        try:
            with replacing(to) as partial:
                EXPORT_FORMATS[to.suffix](partial, exported)
        except OSError as error:
            why = first_line(error)  # HDF5 adds its own
            msg = f"{to}: cannot be written ({why}); expected a writable path. Give another --to."
            raise CannotExport(msg) from error
    return ExportSummary(
        to=str(to),
        rows=len(exported.frame),
        width=len(exported.names),
        dtype=str(exported.dtype),
        kind=_kind_of(sides),
        encoders={side.folder.kind: side.folder.path.name for side in sides},
        poolings={side.folder.kind: side.pooling for side in sides},
        skipped_rows=len(table.skipped) if table else 0,
        bytes=to.stat().st_size,
        seconds=round(time.monotonic() - start_s, 3),
    )


def _check_target(to: Path, table: object, *, force: bool) -> None:
    """Refuse a file that cannot be written, or is the table, before anything is read."""
    if to.suffix not in EXPORT_FORMATS:
        msg = (
            f"{to}: not a supported format; expected a name that ends in "
            f"{', '.join(EXPORT_FORMATS)}. Give another --to."
        )
        raise CannotExport(msg)
    if why := refusal_to_write(to, [table], force=force, option="--to"):
        raise CannotExport(why)


def _read_table(store: Store, to: Path, options: ExportOptions) -> SequenceTable | None:
    """Read the table, if one is given; cells for a text file stay as they are written."""
    if options.table is None:
        return None
    as_text, stored = to.suffix == ".csv", _stored_kinds(store)
    kind = options.kind or (stored[0] if len(stored) == 1 else "pair")
    kinds: tuple[Kind, ...] = KINDS if kind == "pair" else (kind,)
    table = read_pairs(options.table, options, kinds=kinds, as_written=as_text)
    table.report_notes()
    return table


def _stored_kinds(store: Store) -> list[Kind]:
    kinds = sorted({folder.kind for folder in store.folders() if folder.rows})
    if not kinds:
        msg = f"{store.path}: holds no vectors; expected some. Run abag embed first."
        raise CannotExport(msg)
    return kinds


def _sides_of_table(store: Store, table: SequenceTable, options: ExportOptions) -> list[_Side]:
    sides = []
    for kind, unique in table.sequences.items():
        chosen = options.vectors_of(kind)
        folder = folder_with(store, table, kind, chosen["encoder"])
        sides.append(_Side(folder, chosen["pooling"], unique.keys[unique.of_row]))
    return sides


def _stored_side(store: Store, options: ExportOptions) -> _Side:
    """Return every vector of one encoder, each sequence once, in the order of the shards."""
    kinds = _stored_kinds(store)
    kind = options.kind or kinds[0]
    if options.kind is None and len(kinds) > 1:
        msg = (
            f"{store.path}: holds vectors of antibodies and of antigens; expected the choice of "
            "one. Give --kind antibody or --kind antigen, or --table TABLE for both."
        )
        raise CannotExport(msg)
    assert kind != "pair"  # refused by ExportOptions
    chosen = options.vectors_of(kind)
    folder = store.folder(kind, chosen["encoder"])
    keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *folder.keys()])
    order, repeated = sort_keys(keys)
    return _Side(folder, chosen["pooling"], keys[np.sort(order[~repeated])])


def _exported(sides: list[_Side], table: SequenceTable | None, options: ExportOptions) -> Exported:
    """Put together what is written; the vectors are read as the writer asks for them."""
    frame = pd.DataFrame(index=pd.RangeIndex(len(sides[0].keys)))
    for side in sides:
        kind, folder = side.folder.kind, side.folder
        frame[f"{kind}_key"] = pd.Series(hex_keys(side.keys), dtype=object)
        frame[f"{kind}_length"] = folder.read_array(side.keys, "length", np.int32)
        folder.read(side.keys[:1], side.pooling)  # refuses an unknown pooling
    names = [name for side in sides for name in side.names()]
    if table is not None:
        _refuse_same_names(table, [*frame.columns, *names, "vector"])
        frame = pd.concat([table.frame.set_axis(frame.index), frame], axis=1)
    double = options.dtype == "float32" or any(side.is_double for side in sides)
    about: dict[str, dict[str, str]] = {
        side.folder.kind: {
            "encoder": side.folder.name,
            "fingerprint": side.folder.fingerprint,
            "pooling": side.pooling,
        }
        for side in sides
    }
    dtype = np.dtype(np.float32 if double else np.float16)
    return Exported(frame, names, dtype, about, lambda: _read_parts(sides, len(names), dtype))


def _refuse_same_names(table: SequenceTable, ours: list[str]) -> None:
    if taken := sorted(set(map(str, table.frame.columns)) & set(ours)):
        msg = (
            f"{table.source}: column {taken[0]!r} has the name of a column that the export adds; "
            "expected another name. Rename it in the table."
        )
        raise CannotExport(msg)


def _read_parts(sides: list[_Side], width: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """Read the vectors of all rows in order, (n, D) at a time."""
    step = max(1, PART_BYTES // (width * dtype.itemsize))
    rows = len(sides[0].keys)
    with bar(total=rows, desc="exporting", unit=" rows") as shown:
        for at in range(0, rows, step):
            parts = [
                side.folder.read_array(side.keys[at : at + step], side.pooling, dtype.type)
                for side in sides
            ]
            yield parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            shown.update(len(parts[0]))


def _kind_of(sides: list[_Side]) -> str:
    return sides[0].folder.kind if len(sides) == 1 else "pair"
