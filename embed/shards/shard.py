"""Read and verify shards: immutable HDF5 files with their own table of contents.

Any HDF5 reader can open a shard, but abag does not parse shards with the HDF5 library. The user
block (the bytes at the front of a file that HDF5 leaves to the application) holds the offset and
the checksums of each array as text, and abag reads only those bytes. Links out of the file,
forged headers and flipped bits are therefore rejected before they have any effect, and opening a
shard takes microseconds. docs/store-format.md is the specification.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abag.core.files import Files, write_bytes
from abag.embed.shards.regular_files import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    as_bytes,
    damaged,
    digest_of,
    digest_of_spans,
    fill,
    open_regular,
    read_at,
)

FORMAT = "abag-shard"
VERSION = 1
MAX_ARRAY_BYTES = 256 << 20  # 4,096 rows of 16,384 float32; bounds the memory of one read
MAX_ARRAYS = 64
MAX_CONTENTS_BYTES = 1 << 20
MAX_PACKED_CONTENTS_BYTES = 64 << 20  # about 300 million rows
HEADER_BYTES = 128
_HEADER = re.compile(rb"abag-shard (\d{1,9}) (\d{1,9}) ([0-9a-f]{32})\n")
_NAME = re.compile(r"[a-z][a-z0-9_@]{0,63}")
_CHECKSUMS = re.compile(r"[0-9a-f]{8} [0-9a-f]{32}")
_EXPONENTS = {"<f2": ("<u2", 0x7C00), "<f4": ("<u4", 0x7F800000)}

Attrs = Mapping[str, str | int | float]
Chunk = tuple[int, bytes | bytearray | memoryview]
"""An offset in a file and the bytes that belong there."""


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """The location and the checksums of one array in a file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc32: str  # checked at each read
    digest: str  # checked after writing, by verify, and before vectors are reused

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        """Offset of the first byte after the array."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Keys, lengths, vectors and flags of N sequences; a shard is one block, a packed store many.

    Attributes
    ----------
    group : str
        The HDF5 group of the arrays; ``/`` in a shard.
    attrs : mapping
        How the vectors were made.
    arrays : mapping of str to ArrayEntry
        ``key`` (N, 16) uint8, ``length`` (N,) int32, one (N, D) float16 or float32 array per
        pooling, and flags (N,) uint8.
    """

    path: Path
    group: str
    attrs: Attrs
    arrays: Mapping[str, ArrayEntry]

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.arrays["key"].shape[0]

    @property
    def widths(self) -> dict[str, int]:
        """Vector width of each pooling."""
        return {n: a.shape[1] for n, a in self.arrays.items() if len(a.shape) == 2 and n != "key"}

    @property
    def number_format(self) -> str:
        """Type of the vectors: ``float16`` or ``float32``."""
        return np.dtype(self.arrays[next(iter(self.widths))].dtype).name

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each array; the same in all shards of an encoder."""
        return {name: array.shape[1:] for name, array in self.arrays.items()}

    def load(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read one array and check its CRC-32.

        Parameters
        ----------
        out : ndarray, optional
            Where to put the values, converted to its dtype. Contiguous, of the array's shape.

        Returns
        -------
        ndarray, shape=(N, ...)
            `out`, or a new array of the stored dtype.

        Raises
        ------
        DamagedShard
            If the bytes are not those that were written.
        """
        array = self.arrays[name]
        if out is None:
            out = np.empty(array.shape, array.dtype)
        self._check_array(name, out)
        return out

    def check(self) -> None:
        """Check the digests of all arrays and, in a shard, of the rest of the file.

        Raises
        ------
        DamagedShard
        """
        self.check_arrays()
        if self.group == "/":
            read_table_of_contents(self.path).check_rest()

    def check_arrays(self) -> None:
        """Check the digests of all arrays.

        Raises
        ------
        DamagedShard
        """
        for name in self.arrays:
            hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
            self._check_array(name, hasher=hasher)

    def _check_array(
        self,
        name: str,
        out: NDArray[Any] | None = None,
        hasher: hashlib.blake2b | None = None,
    ) -> None:
        """Read one array once, into `out` if given, and check all that is known of its bytes."""
        array, crc, finite = self.arrays[name], 0, True
        for part in self._parts(array, out):
            data = as_bytes(part)
            crc = zlib.crc32(data, crc)
            finite = finite and is_finite(part)
            if hasher is not None:
                hasher.update(data)
        if hasher is not None and hasher.hexdigest() != array.digest:
            raise damaged(self.path, f"the bytes of {name!r} do not match their digest")
        if not finite:  # a writer refuses them, so that this is another's file
            raise damaged(self.path, f"{name!r} contains infinity or NaN")
        if f"{crc:08x}" != array.crc32:
            raise damaged(self.path, f"the bytes of {name!r} do not match their CRC-32")

    def _parts(self, array: ArrayEntry, out: NDArray[Any] | None) -> Iterator[NDArray[Any]]:
        """Read an array in parts, in its own dtype, and convert them into `out` if given."""
        flat = np.empty(0, array.dtype) if out is None else out.reshape(-1)
        direct = out is not None and out.dtype == array.dtype
        size, itemsize = math.prod(array.shape), np.dtype(array.dtype).itemsize
        step = CHUNK_BYTES // itemsize
        scratch: NDArray[Any] = np.empty(0 if direct else step, array.dtype)
        with open_regular(self.path) as file:
            for at in range(0, size, step):
                part = flat[at : at + step] if direct else scratch[: size - at]
                fill(file, array.offset + at * itemsize, as_bytes(part))
                yield part
                if out is not None and not direct:
                    flat[at : at + step] = part

    def load_rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read some rows of one array without checks; call :meth:`check` before.

        Parameters
        ----------
        rows : ndarray, shape=(n,), dtype=int64

        Returns
        -------
        ndarray, shape=(n, ...)

        Raises
        ------
        DamagedShard
            If the file ends early.
        """
        array = self.arrays[name]
        data = np.empty((len(rows), *array.shape[1:]), array.dtype)
        row_bytes = array.nbytes // self.rows
        with open_regular(self.path) as file:
            for i, row in enumerate(rows.tolist()):
                fill(file, array.offset + row * row_bytes, as_bytes(data[i : i + 1]))
        return data


@dataclass(frozen=True, slots=True)
class TableOfContents:
    """A file's table of contents."""

    path: Path
    start: int
    """Offset of the first byte after the table."""
    file_bytes: int
    rest_digest: str
    """Digest of all bytes after `start` that belong to no array."""
    about: Mapping[str, Any]
    """Properties of the file as a whole; JSON values."""
    blocks: tuple[VectorBlock, ...]

    def check_rest(self) -> None:
        """Check the bytes outside the arrays: HDF5's names, types and attributes.

        Raises
        ------
        DamagedShard
        """
        gaps = gaps_between(self.start, self.file_bytes, self.blocks)
        if digest_of_spans(self.path, gaps) != self.rest_digest:
            raise damaged(self.path, "its HDF5 names, types or attributes were changed")


# --- reading -------------------------------------------------------------------------------------


def read_table_of_contents(path: Path, *, most_bytes: int = MAX_CONTENTS_BYTES) -> TableOfContents:
    """Read a table of contents of at most `most_bytes`, and check it against the file.

    No array is read.

    Raises
    ------
    DamagedShard
        If the file is not a shard, was truncated, or contradicts its table of contents.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise damaged(path, "the file is empty")
        match = _HEADER.match(read_at(file, 0, min(size, HEADER_BYTES)))
        if match is None:
            raise damaged(path, "not an abag shard")
        version, length = int(match[1]), int(match[2])
        if version != VERSION:
            raise damaged(path, f"format version {version}; this abag reads {VERSION}")
        if match.end() + length > min(size, most_bytes):
            raise damaged(path, f"a table of contents of {length} bytes in a file of {size}")
        text = read_at(file, match.end(), length)
    if digest_of(text) != match[3].decode():
        raise damaged(path, "its table of contents does not match its digest")
    contents = _parse(path, match.end() + length, text)
    if contents.file_bytes != size:
        raise damaged(path, f"{size} bytes; expected {contents.file_bytes}")
    return contents


def check_file(path: Path) -> None:
    """Check every byte of a shard or a packed store.

    Raises
    ------
    DamagedShard
    """
    contents = read_table_of_contents(path, most_bytes=MAX_PACKED_CONTENTS_BYTES)
    for block in contents.blocks:
        block.check_arrays()
    contents.check_rest()


def commit_shard(path: Path, chunks: Iterable[Chunk], files: Files) -> None:
    """Write a shard or a packed store; errors as for :func:`abag.core.files.write_bytes`."""
    write_bytes(path, as_image(chunks), files=files)


def as_image(chunks: Iterable[Chunk]) -> bytes:
    """Return the content of a file."""
    image = bytearray()
    for offset, data in chunks:
        image.extend(bytes(max(0, offset + len(data) - len(image))))
        image[offset : offset + len(data)] = data
    return bytes(image)


def _parse(path: Path, start: int, text: bytes) -> TableOfContents:
    """Convert a table of contents to typed values, and check that all arrays are in the file."""
    try:
        toc = json.loads(text)
        blocks = tuple(
            VectorBlock(path, block["group"], dict(block["attrs"]), _arrays(block["arrays"]))
            for block in toc["blocks"]
        )
        size, rest, about = index(toc["file_bytes"]), toc["rest_digest"], dict(toc["about"])
        contents = TableOfContents(path, start, size, rest, about, blocks)
        for block in blocks:
            check_block(block, start, contents.file_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(path, f"its table of contents is invalid ({error})") from error
    return contents


def _arrays(table: Mapping[str, Mapping[str, Any]]) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(
            a["dtype"], tuple(map(index, a["shape"])), index(a["offset"]), a["crc32"], a["digest"]
        )
        for name, a in table.items()
    }


def check_block(block: VectorBlock, start: int, file_bytes: int) -> None:
    """Check that a block's arrays have valid shapes and lie between `start` and `file_bytes`.

    Raises
    ------
    ValueError
    """
    for name, array in block.arrays.items():  # first: nothing else is safe to ask of an array
        named = _NAME.fullmatch(name) and _CHECKSUMS.fullmatch(f"{array.crc32} {array.digest}")
        if not named or not array.shape or not _is_known(name, array):
            msg = f"{name!r} is {array}"
            raise ValueError(msg)
    if not all(isinstance(value, str | int | float) for value in block.attrs.values()):
        msg = f"attributes {block.attrs}"
        raise ValueError(msg)
    if not 1 <= len(block.arrays) <= MAX_ARRAYS or "length" not in block.arrays or not block.widths:
        msg = f"arrays {list(block.arrays)[:MAX_ARRAYS]}"
        raise ValueError(msg)
    rows = block.rows
    for name, array in block.arrays.items():
        inside = start <= array.offset <= array.end <= file_bytes
        if not inside or rows < 1 or array.shape[0] != rows or array.nbytes > MAX_ARRAY_BYTES:
            msg = f"{name!r} is {array} in a block of {rows} rows"
            raise ValueError(msg)


def _is_known(name: str, array: ArrayEntry) -> bool:
    """Whether the format allows an array of this dtype and shape."""
    row = array.shape[1:]
    if name == "key":
        return (array.dtype, row) == ("|u1", (16,))
    if name == "length":
        return (array.dtype, row) == ("<i4", ())
    if array.dtype == "|u1":  # a flag
        return row == ()
    return array.dtype in ("<f2", "<f4") and len(row) == 1 and row[0] > 0


def gaps_between(start: int, end: int, blocks: Sequence[VectorBlock]) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) spans of a file that belong to no array."""
    spans = sorted((a.offset, a.end) for block in blocks for a in block.arrays.values())
    for left, right in [*spans, (end, end)]:
        if left > start:
            yield start, left
        start = max(start, right)


def is_finite(values: NDArray[Any]) -> bool:
    """Whether no value of an array is infinite or NaN; several times as fast as `numpy.isfinite`.

    In IEEE 754, these are the values with all exponent bits set.
    """
    if values.dtype.str not in _EXPONENTS or not values.size:
        return True
    bits, exponent = _EXPONENTS[values.dtype.str]
    return bool((values.view(bits) & exponent).max() < exponent)
