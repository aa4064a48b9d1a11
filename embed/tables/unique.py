"""Distinct sequences of one kind, more than fit into memory: sorted on disk, read back in parts.

What does not fit is written, sorted by key, to a temporary file without a name, which disappears
with the process. A part is a range of keys, so it does not depend on the order of the rows, and
holds each of its sequences once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, sort_keys
from abag.core.errors import OutputError
from abag.embed.tables.chains import Chains, Kind
from abag.embed.tables.pairs import UniqueSequences

HELD_BYTES = 64 << 20  # in memory before they are written
PART_BYTES = 32 << 20  # about 140,000 antibodies, which take a GPU minutes
BUCKETS = 256  # by the first byte of the key: the smallest possible parts
_SCHEMA = pa.schema(
    {
        "key": pa.binary(KEY_BYTES),
        "chains": pa.large_string(),
        "row": pa.int64(),
        "replaced": pa.int32(),
        "form": pa.string(),
    }
)
"""Chains are joined by \\0."""


class SequencePart(NamedTuple):
    """N distinct sequences whose keys are in one range."""

    chains: list[Chains]
    keys: NDArray[np.uint8]
    """Shape (N, 16), ascending."""
    rows: NDArray[np.int64]
    """Shape (N,); number of the row in which each sequence occurs first."""
    forms: Mapping[str, int] = {}
    """Number of sequences by their `ParsedSequence.form`."""
    replaced: int = 0
    """Residues read as X."""

    def take(self, at: NDArray[np.int64]) -> SequencePart:
        """Select sequences by index, shape (S,); without the counts of the part."""
        return SequencePart([self.chains[i] for i in at.tolist()], self.keys[at], self.rows[at])


class Partitions(ExitStack):
    """Collects a table's sequences, beyond `held_bytes` on disk, and returns them in parts."""

    def __init__(
        self, kind: Kind, *, held_bytes: int = HELD_BYTES, part_bytes: int = PART_BYTES
    ) -> None:
        super().__init__()  # closes the files
        self.kind: Kind = kind
        self._held_bytes = held_bytes
        self._part_bytes = part_bytes
        self._held = _SCHEMA.empty_table()
        # sorted, with one batch per bucket
        self._runs: list[pa.RecordBatchFileReader] = []
        self._bucket_bytes = np.zeros(BUCKETS)

    def add(self, unique: UniqueSequences) -> None:
        """Add the sequences of some rows, in the order of the table."""
        buffers = [None, pa.py_buffer(unique.keys)]
        columns = [
            pa.Array.from_buffers(_SCHEMA.field("key").type, len(unique.keys), buffers),
            pa.array(["\0".join(chains) for chains in unique.chains], pa.large_string()),
            pa.array(unique.first_rows),
            pa.array(unique.replaced),
            pa.array(unique.forms, pa.string()),
        ]
        self._held = pa.concat_tables([self._held, pa.table(columns, schema=_SCHEMA)])
        if self._held.nbytes < self._held_bytes:
            return
        self._held = _sorted_distinct(self._held)
        if self._held.nbytes >= self._held_bytes // 2:  # else few sequences in many rows
            self._write()

    def parts(self) -> Iterator[SequencePart]:
        """Yield every sequence once, in parts with ascending keys."""
        if not self._runs:
            self._held = _sorted_distinct(self._held)
            yield _part(self._held)
            return
        if len(self._held):
            self._held = _sorted_distinct(self._held)
            self._write()
        part_of_bucket = np.cumsum(self._bucket_bytes) // self._part_bytes
        for number in np.unique(part_of_bucket):
            buckets = np.flatnonzero(part_of_bucket == number)
            batches = []
            for run in self._runs:
                batches += [run.get_batch(bucket) for bucket in buckets]
            if any(map(len, batches)):
                yield _part(_sorted_distinct(pa.Table.from_batches(batches)))

    def _write(self) -> None:
        """Move the held sequences, which are sorted, to a file."""
        first_bytes = _keys(self._held)[:, 0]
        rows_of_bucket = np.bincount(first_bytes, minlength=BUCKETS)
        (held,) = self._held.to_batches()
        try:
            file = self.enter_context(tempfile.TemporaryFile(prefix="abag-"))
            with pa.ipc.new_file(file, _SCHEMA) as writer:
                for end, rows in zip(np.cumsum(rows_of_bucket), rows_of_bucket, strict=True):
                    writer.write_batch(held.slice(end - rows, rows))
            file.flush()
        except OSError as error:
            msg = (
                f"{tempfile.gettempdir()}: cannot hold the sequences of the table ({error}); "
                "expected free space of about the size of the uncompressed table. Set TMPDIR to a "
                "larger disk."
            )
            raise OutputError(msg) from error
        self._bucket_bytes += held.nbytes / len(held) * rows_of_bucket
        self._runs.append(pa.ipc.open_file(file))
        self._held = _SCHEMA.empty_table()


def _keys(table: pa.Table) -> NDArray[np.uint8]:
    column = table["key"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no rows
        return np.empty((0, KEY_BYTES), np.uint8)
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data.reshape(-1, KEY_BYTES)[column.offset : column.offset + len(column)]


def _sorted_distinct(table: pa.Table) -> pa.Table:
    order, repeated = sort_keys(_keys(table))
    return table.combine_chunks().take(order[~repeated])


def _part(table: pa.Table) -> SequencePart:
    chains = [tuple(text.split("\0")) for text in table["chains"].to_pylist()]
    counts = table["form"].value_counts().to_pylist()
    forms = {count["values"]: count["counts"] for count in counts}
    replaced = int(table["replaced"].to_numpy().sum())
    return SequencePart(chains, _keys(table).copy(), table["row"].to_numpy(), forms, replaced)
