"""Names that are read from files, and files that are copied: nothing leads out of its folder.

Stores, checkpoints and adapters are shared, so another person may have chosen every name in them.
A name is checked where it is read, against those that its format allows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterable
from io import FileIO
from pathlib import Path

from abag import AbagError


class UnsafeFile(AbagError):
    """A file contains a name that its format does not allow, or is a link."""


def check_names(where: Path, names: Iterable[str], allowed: Container[str]) -> None:
    """Check names that were read from a file, before any is joined to a path."""
    for name in names:
        if name not in allowed:
            msg = (
                f"{where}: contains the name {name!r}, which its format does not allow. Nothing "
                "was written; get the file from a source that you trust."
            )
            raise UnsafeFile(msg)


def open_regular(path: Path) -> FileIO:
    """Open a file for reading; `UnsafeFile` if it is a link, a pipe or a folder."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return os.fdopen(descriptor, "rb", buffering=0)


def read_inside(folder: Path, name: str) -> bytes:
    """Read a regular file by its path in a folder; only `folder` itself may be a link."""
    path = folder / name
    for inner in Path(name).parents[:-1]:
        if (folder / inner).is_symlink():
            raise _not_regular(path)
    with open_regular(path) as file:
        return file.read()


def _not_regular(path: Path) -> UnsafeFile:
    return UnsafeFile(
        f"{path}: is or is behind a link, a pipe or a folder; expected a regular file. Copy the "
        "file itself to this place."
    )
