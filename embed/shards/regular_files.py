"""Read regular files that others may have written: no links, no pipes, no files of other kinds."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from abag import AbagError

DIGEST_BYTES = 16
CHUNK_BYTES = 1 << 20  # small enough to stay in the CPU cache


class DamagedShard(AbagError):
    """A file that is not what a writer committed."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file without following links or blocking on pipes.

    Raises
    ------
    DamagedShard
        If the path is not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise damaged(path, "a link or a pipe; expected a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise damaged(path, "not a regular file")
    # the file's name is then the path, which errors state
    return open(path, "rb", buffering=0, opener=lambda *_: fd)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read at most `most_bytes` from the start of a regular file.

    Raises
    ------
    DamagedShard
        If the path is not a regular file.
    """
    with open_regular(path) as file:
        return read_at(file, 0, min(os.fstat(file.fileno()).st_size, most_bytes))


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read `size` bytes of a file, starting at `offset`."""
    data = bytearray(size)
    fill(file, offset, memoryview(data))
    return bytes(data)


def fill(file: BinaryIO, offset: int, view: memoryview) -> None:
    """Fill a buffer from a file, starting at `offset`.

    Raises
    ------
    DamagedShard
        If the file ends early.
    """
    while len(view):
        got = os.preadv(file.fileno(), [view], offset)
        if not got:
            raise damaged(Path(file.name), "it ends early")
        view, offset = view[got:], offset + got


def digest_of_spans(path: Path, spans: Iterable[tuple[int, int]]) -> str:
    """Hash (start, end) spans of a file, one after the other."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with open_regular(path) as file:
        for start, end in spans:
            for at in range(start, end, CHUNK_BYTES):
                part = buffer[: end - at]
                fill(file, at, part)
                hasher.update(part)
    return hasher.hexdigest()


def as_bytes(data: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array of any shape, without a copy."""
    return data.reshape(-1).view(np.uint8).data


def digest_of(data: bytes | memoryview) -> str:
    """Return the blake2b digest that the format uses: 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def damaged(path: Path, reason: str) -> DamagedShard:
    """Return the error for a file and what is wrong with it."""
    return DamagedShard(f"{path}: {reason}.")
