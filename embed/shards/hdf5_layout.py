"""Lay out new shards and packed stores; the only module that uses the HDF5 library.

HDF5 writes names, types and attributes once, to a skeleton file on the local disk whose arrays
are holes. The arrays and the table of contents are then written by plain system calls, so that a
full disk raises an OSError and cannot leave the library with a file that it can neither close
nor forget.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from abag.embed.shards.regular_files import DIGEST_BYTES, as_bytes, digest_of
from abag.embed.shards.shard import (
    FORMAT,
    HEADER_BYTES,
    VERSION,
    ArrayEntry,
    Attrs,
    Chunk,
    VectorBlock,
    check_block,
    gaps_between,
)

# same length as the real values, which are not known yet
_NO_CRC, _NO_DIGEST = "0" * 8, "0" * 2 * DIGEST_BYTES
_LONGEST_OFFSET = 1 << 50
_ERRNO = re.compile(r"errno = (\d{1,4})\b")


@dataclass(frozen=True, slots=True)
class BlockSource:
    """A block to be written; `load` returns one array at a time, so packing needs little memory."""

    group: str
    attrs: Attrs
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape of each array."""
    load: Callable[[str], NDArray[Any]]

    @classmethod
    def of(cls, attrs: Attrs, arrays: Mapping[str, NDArray[Any]]) -> BlockSource:
        """Make the block of a shard from arrays in memory, each with N rows."""
        shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        return cls("/", attrs, shapes, arrays.__getitem__)


def shard_chunks(
    blocks: Sequence[BlockSource], about: Mapping[str, Any] | None = None
) -> Iterator[Chunk]:
    """Yield the bytes of a new file as offsets and parts, the table of contents last.

    Parameters
    ----------
    blocks : sequence of BlockSource
        One for a shard, any number for a packed store.
    about : mapping, optional
        Properties of the file as a whole; JSON values.

    Raises
    ------
    ValueError
        If the format does not allow an array's dtype or shape.
    """
    about = about or {}
    longest_offsets = [dict.fromkeys(block.shapes, _LONGEST_OFFSET) for block in blocks]
    placed = _located(blocks, longest_offsets)
    longest = _table_of_contents(placed, _LONGEST_OFFSET, _NO_DIGEST, about)
    user_block = max(512, 1 << (HEADER_BYTES + len(longest)).bit_length())
    with tempfile.TemporaryDirectory(prefix="abag-skeleton-") as folder:
        skeleton = Path(folder) / "skeleton.h5"
        try:
            with h5py.File(skeleton, "w", userblock_size=user_block) as file:
                offsets = [_reserve(file.require_group(block.group), block) for block in blocks]
        except (OSError, RuntimeError) as error:  # in several lines
            number = _ERRNO.search(str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), folder) from error
        located = _located(blocks, offsets)
        size = skeleton.stat().st_size
        start = len(_front(_table_of_contents(located, size, _NO_DIGEST, about)))
        for block in located:  # refuse now what no reader would accept
            check_block(block, start, size)
        with skeleton.open("rb") as file:
            gaps = [
                (begin, os.pread(file.fileno(), end - begin, begin))
                for begin, end in gaps_between(start, size, located)
            ]
    yield from gaps
    hashed = []
    for source, block in zip(blocks, located, strict=True):
        arrays = {}
        for name, entry in block.arrays.items():
            data = as_bytes(np.ascontiguousarray(source.load(name), dtype=entry.dtype))
            yield entry.offset, data
            crc = f"{zlib.crc32(data):08x}"
            arrays[name] = ArrayEntry(entry.dtype, entry.shape, entry.offset, crc, digest_of(data))
        hashed.append(VectorBlock(block.path, block.group, block.attrs, arrays))
    rest = digest_of(b"".join(data for _, data in gaps))
    yield 0, _front(_table_of_contents(hashed, size, rest, about))


def _located(
    blocks: Sequence[BlockSource], offsets: Sequence[Mapping[str, int]]
) -> list[VectorBlock]:
    """Return the blocks at their offsets in the file, without checksums."""
    located = []
    for block, offset in zip(blocks, offsets, strict=True):
        arrays = {
            name: ArrayEntry(dtype, shape, offset[name], _NO_CRC, _NO_DIGEST)
            for name, (dtype, shape) in block.shapes.items()
        }
        located.append(VectorBlock(Path(), block.group, block.attrs, arrays))
    return located


def _table_of_contents(
    blocks: Sequence[VectorBlock], size: int, rest_digest: str, about: Mapping[str, Any]
) -> bytes:
    """Serialize; the length does not depend on the values of the checksums."""
    toc = {
        "file_bytes": size,
        "rest_digest": rest_digest,
        "about": about,
        "blocks": [
            {
                "group": block.group,
                "attrs": block.attrs,
                "arrays": {name: asdict(entry) for name, entry in block.arrays.items()},
            }
            for block in blocks
        ],
    }
    return json.dumps(toc, separators=(",", ":")).encode()


def _front(table_of_contents: bytes) -> bytes:
    digest = digest_of(table_of_contents)
    return f"{FORMAT} {VERSION} {len(table_of_contents)} {digest}\n".encode() + table_of_contents


def _reserve(group: Any, block: BlockSource) -> dict[str, int]:  # noqa: ANN401 -- h5py is untyped
    """Write a block's attributes, and reserve its arrays; return their offsets."""
    for name, value in block.attrs.items():
        group.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = {}
    for name, (dtype, shape) in block.shapes.items():
        datatype = h5py.h5t.py_create(np.dtype(dtype))
        space = h5py.h5s.create_simple(shape)
        dataset = h5py.h5d.create(group.id, name.encode(), datatype, space, creation)
        offsets[name] = dataset.get_offset()
    return offsets
