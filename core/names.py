"""Names that are read from files, and files that are copied: nothing leads out of its folder.

Stores, checkpoints and adapters are shared, so another person may have chosen every name in them.
A name is checked where it is read, against those that its format allows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterable
from contextlib import ExitStack
from pathlib import Path

from abag import AbagError


class UnsafeFile(AbagError):
    """A file contains a name that its format does not allow, or is a link."""


def check_names(where: Path, names: Iterable[str], allowed: Container[str]) -> None:
    """Check names that were read from a file, before any is joined to a path.

    Raises
    ------
    UnsafeFile
        With the first name that is not allowed.
    """
    for name in names:
        if name not in allowed:
            msg = (
                f"{where}: contains the name {name!r}, which its format does not allow. Nothing "
                "was written; get the file from a source that you trust."
            )
            raise UnsafeFile(msg)


def read_inside(folder: Path, name: str) -> bytes:
    """Read a regular file by its path in a folder; only `folder` itself may be a link.

    Raises
    ------
    UnsafeFile
        If it, or a folder on the way, is a link or not a regular file.
    OSError
        If it does not exist or cannot be read.
    """
    *inner, last = name.split("/")
    with ExitStack() as opened:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, at)
        try:
            for part in inner:
                at = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                opened.callback(os.close, at)
            # O_NONBLOCK: opening a pipe would wait for its writer
            at = os.open(last, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                raise _not_regular(folder / name) from error
            raise
        file = opened.enter_context(os.fdopen(at, "rb"))
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise _not_regular(folder / name)
        return file.read()


def _not_regular(path: Path) -> UnsafeFile:
    return UnsafeFile(
        f"{path}: is or is behind a link, a pipe or a folder; expected a regular file. Copy the "
        "file itself to this place."
    )
