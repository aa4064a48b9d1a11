"""Atomic file writes: a file exists under its name whole, or not at all.

Every file that abag writes for later is written under a partial name, synced, renamed, and its
folder synced. An interruption at any point leaves at most a partial file, which nothing reads. Any
number of processes may write one file at the same time: each writes its own partial file, and the
last rename decides which of the whole files remains.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from abag import AbagError

_SCRATCH = ".arriving"
_STEM = 32  # characters of a name that its partial files begin with; file systems allow 255 bytes
STALE_SECONDS = 86_400
"""Age at which a partial file of another host counts as abandoned."""
# FUSE and CIFS file systems may not be able to sync a folder
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
_OWNED_PARTIAL = re.compile(r".*\.(?P<host>[A-Za-z0-9_-]+)\.(?P<pid>\d{1,9})\.partial")


class FolderBusy(AbagError):
    """Another process is writing into a folder."""


class NotUtf8(AbagError):
    """The name of a folder is not UTF-8, and libraries that write into it cannot open it."""


class FileDamaged(AbagError):
    """A file of a run, a sweep or an adapter is not what was written."""


class DiskFull(AbagError):
    """A file of the run could not be written."""


def why_unreadable(folder: Path, error: Exception) -> str:
    """Say in one line why a file of a folder cannot be read."""
    if not folder.exists():
        return "it does not exist"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"it has no {Path(error.filename).name}"
    return " ".join(str(error).split())


class Files:
    """The file system calls of an atomic write; tests substitute failing ones."""

    def write(self, path: Path, content: bytes) -> None:
        """Write a new file and sync it; a link at this path is not followed."""
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file; `target` is the old or the new file at every instant."""
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        """Make renames inside a folder survive a power cut, if the file system supports it."""
        try:
            _sync(folder)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise

    def remove(self, path: Path) -> None:
        """Delete a file if it exists."""
        path.unlink(missing_ok=True)


def make_folder(folder: Path, files: Files | None = None) -> None:
    """Create a folder and those above it, if they are new, so that they survive a power cut."""
    folder = folder.resolve()
    new = [one for one in folder.parents if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in (folder, *new):
        (files or Files()).sync_folder(one.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file by what the block writes, atomically.

    Yields the path of an empty partial file, which the block has to write and close. It is renamed
    to `path` when the block ends, and deleted if the block raises. Its mode follows the umask, also
    where what writes it makes it private, as safetensors does. Partial files of `path` that dead
    processes left are deleted.

    Raises
    ------
    OSError
        If the file cannot be created, synced or renamed.
    """
    partial = partial_path(path)
    sweep_partials_of(path)
    with _renaming(partial, path, Files()):
        partial.touch(exist_ok=False)  # O_EXCL: writers open it by name, and may not follow a link
        mode = partial.stat().st_mode
        yield partial
        if partial.stat().st_mode != mode:
            partial.chmod(stat.S_IMODE(mode))
        _sync(partial)


def write_bytes(path: Path, content: bytes, *, files: Files | None = None) -> None:
    """Write a file atomically; its bytes are read back before the rename.

    Raises
    ------
    OSError
        If the file system fails, or returns other bytes than were written. Calling again is safe,
        even if the file was already renamed.
    """
    files = files or Files()
    partial = partial_path(path)
    with _renaming(partial, path, files):
        files.write(partial, content)
        if partial.read_bytes() != content:
            raise OSError(errno.EIO, "The bytes read differ from those written", str(partial))


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 text file atomically; what dead processes left of it is deleted."""
    sweep_partials_of(path)
    write_bytes(path, text.encode(errors="backslashreplace"))  # names of files may be any bytes


def write_json(
    path: Path, value: object, *, sort_keys: bool = False, files: Files | None = None
) -> None:
    """Write a value as indented JSON, atomically; see :func:`write_bytes`."""
    write_bytes(path, json_bytes(value, sort_keys=sort_keys), files=files)


def json_bytes(value: object, *, sort_keys: bool = False) -> bytes:
    """Return the content of a file of indented JSON."""
    return (json.dumps(value, indent=2, sort_keys=sort_keys) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that :func:`write_json` wrote.

    Raises
    ------
    FileDamaged
        If it holds anything else.
    OSError
        If it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        value = error
    if isinstance(value, dict):
        return value
    msg = f"{path}: is damaged; expected a JSON object. Restore it, or start in another folder."
    raise FileDamaged(msg)


def remove_quietly(path: Path, files: Files | None = None) -> None:
    """Delete a file that does no harm if it cannot be deleted."""
    with suppress(OSError):
        (files or Files()).remove(path)


def refusal_to_write(
    out: Path, sources: Iterable[object], *, force: bool, option: str = "--out"
) -> str:
    """Say why a file that the user named by `option` must not be written; empty if it may.

    Its folder has to exist. The file must not be one of the `sources` that are paths, and must not
    exist unless `force` is set.
    """
    if not out.parent.is_dir():
        lacks = f"{out}: its folder does not exist; expected one."
        return f"{lacks} Create it, or choose another {option}."
    paths = [Path(source) for source in sources if isinstance(source, Path | str)]
    if any(path.exists() and out.exists() and path.samefile(out) for path in paths):
        return (
            f"{out}: {option} is also the input table; expected another file. Choose another "
            f"{option}."
        )
    if out.is_dir() or (out.exists() and not force):
        return f"{out}: already exists; use --force to overwrite, or choose another {option}."
    return ""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Create a folder, and keep other processes that call this out of it.

    Where the file system has no locks, nobody is kept out.

    Raises
    ------
    FolderBusy
        If another process is inside.
    NotUtf8
        If its name is not UTF-8; nothing is created.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        msg = f"{folder}: a name that is not UTF-8; expected UTF-8. Rename it, or use another."
        raise NotUtf8(msg) from error
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        msg = f"{folder}: another process is writing into it. Wait for its end, or use another."
        raise FolderBusy(msg) from error
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


# --- partial files -------------------------------------------------------------------------------


def partial_path(path: Path) -> Path:
    """Return a new name under which a file is written before it is renamed to `path`.

    It says which process writes the file, and nobody can guess it and put a link there.
    """
    owner = f"{host_name()}.{os.getpid()}"
    return path.with_name(f"{path.stem[:_STEM]}.{secrets.token_hex(8)}.{owner}.partial")


def is_partial(path: Path) -> bool:
    """Whether a path names a file that was not committed."""
    return path.suffix == ".partial"


def partial_owner(path: Path) -> tuple[str, int] | None:
    """Return the host and process id in the name of a partial file, if it has them."""
    match = _OWNED_PARTIAL.fullmatch(path.name)
    return (match["host"], int(match["pid"])) if match else None


def sweep_partials(folder: Path, files: Files | None = None) -> None:
    """Delete the partial files of dead processes of this host, and all that are a day old.

    Folders inside are included; `folder` has to be one that abag made.
    """
    _sweep(folder, "**/*.partial", files)


def sweep_partials_of(path: Path) -> None:
    """Delete what dead processes left of a file, in a folder that may hold anything."""
    _sweep(path.parent, f"{glob.escape(path.stem[:_STEM])}.*.partial")


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for files that are not whole yet, and remove it in the end.

    It is in `parent`, so that a file can be renamed from it into place (:func:`adopt`). Those that
    dead processes left there are removed.
    """
    _sweep(parent, f"{_SCRATCH}.*.partial")
    folder = partial_path(parent / _SCRATCH)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def adopt(source: Path, path: Path) -> None:
    """Sync a whole file that something else wrote on the same file system, and rename it."""
    files = Files()
    _sync(source)
    files.replace(source, path)
    files.sync_folder(path.parent)


def _sweep(folder: Path, pattern: str, files: Files | None = None) -> None:
    with suppress(OSError):  # the folder is as usable as before
        for path in folder.glob(pattern):
            if not _is_stale(path):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                (files or Files()).remove(path)


def _is_stale(path: Path) -> bool:
    """Whether the process that wrote a partial file is gone; False for files that are not ours."""
    owner = partial_owner(path)
    if owner is None:
        return False
    host, pid = owner
    is_old = time.time() - path.lstat().st_mtime > STALE_SECONDS
    return is_old or (host == host_name() and not is_process_alive(pid))


def host_name() -> str:
    """Return this machine's name, restricted to letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()) or "host"


def is_process_alive(pid: int) -> bool:
    """Whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Name a file in errors of the block: they name its partial file, or none on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).endswith(".partial"):
            error.filename = str(path)
            del error.filename2  # of a rename
        raise


@contextmanager
def _renaming(partial: Path, path: Path, files: Files) -> Iterator[None]:
    """Rename a partial file that the block wrote and synced; delete it if the block raises."""
    try:
        with naming_errors(path):
            yield
            files.replace(partial, path)
    except BaseException:
        remove_quietly(partial, files)
        raise
    files.sync_folder(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
