"""How large a table may be: a small file can unpack to more than the memory holds."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

MAX_ROW_BYTES = 32 << 20
TOO_LONG = f"a row has more than {MAX_ROW_BYTES >> 20} MiB"
_GZIP_RATIO = 1032
"""Most bytes that gzip unpacks from one."""
MEMORY_PER_BYTE = 5
"""Most memory that reading a whole table takes, per byte of the table."""


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits_memory(table_bytes: int) -> None:
    """Refuse a table that is read as a whole and would fill the memory.

    Raises
    ------
    ValueError
    """
    memory = memory_bytes()
    if table_bytes > memory // MEMORY_PER_BYTE:
        msg = (
            f"it unpacks to at least {table_bytes / 1e9:.1f} GB, reading takes up to "
            f"{MEMORY_PER_BYTE} times as much memory, and this machine has {memory / 1e9:.1f} GB; "
            "use one with more memory, or fewer rows or columns"
        )
        raise ValueError(msg)


def check_text_fits_memory(path: Path, *, packed: bool) -> None:
    """Refuse a text file, which may be compressed by gzip, as `check_fits_memory` does."""
    table_bytes = path.stat().st_size
    most = memory_bytes() // MEMORY_PER_BYTE
    if packed and table_bytes * _GZIP_RATIO > most:
        table_bytes = 0
        with gzip.open(path) as file:
            while table_bytes <= most and (part := file.read(1 << 20)):
                table_bytes += len(part)
    check_fits_memory(table_bytes)
