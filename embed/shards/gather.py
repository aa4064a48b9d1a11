"""Gather the rows of one array from many shards into one array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.shards.shard_index import RowRequest, ShardIndex


class UnknownPooling(AbagError):
    """A pooling is not stored, or not in the requested number format."""


class MissingVectors(AbagError):
    """Sequences have no vector in the store.

    Attributes
    ----------
    count : int
    rows : ndarray, shape=(count,), dtype=int64
        Their rows among the requested keys.
    """

    def __init__(self, where: Path, requested: int, rows: NDArray[np.int64]) -> None:
        self.count = len(rows)
        self.rows = rows
        super().__init__(
            f"{where}: {self.count} of {requested} sequences are not stored, the first is number "
            f"{int(rows[0]) + 1}; expected all. Run abag embed on the table that contains them."
        )


def gather_rows(
    shards: ShardIndex, keys: NDArray[np.uint8], name: str, dtype: type
) -> NDArray[Any]:
    """Read one array's rows, and check the CRC-32 of each block that is read.

    A shard that proves damaged is skipped, and its rows are read from others that hold them.

    Parameters
    ----------
    shards : ShardIndex
    keys : ndarray, shape=(N, 16), dtype=uint8
    name : str
        ``length``, or a pooling or flag.
    dtype : type
        Of the result.

    Returns
    -------
    ndarray, shape=(N, ...), dtype=`dtype`

    Raises
    ------
    MissingVectors, UnknownPooling, StoreUnreachable
    """
    shards.refresh()
    while True:
        block, row = shards.find(keys)
        absent = np.flatnonzero(block < 0)
        if absent.size:
            raise MissingVectors(shards.folder, len(keys), absent)
        out: NDArray[Any] = np.empty((len(keys), *_row_shape(shards, name)), dtype)

        def fill(request: RowRequest, out: NDArray[Any] = out) -> None:
            _read_into(out, name, request)

        if shards.for_each(block, row, fill):
            return out


def _row_shape(shards: ShardIndex, name: str) -> tuple[int, ...]:
    blocks = shards.blocks()
    if not blocks:
        return (0,)
    layout = blocks[0].layout
    if name not in layout:
        listed = ", ".join(n for n in layout if n not in ("key", "length"))
        msg = f"{shards.folder}: {name!r} is not stored; expected one of {listed}."
        if "@" in name:
            layer = name.rpartition("@")[2]
            msg += f" To store it, run abag embed --layers {layer} into a new store."
        raise UnknownPooling(msg)
    return layout[name]


def _read_into(out: NDArray[Any], name: str, request: RowRequest) -> None:
    """Read one block's rows to their places in `out`."""
    block, rows, places = request
    start = int(places[0])
    is_whole = np.array_equal(rows, np.arange(block.rows))
    if is_whole and np.array_equal(places, np.arange(start, start + block.rows)):
        block.load(name, out=out[start : start + block.rows])  # without a temporary array
    else:
        out[places] = block.load(name)[rows]
