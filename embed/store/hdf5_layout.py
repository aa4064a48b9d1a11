"""Make shards and packed stores: the only file that speaks to the HDF5 library.

HDF5 lays out names, types and attributes once, around holes; the arrays and the table of contents
are then written by plain calls, whose failures mean what they say.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from abag.core.files import Chunk
from abag.embed.store.shard import (
    DIGEST_BYTES,
    FORMAT,
    HEADER_BYTES,
    VERSION,
    ArrayEntry,
    Attrs,
    VectorBlock,
    as_bytes,
    check_block,
    digest_of,
    gaps_between,
)

_BLANK = ("0" * 8, "0" * 2 * DIGEST_BYTES)  # a CRC-32 and a digest that are not known yet


@dataclass(frozen=True, slots=True)
class BlockSource:
    """A block to be written; `load` gives one array at a time, so that a pack needs no memory."""

    group: str
    attrs: Attrs
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
    load: Callable[[str], NDArray[Any]]

    @classmethod
    def of(cls, attrs: Attrs, arrays: Mapping[str, NDArray[Any]]) -> BlockSource:
        """Make the one block of a shard from arrays in memory."""
        shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        return cls("/", attrs, shapes, arrays.__getitem__)


def shard_chunks(
    blocks: Sequence[BlockSource], about: Mapping[str, Any] | None = None
) -> Iterator[Chunk]:
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
    room = HEADER_BYTES + len(_toc(_placed(blocks, None), 1 << 50, _BLANK[1], about))
    with tempfile.TemporaryDirectory(prefix="abag-skeleton-") as folder:
        skeleton = Path(folder) / "skeleton.h5"
        offsets = _write_skeleton(skeleton, blocks, user_block=max(512, 1 << room.bit_length()))
        placed = _placed(blocks, offsets)
        size = skeleton.stat().st_size
        start = len(_front(_toc(placed, size, _BLANK[1], about)))
        for block in placed:  # what no reader would take is refused before it is written
            check_block(block, start, size)
        gaps = _readgaps_between(skeleton, list(gaps_between(start, size, placed)))
    yield from gaps
    hashed = []
    for new, place in zip(blocks, placed, strict=True):
        arrays = {}
        for name, array in place.arrays.items():
            view = as_bytes(np.ascontiguousarray(new.load(name), dtype=array.dtype))
            yield array.offset, view
            crc = f"{zlib.crc32(view):08x}"
            arrays[name] = ArrayEntry(array.dtype, array.shape, array.offset, crc, digest_of(view))
        hashed.append(VectorBlock(place.path, place.group, place.attrs, arrays))
    rest = digest_of(b"".join(data for _, data in gaps))
    yield 0, _front(_toc(hashed, size, rest, about))


def _placed(
    blocks: Sequence[BlockSource], offsets: Sequence[Mapping[str, int]] | None
) -> list[VectorBlock]:
    """Return the blocks as they will lie in the file, their digests still unknown."""
    return [
        VectorBlock(
            Path(),
            block.group,
            block.attrs,
            {
                name: ArrayEntry(dtype, shape, offsets[i][name] if offsets else 1 << 50, *_BLANK)
                for name, (dtype, shape) in block.shapes.items()
            },
        )
        for i, block in enumerate(blocks)
    ]


def _toc(blocks: Sequence[VectorBlock], size: int, rest: str, about: Mapping[str, Any]) -> bytes:
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
    return f"{FORMAT} {VERSION} {len(toc)} {digest_of(toc)}\n".encode() + toc


def _write_skeleton(
    path: Path, blocks: Sequence[BlockSource], *, user_block: int
) -> list[dict[str, int]]:
    """Let HDF5 write names, types and attributes and reserve the arrays; return their offsets.

    The arrays stay holes. So no HDF5 call ever meets the store's file system, where a full disk
    would leave the library with a file that it can neither close nor forget.
    """
    with h5py.File(path, "w", userblock_size=user_block) as file:
        return [_reserve(file.require_group(block.group), block) for block in blocks]


def _reserve(group: Any, block: BlockSource) -> dict[str, int]:  # noqa: ANN401
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


def _readgaps_between(path: Path, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        return [(start, os.pread(file.fileno(), end - start, start)) for start, end in gaps]
