"""Put a file in its place whole or not at all, on a file system that may fail at any call.

Committed means renamed: a file is written under a partial name, synced, read back and checked,
renamed, and its folder synced. Whatever interrupts that leaves a partial, which nobody reads.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from abag.embed.store.shard import FilePart, check_file

STORE_FILE = "abag-store.json"
ENCODER_FILE = "encoder.json"
SPEED_FILE = "speed.json"
RUN_FILE = "run.json"
STORE_MARK = {"format": "abag-store", "version": 1}
STALE_SECONDS = 86_400
_UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
_PARTIAL = re.compile(r".*\.(?P<host>[A-Za-z0-9_-]+)\.(?P<pid>\d{1,9})\.partial")
_log = logging.getLogger("abag")


class Files:
    """Every effect on the file system that a commit has; tests put failing ones in its place."""

    def write(self, path: Path, parts: Iterable[FilePart]) -> None:
        """Write a new file and sync its bytes."""
        with path.open("wb") as file:
            for offset, data in parts:
                file.seek(offset)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Rename; the target is either its old or its new self at every instant."""
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        """Make a rename inside the folder outlast a power cut, where the file system can."""
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _UNSYNCABLE:  # FUSE and CIFS know no folder sync
                raise
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Delete a file that may be gone already."""
        path.unlink(missing_ok=True)


def partial_name(path: Path) -> Path:
    """Return the name under which a file is written before it is renamed to `path`."""
    return path.with_name(f"{path.stem}.{host_name()}.{os.getpid()}.partial")


def host_name() -> str:
    """Return this machine's name, as files' names bear it."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()) or "host"


def commit(path: Path, parts: Iterable[FilePart], files: Files, *, shard: bool = True) -> None:
    """Write a file so that it is whole under its name or not there at all.

    Raises
    ------
    OSError, DamagedShard
        When the file system refused, or gave back other bytes than it took. Calling again with
        the same bytes is safe, even if the rename had already happened.
    """
    partial = partial_name(path)
    try:
        files.write(partial, parts)
        if shard:
            check_file(partial)
        files.replace(partial, path)
    except BaseException:
        remove_quietly(partial, files)
        raise
    files.sync_folder(path.parent)


def commit_json(path: Path, value: object, files: Files) -> None:
    """Write a JSON file whole or not at all."""
    commit(path, [(0, json.dumps(value, indent=2).encode() + b"\n")], files, shard=False)


def copy_pieces(path: Path) -> Iterator[FilePart]:
    """Yield a file's bytes, each stretch with its offset."""
    with path.open("rb") as file:
        while data := file.read(8 << 20):
            yield file.tell() - len(data), data


def sweep_partials(folder: Path, files: Files) -> None:
    """Remove the partial files of dead processes of this host, and any that is a day old."""
    try:
        for path in folder.glob("*.partial"):
            if _is_stale(path):
                files.remove(path)
    except OSError as error:
        _log.info("%s: partial files stay: %s", folder, error)


def partial_owner(path: Path) -> tuple[str, int] | None:
    """Return host and process of a partial file, as its name says."""
    match = _PARTIAL.fullmatch(path.name)
    return (match["host"], int(match["pid"])) if match else None


def _is_stale(path: Path) -> bool:
    if time.time() - path.lstat().st_mtime > STALE_SECONDS:
        return True
    owner = partial_owner(path)
    return owner is not None and owner[0] == host_name() and not is_alive(owner[1])


def is_alive(pid: int) -> bool:
    """Say whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def remove_quietly(path: Path, files: Files) -> None:
    """Remove a file that does no harm if it stays."""
    try:
        files.remove(path)
    except OSError as error:
        _log.info("%s: stays: %s", path, error)


def create_store(root: Path, files: Files) -> None:
    """Make a folder a store."""
    root.mkdir(parents=True, exist_ok=True)
    commit_json(root / STORE_FILE, STORE_MARK, files)
    files.sync_folder(root.resolve().parent)


def create_encoder_folder(path: Path, info: Mapping[str, object], files: Files) -> None:
    """Make a folder that holds the vectors of one encoder."""
    path.mkdir(exist_ok=True)
    commit_json(path / ENCODER_FILE, info, files)
    files.sync_folder(path.parent)
