"""Spools: local folders of finished shards that their store does not accept at the moment.

A writer has a spool of its own in the cache folder, and holds a lock on it while it lives. The next
``abag embed`` into that store finds the spools of dead writers, and moves their shards into the
store.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from abag.core.cache import cache_dir
from abag.core.files import Files, FolderBusy, make_folder, only_writer, remove_quietly, write_bytes
from abag.core.messages import say
from abag.embed.store.filesystem import StoreUnreachable, access
from abag.embed.store.shard import shard_name
from abag.embed.store.store_files import ENCODER_FILE, create_encoder_folder


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
        self._shards: deque[Path] = deque()
        self._lock = ExitStack()

    @property
    def rows(self) -> int:
        """Sequences in the spool."""
        return sum(map(_rows, tuple(self._shards)))

    def keep(self, name: str, image: bytes, rows: int) -> None:
        """Keep a shard of some rows on the local disk."""
        if self.path is None:
            spool = _spools_of(self._folder.parent) / f"{self._folder.name}.{secrets.token_hex(8)}"
            self._lock.enter_context(only_writer(spool))
            self.path = spool
            create_encoder_folder(spool, self._info, Files())
        shard = self.path / f"{rows}-{name}"
        write_bytes(shard, image)
        self._shards.append(shard)

    def publish(self, files: Files) -> Iterator[int]:
        """Move the shards into the store in the order in which they were kept; yield their rows."""
        while self._shards:
            rows = _publish_shard(self._shards[0], self._folder, files)
            self._shards.popleft()
            yield rows

    def close(self) -> None:
        """Remove the spool, or leave its shards to the next run into the store."""
        if self.path is not None and not self._shards:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def list_spools(store: Path) -> list[Path]:
    """List the spools for a store on this machine, whether or not their writers live."""
    return sorted(file.parent for file in _spools_of(store).glob(f"*/{ENCODER_FILE}"))


def spooled_rows(store: Path) -> int:
    """Count the sequences in the spools for a store on this machine."""
    return sum(_rows(shard) for spool in list_spools(store) for shard in spool.glob("*.h5"))


def publish_spools(store: Path, files: Files | None = None) -> int:
    """Move the shards of dead writers into their store; return how many sequences were moved.

    Raises
    ------
    StoreUnreachable
        If the store cannot be written to; the shards stay in their spool.
    """
    published = 0
    for spool in list_spools(store):
        # its writer lives, or another process publishes it or has just done so
        with suppress(FolderBusy, FileNotFoundError, FileExistsError), only_writer(spool):
            published += _publish(spool, store, files or Files())
    return published


def _publish(spool: Path, store: Path, files: Files) -> int:
    folder, rows = store / spool.name.rpartition(".")[0], 0
    try:
        for shard in sorted(spool.glob("*.h5")):
            access(folder, partial(_create_if_new, folder, spool, files))
            rows += access(folder, partial(_publish_shard, shard, folder, files))
    except StoreUnreachable as error:
        msg = (
            f"{store}: cannot be written to ({error.__cause__}); expected a writable store. The "
            f"uncommitted shards stay in {spool}; run the same command again when the store is "
            "available."
        )
        raise StoreUnreachable(msg) from error
    shutil.rmtree(spool, ignore_errors=True)
    if rows:
        say(f"{store}: added {rows} sequences of an earlier run from {spool}.")
    return rows


def _create_if_new(folder: Path, spool: Path, files: Files) -> None:
    if not (folder / ENCODER_FILE).exists():
        make_folder(folder, files)
        write_bytes(folder / ENCODER_FILE, (spool / ENCODER_FILE).read_bytes(), files=files)


def _publish_shard(shard: Path, folder: Path, files: Files) -> int:
    """Move a shard into an encoder's folder and return its rows; leave a damaged one out."""
    name, image = shard.name.partition("-")[2], shard.read_bytes()
    if shard_name(image) != name:
        say(f"{shard}: is damaged. It is left out; its sequences will be encoded again.")
        return 0
    write_bytes(folder / name, image, files=files)
    remove_quietly(shard)
    return _rows(shard)


def _rows(shard: Path) -> int:
    """Return the number of rows, with which the name of a spooled shard begins."""
    return int(shard.name.partition("-")[0])


def _spools_of(store: Path) -> Path:
    digest = hashlib.blake2b(os.fsencode(store.resolve()), digest_size=8).hexdigest()
    return cache_dir() / "spool" / digest
