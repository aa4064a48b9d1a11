"""Results that can be computed again, such as clusters, in folders below the cache folder.

What is there decides results, and compiled kernels are programs. So the cache folder is used only
if nobody but this user can have written to it, see `ensure_private`. An entry is used only if it is
a plain file of this user that holds what was kept under its name. Anything else counts as missing,
and is computed and written again. A folder holds at most `MOST_ENTRIES` and `MOST_BYTES`; then the
entries that were used least recently are deleted. Any number of processes may read and write at the
same time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from abag.core.files import make_folder, remove_quietly, sweep_partials, write_bytes
from abag.core.messages import detail, say

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ENTRIES = 200
MOST_BYTES = 2 << 30
_DIGEST_BYTES = 16
_KERNELS = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch.compile keeps what it has compiled; by default a temporary folder."""


def ensure_private(folder: Path) -> bool:
    """Create a folder for this user alone; tell whether nobody else can have written to it.

    If it exists, others lose their access to it, and with it to all that is inside, whatever the
    modes there. One that others could write to is reported, and must not be read.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state, user = folder.stat(), os.getuid()
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
    """Return the folder of files that can be recomputed, such as clusters; create it if needed.

    Without a home, or if others may write to that folder, it is a temporary one of this user.
    """
    with suppress(OSError, RuntimeError):  # no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abag"
        if ensure_private(folder):
            return folder
    return _temporary_folder(tempfile.gettempdir())


def _temporary_folder(parent: str) -> Path:
    """Return this user's folder in the temporary folder `parent`, or a new one if others own it."""
    folder = Path(parent) / f"abag-{os.getuid()}"
    return folder if ensure_private(folder) else _new_folder(parent)


@functools.cache
def _new_folder(parent: str) -> Path:
    """Make one folder for this process."""
    return Path(tempfile.mkdtemp(prefix="abag-", dir=parent))


@functools.cache
def _report(what: str) -> None:
    """Report once what is wrong with a folder."""
    say(f"{what}, so nothing in it is used or kept. Delete it; abag makes it again.")


@contextmanager
def keeping_kernels() -> Iterator[None]:
    """Let torch.compile keep its kernels in the cache, unless the user's variable says where."""
    if _KERNELS in os.environ:
        yield
        return
    os.environ[_KERNELS] = str(cache_dir() / "inductor")
    try:
        yield
    finally:
        os.environ.pop(_KERNELS, None)


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
