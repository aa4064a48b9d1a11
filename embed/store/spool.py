"""Waiting rooms: stores on the local disk, for shards that their own store does not take yet.

A room's name says which store it waits for. Its writer holds a lock on it while it lives, so the
next `abag embed` into that store knows which rooms are left over, and brings in what they hold.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from abag.core.files import Files, read_chunks
from abag.embed.store.filesystem import StoreUnreachable, retry_if_remote
from abag.embed.store.shard import DamagedShard, check_file, commit_shard, read_table_of_contents
from abag.embed.store.store_files import (
    ENCODER_FILE,
    STORE_FILE,
    create_encoder_folder,
    create_store,
)

_LOCK = ".lock"
_log = logging.getLogger("abag")


class Spool:
    """One writer's waiting room, made on first use."""

    def __init__(self, folder: Path, info: Mapping[str, object]) -> None:
        self.path: Path | None = None
        self._folder, self._info = folder, info
        self._lock = -1

    def folder(self) -> Path:
        """Return the encoder's folder in the room."""
        if self.path is None:
            room = Path(tempfile.mkdtemp(prefix=_prefix(self._folder.parent)))
            self._lock = _locked(room)
            self.path = room
        path = self.path / self._folder.name
        if not path.exists():
            create_encoder_folder(self.path / self._folder.name, self._info, Files())
            create_store(self.path, Files())  # last: a room without its mark is nobody's yet
        return path

    def leave(self, *, empty: bool) -> None:
        """Remove the room, or leave what waits in it to whoever opens the store next."""
        if self.path is not None:
            if empty:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def list_spools(store: Path) -> list[Path]:
    """List the rooms of this user that wait for a store, whether their writers live or not."""
    rooms = Path(tempfile.gettempdir()).glob(_prefix(store) + "*")
    # a room of somebody else, or a link, is no room: its vectors are anybody's
    return sorted(room for room in rooms if _is_own_folder(room) and (room / STORE_FILE).exists())


def spooled_rows(store: Path) -> int:
    """Count the sequences that wait for a store on this machine."""
    paths = (path for room in list_spools(store) for path in room.glob("*/*.h5"))
    return sum(map(_rows, paths))


def _rows(path: Path) -> int:
    try:
        return read_table_of_contents(path).blocks[0].rows
    except (OSError, DamagedShard):  # taken in since it was listed, or not to be taken in at all
        return 0


def publish_spools(store: Path, files: Files | None = None) -> int:
    """Bring into a store what earlier writers could not, and remove their rooms.

    Returns
    -------
    int
        Sequences brought in.

    Raises
    ------
    StoreUnreachable
        When the store does not take them either; they stay where they are.
    """
    brought = 0
    for room in list_spools(store):
        try:
            lock = _locked(room)
        except OSError:  # its writer lives, or another process was quicker
            continue
        try:
            brought += _bring_in(room, store, files or Files())
        except (OSError, DamagedShard) as error:
            msg = (
                f"{store}: cannot be written to ({error}); a writable store was expected. What "
                f"waits in {room} stays there; run the same command again when the store is back."
            )
            raise StoreUnreachable(msg) from error
        finally:
            os.close(lock)
    return brought


def _bring_in(room: Path, store: Path, files: Files) -> int:
    rows = 0
    for folder in sorted(path.parent for path in room.glob(f"*/{ENCODER_FILE}")):
        target = store / folder.name
        info = json.loads((folder / ENCODER_FILE).read_text(encoding="utf-8"))
        retry_if_remote(partial(_create_if_new, target, info, files), store)
        for shard in sorted(folder.glob("*.h5")):
            rows += _bring_shard(shard, target / shard.name, files)
    shutil.rmtree(room, ignore_errors=True)
    _log.warning("%s: took in %d sequences that waited in %s.", store, rows, room)
    return rows


def _create_if_new(target: Path, info: Mapping[str, object], files: Files) -> None:
    if not target.parent.exists():
        create_store(target.parent, files)
    if not (target / ENCODER_FILE).exists():
        create_encoder_folder(target, info, files)


def _bring_shard(shard: Path, target: Path, files: Files) -> int:
    """Copy a shard into the store; one that is damaged is left out, and encoded again."""
    try:
        check_file(shard)
    except DamagedShard as error:
        _log.warning("%s It is left out.", error)
        return 0
    retry_if_remote(lambda: commit_shard(target, read_chunks(shard), files), target)
    return read_table_of_contents(shard).blocks[0].rows


def _prefix(store: Path) -> str:
    name = hashlib.blake2b(os.fsencode(store.resolve()), digest_size=6).hexdigest()
    return f"abag-waiting-{name}-"


def _is_own_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()


def _locked(room: Path) -> int:
    """Lock a room; the lock goes with the process, however that ends.

    Raises
    ------
    BlockingIOError
        When its writer lives.
    """
    lock = os.open(room / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
