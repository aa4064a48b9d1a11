"""Results that can be computed again, such as clusters, in folders below the cache folder.

An entry is used only if it is a plain file of this user that nobody else may write, and holds what
was kept under its name. Anything else counts as missing, and is computed and written again. A
folder holds at most `MOST_ENTRIES` and `MOST_BYTES`; then the entries that were used least recently
are deleted. Any number of processes may read and write at the same time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from abag.core.files import make_folder, remove_quietly, sweep_partials, write_bytes
from abag.core.messages import detail

if TYPE_CHECKING:
    from pathlib import Path

MOST_ENTRIES = 200
MOST_BYTES = 2 << 30
_DIGEST_BYTES = 16


def kept(folder: Path | None, what: bytes) -> bytes | None:
    """Return what was kept for the inputs `what`; None if there is nothing that can be trusted."""
    if folder is None:
        return None
    path = _path(folder, what)
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a link has not been followed
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_mode & stat.S_IWOTH:
                return None
            if state.st_uid not in (os.getuid(), 0) or state.st_size > MOST_BYTES:
                return None
            digest, content = file.read(_DIGEST_BYTES), file.read()
        if digest == _digest(path, content):
            with suppress(OSError):
                os.utime(path)  # used just now
            return content
    return None


def keep(folder: Path | None, what: bytes, content: bytes) -> None:
    """Keep `content` for the inputs `what`, if the file system allows it."""
    if folder is None:
        return
    path = _path(folder, what)
    try:
        make_folder(folder)
        sweep_partials(folder)
        write_bytes(path, _digest(path, content) + content)
        _forget_oldest(folder)
    except OSError as error:
        detail(f"{folder}: nothing is kept there for the next command ({error})")


def _path(folder: Path, what: bytes) -> Path:
    return folder / hashlib.blake2b(what, digest_size=_DIGEST_BYTES).hexdigest()


def _digest(path: Path, content: bytes) -> bytes:
    """Compute the digest that an entry begins with; its name is included."""
    running = hashlib.blake2b(path.name.encode(), digest_size=_DIGEST_BYTES)
    running.update(content)
    return running.digest()


def _forget_oldest(folder: Path) -> None:
    """Delete the entries used least recently, beyond what a folder may hold."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process deletes, too
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode):
                found.append((state.st_mtime_ns, state.st_size, path))
    held_bytes = 0
    for number, (_, size, path) in enumerate(sorted(found, reverse=True)):
        held_bytes += size
        if number and (number >= MOST_ENTRIES or held_bytes > MOST_BYTES):
            remove_quietly(path)
