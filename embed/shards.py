"""One shard: an immutable HDF5 file that carries its own table of contents.

Any HDF5 reader can open a shard. abag itself never lets the HDF5 library parse one: the user
block, the bytes at the front that HDF5 leaves to the application, says as text where each array
lies and what its bytes must hash to, and abag reads those bytes and nothing else. So a link out
of the file, a lying header or a flipped bit is refused before it can do anything, and opening
takes microseconds. docs/store-format.md is the specification.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from abag import AbagError

FORMAT = "abag-shard"
VERSION = 1
DIGEST_BYTES = 16
MAX_ARRAY_BYTES = 256 << 20  # 4,096 rows of 16,384 float32; what one read may take of memory
MAX_ARRAYS = 64
MAX_CONTENTS_BYTES = 1 << 20
MAX_PACKED_CONTENTS_BYTES = 64 << 20  # about 300 million rows
_HEADER_BYTES = 128
_HEADER = re.compile(rb"abag-shard (\d{1,9}) (\d{1,9}) ([0-9a-f]{32})\n")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CHUNK_BYTES = 1 << 20

_BLANK = ("0" * 8, "0" * 2 * DIGEST_BYTES)  # a CRC-32 and a digest that are not known yet

Attrs = Mapping[str, str | int | float]
Piece = tuple[int, Any]  # offset, buffer


class DamagedShard(AbagError):
    """A file that is not, or is no longer, what a writer committed."""


@dataclass(frozen=True, slots=True)
class Array:
    """Where one array lies in the file, and what its bytes must hash to."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc32: str  # quick: checked at each read
    digest: str  # thorough: checked after writing, by verify, and before vectors are reused

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Block:
    """N sequences: their keys, lengths, vectors and flags. A shard is one block, a pack many."""

    path: Path
    group: str
    attrs: Attrs
    arrays: Mapping[str, Array]

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.arrays["key"].shape[0]

    @property
    def widths(self) -> dict[str, int]:
        """Pooling name to vector width."""
        return {n: a.shape[1] for n, a in self.arrays.items() if len(a.shape) == 2 and n != "key"}

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """Array name to the shape of one row: the same in all shards of an encoder."""
        return {name: array.shape[1:] for name, array in self.arrays.items()}

    def load(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read one array whole and check its CRC-32.

        Parameters
        ----------
        name : str
        out : ndarray, optional
            Contiguous, of the array's type and shape; filled and returned.

        Raises
        ------
        DamagedShard
            When the bytes are not those that were written.
        """
        array = self.arrays[name]
        data: NDArray[Any] = np.empty(array.shape, array.dtype) if out is None else out
        view, crc = _bytes(data), 0
        with open_plain(self.path) as file:
            for at in range(0, array.nbytes, _CHUNK_BYTES):  # small: still in the cache for the CRC
                part = view[at : at + _CHUNK_BYTES]
                _fill(file, array.offset + at, part)
                crc = zlib.crc32(part, crc)
        if f"{crc:08x}" != array.crc32:
            raise _damaged(self.path, f"the bytes of {name!r} do not match their CRC-32")
        return data

    def check(self) -> None:
        """Check every byte of the arrays and, in a shard, of the file, against its digests.

        Raises
        ------
        DamagedShard
        """
        self.check_arrays()
        if self.group == "/":
            read_contents(self.path).check_rest()

    def check_arrays(self) -> None:
        """Check every byte of the arrays against its digest."""
        for name, array in self.arrays.items():
            if _digest_of(self.path, [(array.offset, array.end)]) != array.digest:
                raise _damaged(self.path, f"the bytes of {name!r} do not match their digest")

    def load_rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read some rows of one array, unchecked: the caller has checked the block before.

        Returns
        -------
        ndarray, shape=(len(rows), ...)
        """
        array = self.arrays[name]
        data = np.empty((len(rows), *array.shape[1:]), array.dtype)
        row_bytes = array.nbytes // self.rows
        with open_plain(self.path) as file:
            for i, row in enumerate(rows.tolist()):
                _fill(file, array.offset + row * row_bytes, _bytes(data[i : i + 1]))
        return data


@dataclass(frozen=True, slots=True)
class Contents:
    """A file's table of contents, checked against its digest, the file's size and the format."""

    path: Path
    start: int
    file_bytes: int
    rest_digest: str
    about: Mapping[str, Any]
    blocks: tuple[Block, ...]

    def check_rest(self) -> None:
        """Check the bytes that belong to no array: HDF5's names, types and attributes.

        Raises
        ------
        DamagedShard
        """
        gaps = _gaps(self.start, self.file_bytes, self.blocks)
        if _digest_of(self.path, gaps) != self.rest_digest:
            raise _damaged(self.path, "its HDF5 names, types or attributes were changed")


# --- reading -------------------------------------------------------------------------------------


def read_contents(path: Path, *, most_bytes: int = MAX_CONTENTS_BYTES) -> Contents:
    """Read and check a file's table of contents; no array is read.

    Parameters
    ----------
    path : Path
    most_bytes : int
        What the table may take; a longer one is refused unread.

    Raises
    ------
    DamagedShard
        When the file is no shard, was cut short, or its contents contradict the file.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise _damaged(path, "the file is empty")
        match = _HEADER.match(_read(file, 0, min(size, _HEADER_BYTES)))
        if match is None:
            raise _damaged(path, "it does not begin as an abag shard")
        version, length = int(match[1]), int(match[2])
        if version != VERSION:
            raise _damaged(path, f"format version {version}, this abag reads {VERSION}")
        if match.end() + length > min(size, most_bytes):
            raise _damaged(path, f"a table of contents of {length} bytes in a file of {size}")
        text = _read(file, match.end(), length)
    if _digest(text) != match[3].decode():
        raise _damaged(path, "its table of contents does not match its digest")
    contents = _parse(path, match.end() + length, text)
    if contents.file_bytes != size:
        raise _damaged(path, f"{size} bytes, {contents.file_bytes} were written")
    return contents


def check_file(path: Path) -> None:
    """Check every byte of a shard or of a packed store.

    Raises
    ------
    DamagedShard
    """
    contents = read_contents(path, most_bytes=MAX_PACKED_CONTENTS_BYTES)
    for block in contents.blocks:
        block.check_arrays()
    contents.check_rest()


def _parse(path: Path, start: int, text: bytes) -> Contents:
    """Turn a table of contents into typed values that stay inside the file."""
    try:
        toc = json.loads(text)
        blocks = tuple(
            Block(path, block["group"], dict(block["attrs"]), _arrays(block["arrays"]))
            for block in toc["blocks"]
        )
        size, rest, about = index(toc["file_bytes"]), toc["rest_digest"], dict(toc["about"])
        contents = Contents(path, start, size, rest, about, blocks)
        for block in blocks:
            _check_block(block, start, contents.file_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its table of contents is wrong ({error})") from error
    return contents


def _arrays(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    return {
        name: Array(
            a["dtype"], tuple(map(index, a["shape"])), index(a["offset"]), a["crc32"], a["digest"]
        )
        for name, a in table.items()
    }


def _check_block(block: Block, start: int, file_bytes: int) -> None:
    """Raise ValueError unless the arrays are of the format's shapes and inside the file."""
    rows = block.arrays["key"].shape[0]
    if not all(isinstance(value, str | int | float) for value in block.attrs.values()):
        msg = f"attributes {block.attrs}"
        raise ValueError(msg)
    if not 1 <= len(block.arrays) <= MAX_ARRAYS or "length" not in block.arrays or not block.widths:
        msg = f"arrays {list(block.arrays)[:MAX_ARRAYS]}"
        raise ValueError(msg)
    for name, array in block.arrays.items():
        inside = start <= array.offset <= array.end <= file_bytes
        if not _NAME.fullmatch(name) or not _is_known(name, array) or not inside:
            msg = f"{name!r} is {array}"
            raise ValueError(msg)
        if rows < 1 or array.shape[0] != rows or array.nbytes > MAX_ARRAY_BYTES:
            msg = f"{name!r} is {array.shape} in a block of {rows} rows"
            raise ValueError(msg)


def _is_known(name: str, array: Array) -> bool:
    """Say whether type and shape are among those that the format allows."""
    row = array.shape[1:]
    if name == "key":
        return (array.dtype, row) == ("|u1", (16,))
    if name == "length":
        return (array.dtype, row) == ("<i4", ())
    if array.dtype == "|u1":  # a flag
        return row == ()
    return array.dtype in ("<f2", "<f4") and len(row) == 1 and row[0] > 0


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file; never follow a link out of the store, never wait on a pipe.

    Raises
    ------
    DamagedShard
        When the path is anything else.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _damaged(path, "a link or a pipe; a plain file was expected") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _damaged(path, "not a plain file")
    return open(fd, "rb", buffering=0)  # noqa: PTH123 -- a descriptor, not a path


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Read the front of a plain file."""
    with open_plain(path) as file:
        return _read(file, 0, min(os.fstat(file.fileno()).st_size, most_bytes))


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    data = bytearray(size)
    _fill(file, offset, memoryview(data))
    return bytes(data)


def _fill(file: BinaryIO, offset: int, view: memoryview) -> None:
    """Read from `offset` on until `view` is full."""
    while len(view):
        got = os.preadv(file.fileno(), [view], offset)
        if not got:
            raise _damaged(Path(os.fspath(file.name)), "it ends early")
        view, offset = view[got:], offset + got


def _digest_of(path: Path, spans: Iterable[tuple[int, int]]) -> str:
    """Hash stretches of a file, one after the other."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open_plain(path) as file:
        for start, end in spans:
            for at in range(start, end, _CHUNK_BYTES):
                part = buffer[: end - at]
                _fill(file, at, part)
                hasher.update(part)
    return hasher.hexdigest()


def _gaps(start: int, end: int, blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """Yield the stretches from `start` to `end` that belong to no array."""
    spans = sorted((a.offset, a.end) for block in blocks for a in block.arrays.values())
    for left, right in [*spans, (end, end)]:
        if left > start:
            yield start, left
        start = max(start, right)


def _bytes(data: NDArray[Any]) -> memoryview:
    return data.reshape(-1).view(np.uint8).data


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _damaged(path: Path, reason: str) -> DamagedShard:
    return DamagedShard(f"{path}: {reason}.")


# --- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block to be written; `load` gives one array at a time, so that a pack needs no memory."""

    group: str
    attrs: Attrs
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
    load: Callable[[str], NDArray[Any]]

    @classmethod
    def of(cls, attrs: Attrs, arrays: Mapping[str, NDArray[Any]]) -> NewBlock:
        """Make the one block of a shard from arrays in memory."""
        shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        return cls("/", attrs, shapes, arrays.__getitem__)


def pieces(blocks: Sequence[NewBlock], about: Mapping[str, Any] | None = None) -> Iterator[Piece]:
    """Yield the bytes of a new file, each with its offset, the table of contents last.

    Parameters
    ----------
    blocks : sequence of NewBlock
    about : mapping, optional
        What is true of the file as a whole; JSON values.

    Yields
    ------
    (offset, buffer)

    Raises
    ------
    ValueError
        When the format has no such arrays.
    """
    about = about or {}
    room = _HEADER_BYTES + len(_toc(_placed(blocks, None), 1 << 50, _BLANK[1], about))
    with tempfile.TemporaryDirectory(prefix="abag-skeleton-") as folder:
        skeleton = Path(folder) / "skeleton.h5"
        offsets = _write_skeleton(skeleton, blocks, user_block=max(512, 1 << room.bit_length()))
        placed = _placed(blocks, offsets)
        size = skeleton.stat().st_size
        start = len(_front(_toc(placed, size, _BLANK[1], about)))
        for block in placed:  # what no reader would take is refused before it is written
            _check_block(block, start, size)
        gaps = _read_gaps(skeleton, list(_gaps(start, size, placed)))
    yield from gaps
    hashed = []
    for new, place in zip(blocks, placed, strict=True):
        arrays = {}
        for name, array in place.arrays.items():
            view = _bytes(np.ascontiguousarray(new.load(name), dtype=array.dtype))
            yield array.offset, view
            crc = f"{zlib.crc32(view):08x}"
            arrays[name] = Array(array.dtype, array.shape, array.offset, crc, _digest(view))
        hashed.append(Block(place.path, place.group, place.attrs, arrays))
    rest = _digest(b"".join(data for _, data in gaps))
    yield 0, _front(_toc(hashed, size, rest, about))


def _placed(blocks: Sequence[NewBlock], offsets: Sequence[Mapping[str, int]] | None) -> list[Block]:
    """Return the blocks as they will lie in the file, their digests still unknown."""
    return [
        Block(
            Path(),
            block.group,
            block.attrs,
            {
                name: Array(dtype, shape, offsets[i][name] if offsets else 1 << 50, *_BLANK)
                for name, (dtype, shape) in block.shapes.items()
            },
        )
        for i, block in enumerate(blocks)
    ]


def _toc(blocks: Sequence[Block], size: int, rest: str, about: Mapping[str, Any]) -> bytes:
    """Serialise; its length does not depend on what the digests are."""
    toc = {
        "file_bytes": size,
        "rest_digest": rest,
        "about": about,
        "blocks": [
            {
                "group": block.group,
                "attrs": block.attrs,
                "arrays": {name: asdict(array) for name, array in block.arrays.items()},
            }
            for block in blocks
        ],
    }
    return json.dumps(toc, separators=(",", ":")).encode()


def _front(toc: bytes) -> bytes:
    return f"{FORMAT} {VERSION} {len(toc)} {_digest(toc)}\n".encode() + toc


def _write_skeleton(
    path: Path, blocks: Sequence[NewBlock], *, user_block: int
) -> list[dict[str, int]]:
    """Let HDF5 write names, types and attributes and reserve the arrays; return their offsets.

    The arrays stay holes. So no HDF5 call ever meets the store's file system, where a full disk
    would leave the library with a file that it can neither close nor forget.
    """
    with h5py.File(path, "w", userblock_size=user_block) as file:
        return [_reserve(file.require_group(block.group), block) for block in blocks]


def _reserve(group: Any, block: NewBlock) -> dict[str, int]:  # noqa: ANN401
    for name, value in block.attrs.items():
        group.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = {}
    for name, (dtype, shape) in block.shapes.items():
        kind = h5py.h5t.py_create(np.dtype(dtype))
        space = h5py.h5s.create_simple(shape)
        offsets[name] = h5py.h5d.create(group.id, name.encode(), kind, space, plan).get_offset()
    return offsets


def _read_gaps(path: Path, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        return [(start, os.pread(file.fileno(), end - start, start)) for start, end in gaps]
