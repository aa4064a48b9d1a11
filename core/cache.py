"""Results that can be computed again, such as clusters, in folders below the cache folder.

What is there decides results. So the cache folder is used only if nobody but this user can have
written to it, see `ensure_private`. An entry whose digest differs counts as missing. A folder holds
at most `MOST_ENTRIES` and `MOST_BYTES`; then the entries that were used least recently are deleted.
Any number of processes may read and write at the same time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from abag.core.files import make_folder, remove_quietly, sweep_partials, write_bytes
from abag.core.messages import detail, say

MOST_ENTRIES = 200
MOST_BYTES = 2 << 30
_DIGEST_BYTES = 16


def ensure_private(folder: Path) -> bool:
    """Create a folder for this user alone; tell whether nobody else can have written to it."""
    # if it exists, others lose access; one that others could write to must not be read
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    user = os.getuid()
    if state.st_uid != user or folder.lstat().st_uid != user:  # lstat: a link of another user
        _report(f"{folder}: belongs to another user")
        return False
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _report(f"{folder}: other users may write to it")
        return False
    with suppress(OSError):  # a file system without modes
        folder.chmod(stat.S_IRWXU)
    return True


def cache_dir() -> Path:
    """Return, and create, the folder of what can be recomputed; at worst a temporary one."""
    with suppress(OSError, RuntimeError):  # no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abag"
        if ensure_private(folder):
            return folder
    folder = Path(tempfile.gettempdir()) / f"abag-{os.getuid()}"
    return folder if ensure_private(folder) else _new_folder()


@functools.cache
def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="abag-"))


@functools.cache
def _report(reason: str) -> None:
    say(f"{reason}, so nothing in it is used or kept. Delete it; abag makes it again.")


def load_cached(folder: Path | None, inputs: bytes) -> bytes | None:
    """Return what was computed from `inputs` before; None if there is nothing or it is damaged."""
    if folder is None:
        return None
    path = _path(folder, inputs)
    with suppress(OSError):
        entry = path.read_bytes()
        digest = entry[:_DIGEST_BYTES]
        content = entry[_DIGEST_BYTES:]
        if digest == _digest(path, content):
            os.utime(path)  # used just now
            return content
    return None


def store_cached(
    folder: Path | None,
    inputs: bytes,
    content: bytes,
    *,
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Keep what was computed from `inputs`, if the file system allows it.

    Parameters
    ----------
    folder : path, optional
        None: nothing is kept.
    inputs, content : bytes
        What `load_cached` asks for, and what it returns.
    most_entries, most_bytes : int
        What the folder holds at most afterwards, except that this entry always stays.
    """
    if folder is None:
        return
    path = _path(folder, inputs)
    try:
        make_folder(folder)
        sweep_partials(folder)
        write_bytes(path, _digest(path, content) + content)
        _forget_oldest(folder, most_entries, most_bytes)
    except OSError as error:
        detail(f"{folder}: nothing is kept there for the next command ({error})")


def _path(folder: Path, inputs: bytes) -> Path:
    return folder / hashlib.blake2b(inputs, digest_size=_DIGEST_BYTES).hexdigest()


def _digest(path: Path, content: bytes) -> bytes:
    """Hash an entry with its name, so that an entry of other inputs is not accepted."""
    return hashlib.blake2b(path.name.encode() + content, digest_size=_DIGEST_BYTES).digest()


def _forget_oldest(folder: Path, most_entries: int, most_bytes: int) -> None:
    """Delete the entries used least recently, beyond what a folder may hold."""
    entries = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process deletes, too
            state = path.lstat()
            entries.append((state.st_mtime_ns, state.st_size, path))
    held_bytes = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        held_bytes += size
        if number and (number >= most_entries or held_bytes > most_bytes):
            remove_quietly(path)
