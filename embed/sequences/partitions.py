"""Distinct sequences of one kind, more than fit into memory: sorted on disk, read back in parts.

What does not fit is written, sorted by key, to a temporary file without a name, which disappears
with the process. A part is a range of keys, so it does not depend on the order of the rows, and
holds each of its sequences once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import IO, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import KEY_BYTES, sort_keys
from abag.embed.sequences.chains import Chains, Kind
from abag.embed.sequences.pairs import UniqueSequences

HELD_BYTES = 64 << 20  # in memory before they are written
PART_BYTES = 32 << 20  # about 140,000 antibodies, which take a GPU minutes
BUCKETS = 256  # by the first byte of the key: the smallest possible parts
_SCHEMA = pa.schema({
    "key": pa.binary(KEY_BYTES), "chains": pa.list_(pa.large_string()), "row": pa.int64(),
    "replaced": pa.int32(), "form": pa.string(),
})  # fmt: skip


class TemporaryDiskFull(AbagError):
    """The temporary folder cannot hold the sequences of a table."""


class SequencePart(NamedTuple):
    """N distinct sequences whose keys are in one range.

    Attributes
    ----------
    chains : list of N tuple of str
    keys : ndarray, shape=(N, 16), dtype=uint8
        Ascending.
    rows : ndarray, shape=(N,), dtype=int64
        1-based row of the table in which each sequence occurs first.
    forms : mapping
        `ParsedSequence.form` to the number of sequences.
    replaced : int
        Residues read as X.
    """

    chains: list[Chains]
    keys: NDArray[np.uint8]
    rows: NDArray[np.int64]
    forms: Mapping[str, int] = {}
    replaced: int = 0

    def take(self, at: NDArray[np.int64]) -> SequencePart:
        """Select sequences by index, shape (S,); without the counts of the part."""
        return SequencePart([self.chains[i] for i in at.tolist()], self.keys[at], self.rows[at])


class Partitions:
    """Collects the sequences of a table and returns them in parts; a context manager.

    More than `held_bytes` in memory are written to disk, which raises `TemporaryDiskFull` if it has
    too little space. A part takes about `part_bytes` in memory.
    """

    def __init__(
        self, kind: Kind, *, held_bytes: int = HELD_BYTES, part_bytes: int = PART_BYTES
    ) -> None:
        self.kind: Kind = kind
        self._held_bytes, self._part_bytes = held_bytes, part_bytes
        self._held = _SCHEMA.empty_table()
        # bucket b of a sorted run is bytes [b] to [b + 1] of the file
        self._runs: list[list[int]] = []
        self._file: IO[bytes] | None = None
        self._bucket_bytes = np.zeros(BUCKETS, np.int64)
        self._only: SequencePart | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, unique: UniqueSequences) -> None:
        """Add the sequences of some rows, in the order of the table."""
        buffers = [None, pa.py_buffer(unique.keys)]
        columns = [
            pa.Array.from_buffers(_SCHEMA.field("key").type, len(unique.keys), buffers),
            _chain_lists(unique.chains),
            pa.array(unique.first_rows),
            pa.array(unique.replaced),
            pa.array(unique.forms, pa.string()),
        ]
        self._only = None
        self._held = pa.concat_tables([self._held, pa.table(columns, schema=_SCHEMA)])
        if self._held.nbytes < self._held_bytes:
            return
        self._held = _sorted_distinct(self._held)
        if self._held.nbytes >= self._held_bytes // 2:  # else few sequences in many rows
            self._write()

    def parts(self) -> Iterator[SequencePart]:
        """Yield every sequence once, in parts with ascending keys."""
        if self._only is None:
            self._held = _sorted_distinct(self._held)
            ranges = self._ranges()
            if len(ranges) > 1:
                tables = (self._load(*bounds) for bounds in ranges)
                yield from (_part(table) for table in tables if len(table))
                return
            self._only = _part(self._load(0, BUCKETS))
        yield self._only

    def _ranges(self) -> list[tuple[int, int]]:
        """Join neighboring buckets into parts of similar size."""
        held = self._held.nbytes / max(1, len(self._held)) * np.diff(_bounds(self._held))
        ends = np.cumsum(self._bucket_bytes + held)
        part = np.maximum(ends - 1, 0) // self._part_bytes
        cuts = np.flatnonzero(np.diff(part)) + 1
        return list(pairwise([0, *cuts.tolist(), BUCKETS]))

    def _load(self, first: int, last: int) -> pa.Table:
        """Merge the buckets from `first` up to `last`, each sequence once."""
        bounds = _bounds(self._held)
        held = self._held.slice(bounds[first], bounds[last] - bounds[first])
        if not self._runs:
            return held  # sorted already
        tables = [*(self._read(run[first], run[last]) for run in self._runs), held]
        return _sorted_distinct(pa.concat_tables(tables))

    def _read(self, start: int, end: int) -> pa.Table:
        assert self._file is not None  # it holds a run
        self._file.seek(start)
        stream = pa.BufferReader(self._file.read(end - start))
        batches = []
        while stream.tell() < stream.size():
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(stream), _SCHEMA))
        return pa.Table.from_batches(batches, _SCHEMA)

    def _write(self) -> None:
        """Move the held sequences to the end of the file, one batch per bucket."""
        bounds = _bounds(self._held)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="abag-")
            offsets = [self._file.seek(0, 2)]
            for start, end in pairwise(bounds):
                for batch in self._held.slice(start, end - start).combine_chunks().to_batches():
                    self._file.write(batch.serialize())
                offsets.append(self._file.tell())
            self._file.flush()
        except OSError as error:
            msg = (
                f"{tempfile.gettempdir()}: cannot hold the sequences of the table ({error}); "
                "expected free space of about the size of the uncompressed table. Set TMPDIR to a "
                "larger disk."
            )
            raise TemporaryDiskFull(msg) from error
        self._bucket_bytes += np.diff(offsets)
        self._runs.append(offsets)
        self._held = _SCHEMA.empty_table()


def _chain_lists(sequences: Sequence[Chains]) -> pa.Array:
    """As ``pa.array(sequences)``, in a third of the time."""
    offsets = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, sequences), np.int32, len(sequences)), out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, pa.array([*chain(*sequences)], pa.large_string()))


def _keys(table: pa.Table) -> NDArray[np.uint8]:
    """View the keys: shape (N, 16)."""
    column = table["key"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no rows
        return np.empty((0, KEY_BYTES), np.uint8)
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data.reshape(-1, KEY_BYTES)[column.offset : column.offset + len(column)]


def _sorted_distinct(table: pa.Table) -> pa.Table:
    """Sort by key and keep the first row of each."""
    order, repeated = sort_keys(_keys(table))
    return table.take(order[~repeated]).combine_chunks()


def _bounds(table: pa.Table) -> list[int]:
    """Where each bucket of a sorted table begins, and the end."""
    first_bytes = _keys(table)[:, 0]
    return [*np.searchsorted(first_bytes, np.arange(BUCKETS)).tolist(), len(table)]


def _part(table: pa.Table) -> SequencePart:
    lists = table["chains"].combine_chunks()
    texts = lists.flatten().to_numpy(zero_copy_only=False).tolist()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy()).tolist()
    chains = [tuple(texts[start:end]) for start, end in pairwise([0, *ends])]
    counts = table["form"].value_counts().to_pylist()
    forms = {count["values"]: count["counts"] for count in counts}
    replaced = int(table["replaced"].to_numpy().sum())
    return SequencePart(chains, _keys(table).copy(), table["row"].to_numpy(), forms, replaced)
