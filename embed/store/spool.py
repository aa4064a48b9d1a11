"""Spools: local stores for shards that their own store does not accept at the moment.

The name of a spool says which store it belongs to. Its writer holds a lock on it while it lives.
The next ``abag embed`` into that store finds the spools of dead writers, and moves their shards
into the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from abag.core.files import Files, read_chunks
from abag.core.messages import say
from abag.embed.shards.filesystem import StoreUnreachable, retry_if_remote
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import check_file, commit_shard, read_table_of_contents
from abag.embed.store.store_files import (
    ENCODER_FILE,
    STORE_FILE,
    create_encoder_folder,
    create_store,
    read_encoder_info,
)

_LOCK = ".lock"


class Spool:
    """One writer's spool, created on first use; `path` is None until then.

    Parameters
    ----------
    folder : Path
        The encoder's folder in the store that the shards belong to.
    info : mapping
        Content of its encoder.json.
    """

    def __init__(self, folder: Path, info: Mapping[str, object]) -> None:
        self.path: Path | None = None
        self._folder, self._info = folder, info
        self._lock = -1

    def folder(self) -> Path:
        """Return the encoder's folder in the spool; create it if it is new."""
        if self.path is None:
            spool = Path(tempfile.mkdtemp(prefix=_prefix(self._folder.parent)))
            self._lock = _lock(spool)
            self.path = spool
        path = self.path / self._folder.name
        if not path.exists():
            create_encoder_folder(path, self._info, Files())
            create_store(self.path, Files())  # last: without its mark, nobody lists the spool
        return path

    def close(self, *, empty: bool) -> None:
        """Remove the spool, or leave its shards to the next run into the store."""
        if self.path is not None:
            if empty:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def list_spools(store: Path) -> list[Path]:
    """List this user's spools for a store, whether or not their writers live."""
    paths = Path(tempfile.gettempdir()).glob(_prefix(store) + "*")
    # links and folders of other users are ignored: anybody may have written their vectors
    return sorted(path for path in paths if _is_own_folder(path) and (path / STORE_FILE).exists())


def spooled_rows(store: Path) -> int:
    """Count the sequences in the spools for a store on this machine."""
    shards = (shard for spool in list_spools(store) for shard in spool.glob("*/*.h5"))
    return sum(map(_rows, shards))


def publish_spools(store: Path, files: Files | None = None) -> int:
    """Move the shards of dead writers into their store; return how many sequences were moved.

    Raises
    ------
    StoreUnreachable
        If the store cannot be written to; the shards stay in their spool.
    """
    published = 0
    for spool in list_spools(store):
        try:
            lock = _lock(spool)
        except OSError:  # its writer lives, or another process was quicker
            continue
        try:
            published += _publish(spool, store, files or Files())
        except (OSError, DamagedShard) as error:
            msg = (
                f"{store}: cannot be written to ({error}); expected a writable store. The "
                f"uncommitted shards stay in {spool}; run the same command again when the store "
                "is available."
            )
            raise StoreUnreachable(msg) from error
        finally:
            os.close(lock)
    return published


def _publish(spool: Path, store: Path, files: Files) -> int:
    rows, whole = 0, True
    for folder in sorted(path.parent for path in spool.glob(f"*/{ENCODER_FILE}")):
        try:
            info = read_encoder_info(folder)
        except DamagedShard as error:
            say(f"{error} Its shards are left in {spool}; their sequences will be encoded again.")
            whole = False
            continue
        target = store / folder.name
        retry_if_remote(partial(_create_if_new, target, info, files), store)
        for shard in sorted(folder.glob("*.h5")):
            rows += _publish_shard(shard, target / shard.name, files)
    if whole:
        shutil.rmtree(spool, ignore_errors=True)
    say(f"{store}: added {rows} sequences of an earlier run from {spool}.")
    return rows


def _create_if_new(target: Path, info: Mapping[str, object], files: Files) -> None:
    if not target.parent.exists():
        create_store(target.parent, files)
    if not (target / ENCODER_FILE).exists():
        create_encoder_folder(target, info, files)


def _publish_shard(shard: Path, target: Path, files: Files) -> int:
    """Copy a shard into the store and return its rows; leave a damaged one out."""
    try:
        check_file(shard)
    except DamagedShard as error:
        say(f"{error} It is left out; its sequences will be encoded again.")
        return 0
    retry_if_remote(lambda: commit_shard(target, read_chunks(shard), files), target)
    return _rows(shard)


def _rows(shard: Path) -> int:
    try:
        return read_table_of_contents(shard).blocks[0].rows
    except (OSError, DamagedShard):  # moved into the store since it was listed, or damaged
        return 0


def _prefix(store: Path) -> str:
    name = hashlib.blake2b(os.fsencode(store.resolve()), digest_size=6).hexdigest()
    return f"abag-waiting-{name}-"


def _is_own_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()


def _lock(spool: Path) -> int:
    """Lock a spool until the descriptor is closed; BlockingIOError if its writer lives."""
    lock = os.open(spool / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
