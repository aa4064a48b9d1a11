"""Files: written whole or not at all, and a cache of what can be computed again.

A file is written under a partial name, synced, renamed, and its folder synced. An interruption at
any point leaves at most a partial file, which nothing reads. Any number of processes may write one
file at the same time: the last rename decides which of the whole files remains.

What is in the cache decides results. So its folder is used only if nobody but this user can have
written to it, see `ensure_private`. An entry whose digest differs counts as missing. A folder holds
at most `MOST_ENTRIES` and `MOST_BYTES`; then the entries that were used least recently are deleted.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import glob
import hashlib
import json
import math
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from abag.core.errors import AbagError, DamagedFile, OutputError, RunError
from abag.core.messages import detail, say

_STEM = 32  # characters of a name that its partial files begin with; file systems allow 255 bytes
STALE_SECONDS = 86_400  # age at which a partial file of another host counts as abandoned
_OWNED_PARTIAL = re.compile(r".*\.(?P<host>[A-Za-z0-9_-]+)\.(?P<pid>\d{1,9})\.partial")


MOST_ENTRIES = 200
MOST_BYTES = 2 << 30
_DIGEST_BYTES = 16


class UnsafeFile(AbagError):
    """A file contains a name that its format does not allow, or is a link."""


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut, if the file system supports it."""
    try:
        _sync(folder)
    except OSError as error:
        # FUSE and CIFS file systems may not be able to
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, if they are new, so that they survive a power cut."""
    folder = folder.resolve()
    new_parents = [parent for parent in folder.parents if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new in (folder, *new_parents):
        sync_folder(new.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty partial file to write and close, which replaces a file when the block ends.

    What dead processes left of the file is deleted.
    """
    partial = partial_path(path)
    sweep_partials(path.parent, f"{glob.escape(path.stem[:_STEM])}.*.partial")
    try:
        partial.touch(exist_ok=False)  # O_EXCL: writers open it by name, and may not follow a link
        mode = partial.stat().st_mode
        yield partial
        if partial.stat().st_mode != mode:  # safetensors makes its files private
            with suppress(OSError):  # a mounted drive may not know modes
                partial.chmod(stat.S_IMODE(mode))
        _sync(partial)
        partial.replace(path)
    except BaseException as error:
        remove_quietly(partial)
        # on a full disk, an error names no file; those of requests, without a number, are of none
        if isinstance(error, OSError) and error.errno is not None:
            if error.filename in (None, partial, str(partial)):
                error.filename = str(path)
                del error.filename2  # of a rename
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; its bytes are read back before the rename."""
    with replacing(path) as partial:
        partial.write_bytes(content)
        if partial.read_bytes() != content:
            raise OSError(errno.EIO, "The bytes read differ from those written", str(partial))


def write_text(path: Path, text: str) -> None:
    """Write a text atomically, as UTF-8."""
    write_bytes(path, text.encode(errors="backslashreplace"))  # names of files may be any bytes


def write_json(path: Path, value: object, *, sort_keys: bool = False) -> None:
    """Write a value atomically as the JSON of `json_bytes`."""
    write_bytes(path, json_bytes(value, sort_keys=sort_keys))


def json_bytes(value: object, *, sort_keys: bool = False) -> bytes:
    """Encode a value as indented JSON in UTF-8, with a newline at the end."""
    return (json_text(value, indent=2, sort_keys=sort_keys) + "\n").encode()


def json_text(value: object, **layout: Any) -> str:  # noqa: ANN401 - of json.dumps
    """Write JSON as the standard has it: numbers that are not finite become null."""
    layout |= {"allow_nan": False, "default": _of_numpy}
    try:
        return json.dumps(value, **layout)
    except ValueError:
        return json.dumps(_finite(value), **layout)


def _of_numpy(value: Any) -> Any:  # noqa: ANN401 - what JSON does not know
    """Return a number or array of NumPy, which is not imported for this, as those of Python."""
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    msg = f"{type(value).__name__} object is not JSON"
    raise TypeError(msg)


def _finite(value: Any) -> Any:  # noqa: ANN401 - a value of JSON
    if isinstance(value, Mapping):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists, on the disk that will hold it."""
    existing = path
    while not existing.exists():
        existing = existing.absolute().parent
    return existing


def refuse_read_only(*folders: Path, option: str = "folder") -> None:
    """Raise `OutputError` for a folder, new or not, into which this user cannot write."""
    for folder in folders:
        if why := _why_read_only(folder, option):
            raise OutputError(why)


def _why_read_only(folder: Path, option: str) -> str:
    try:
        existing = nearest_existing(folder)
        is_writable = not existing.is_dir() or os.access(existing, os.W_OK | os.X_OK)
    except OSError:  # a mounted Drive may fail for a moment
        return ""
    if is_writable:
        return ""
    return (
        f"{existing}: is read-only for this user; expected a folder to write into. Change its "
        f"permissions, or give another {option}."
    )


def remove_quietly(path: Path) -> None:
    """Remove a file, if it exists and the file system allows it."""
    with suppress(OSError):
        path.unlink()


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that :func:`write_json` wrote.

    Raises
    ------
    DamagedFile
        If the file holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        value = error
    if isinstance(value, dict):
        return value
    msg = f"{path}: is damaged; expected a JSON object. Restore it, or start in another folder."
    raise DamagedFile(msg)


def why_unreadable(folder: Path, error: Exception) -> str:
    """Say in one line why a file of a folder cannot be read."""
    if not folder.exists():
        return "it does not exist"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"it has no {Path(error.filename).name}"
    return " ".join(str(error).split())


def why_not_writable(out: Path, others: Iterable[object], *, force: bool, option: str) -> str:
    """Say why a file that the user named by `option` must not be written; empty if it may.

    `others` are what the command reads and writes beside it; tables in memory are no files.
    """
    other = f"Choose another {option}."
    if not out.parent.is_dir():
        return f"{out}: its folder does not exist; expected one. Create it, or choose another."
    for path in (Path(given) for given in others if isinstance(given, Path | str)):
        is_linked = path.exists() and out.exists() and path.samefile(out)
        if is_linked or path.resolve() == out.resolve():
            return (
                f"{out}: {option} is the same file as another argument; expected its own. {other}"
            )
    if out.is_dir() or (out.exists() and not force):
        return f"{out}: already exists; use --force to overwrite. {other}"
    return _why_read_only(out.parent, option)


def is_begun(
    folder: Path, record: str, what: str, option: str, besides: Container[str] = ()
) -> bool:
    """Tell whether the folder of a job that can be resumed has its `record`, which comes first.

    Before it, an interruption leaves partial files and the names `besides`. Raises `OutputError`
    for a file, and for a folder that holds anything else than the job that `what` names.
    """
    names = list[str]()
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir() if not is_partial(path))
    if record in names:
        return True
    foreign = [name for name in names if name not in besides]
    if foreign or (folder.exists() and not folder.is_dir()):  # a device or a pipe is a file, too
        held = f"holds {foreign[0]} and no {what}" if foreign else "is a file"
        msg = f"{folder}: {held}; expected a new folder. Give another {option}."
        raise OutputError(msg)
    return False


def check_same(
    folder: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    may_change: Container[str],
    option: str,
) -> None:
    """Raise `RunError` if any value outside `may_change` differs, naming each difference.

    `before` and `now` are the records of the command that began the folder of a job, and of this
    one.
    """
    changes = []
    for name in sorted(before.keys() | now.keys(), key=lambda name: ("digest" in name, name)):
        old = before.get(name)
        new = now.get(name)
        if old == new or name in may_change:
            continue
        if "digest" in name:
            changes.append("the sequences, labels or features of the table differ")
        else:
            changes.append(f"{name} was {old!r} and is now {new!r}")
    if changes:
        msg = (
            f"{folder}: started with other options or data: {'; '.join(changes)}. "
            f"Use the same options and table, or another {option} folder."
        )
        raise RunError(msg)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Create a folder, and refuse with `OutputError` while another process is in this block."""
    str(folder).encode()  # libraries cannot write into a folder whose name is not UTF-8
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"{folder}: another process is writing into it. Wait for its end, or use another."
            raise OutputError(msg) from error
        except OSError:  # a file system without locks keeps nobody out
            pass
        yield
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return a new name for a file until it is renamed to `path`; it says which process writes."""
    # random: nobody can guess the name and put a link there
    owner = f"{host_name()}.{os.getpid()}"
    return path.with_name(f"{path.stem[:_STEM]}.{secrets.token_hex(8)}.{owner}.partial")


def is_partial(path: Path) -> bool:
    """Tell whether a file is one that was not renamed to its own name yet."""
    return path.suffix == ".partial"


def sweep_partials(folder: Path, pattern: str = "**/*.partial") -> None:
    """Delete partial files of dead processes of this host, and those that are a day old."""
    with suppress(OSError):  # the folder is as usable as before
        for path in folder.glob(pattern):
            owner = _OWNED_PARTIAL.fullmatch(path.name)
            if owner is None:  # not a file of abag
                continue
            is_left = owner["host"] == host_name() and not is_process_alive(int(owner["pid"]))
            with suppress(FileNotFoundError):  # another process deletes, too
                if is_left or time.time() - path.lstat().st_mtime > STALE_SECONDS:
                    remove_quietly(path)


def host_name() -> str:
    """Return this machine's name, restricted to letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()) or "host"


def is_process_alive(pid: int) -> bool:
    """Tell whether a process of this host has not ended."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


# --- shared files, in which another person may have chosen every name -----------------------------


def check_names(where: Path, names: Iterable[str], allowed: Container[str]) -> None:
    """Check names that were read from a file, before any is joined to a path.

    Raises
    ------
    UnsafeFile
        If a name is not among the `allowed`.
    """
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
            with suppress(OSError):  # a file system that is mounted to be read only
                os.utime(path)  # used just now
            return content
    return None


def store_cached(folder: Path | None, inputs: bytes, content: bytes) -> None:
    """Keep what was computed from `inputs`, if the file system allows it.

    Parameters
    ----------
    folder : path, optional
        None: nothing is kept.
    inputs, content : bytes
        What `load_cached` asks for, and what it returns; this entry stays, whatever its size.
    """
    if folder is None:
        return
    path = _path(folder, inputs)
    try:
        make_folder(folder)
        sweep_partials(folder)
        write_bytes(path, _digest(path, content) + content)
        _forget_oldest(folder)
    except OSError as error:
        detail(f"{folder}: nothing is kept there for the next command ({error})")


def _path(folder: Path, inputs: bytes) -> Path:
    return folder / hashlib.blake2b(inputs, digest_size=_DIGEST_BYTES).hexdigest()


def _digest(path: Path, content: bytes) -> bytes:
    """Hash an entry with its name, so that an entry of other inputs is not accepted."""
    return hashlib.blake2b(path.name.encode() + content, digest_size=_DIGEST_BYTES).digest()


def _forget_oldest(folder: Path) -> None:
    """Delete the entries used least recently, beyond what a folder may hold."""
    entries = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process deletes, too
            state = path.lstat()
            entries.append((state.st_mtime_ns, state.st_size, path))
    held_bytes = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        held_bytes += size
        if number and (number >= MOST_ENTRIES or held_bytes > MOST_BYTES):
            remove_quietly(path)
