"""Spools: local folders of finished shards that their store does not accept at the moment.

All writers of this machine into one folder of a store share a spool in the cache folder. Shards
are named by their content, so that it does no harm if several processes publish one at once, and
no lock is needed. A spool's folder and encoder.json stay; only shards are removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from abag.core.cache import cache_dir
from abag.core.files import make_folder, remove_quietly, sweep_partials, write_bytes, write_json
from abag.core.messages import say
from abag.embed.store.filesystem import StoreUnreachable, access
from abag.embed.store.shard import shard_name
from abag.embed.store.store_files import ENCODER_FILE, create_encoder_folder, read_encoder_info


def spool_of(folder: Path) -> Path:
    """Return the spool for an encoder's folder of a store; it may not exist."""
    store = os.fsencode(folder.parent.resolve())
    digest = hashlib.blake2b(store, digest_size=8).hexdigest()
    return cache_dir() / "spool" / digest / folder.name


def spooled_rows(store: Path) -> int:
    """Count the sequences in the spools for a store on this machine."""
    return sum(map(_rows, _spooled_shards(store)))


def spool_shard(
    folder: Path, info: Mapping[str, object], name: str, image: bytes, rows: int
) -> Path:
    """Keep a shard for an encoder's folder on the local disk; return where."""
    spool = spool_of(folder)
    make_folder(spool)
    sweep_partials(spool)
    if not (spool / ENCODER_FILE).exists():
        write_json(spool / ENCODER_FILE, info)
    shard = spool / f"{rows}-{name}"
    write_bytes(shard, image)
    return shard


def publish_spools(store: Path) -> int:
    """Move all spooled shards into their store; return how many sequences were moved.

    `StoreUnreachable` if the store cannot be written to; the shards stay in their spool.
    """
    rows = 0
    for shard in _spooled_shards(store):
        folder, spool = store / shard.parent.name, shard.parent
        try:
            rows += access(folder, partial(publish_shard, shard, folder))
        except StoreUnreachable as error:
            msg = (
                f"{store}: cannot be written to ({error.__cause__}); expected a writable store. "
                f"The uncommitted shards stay in {spool}; run the same command again when the "
                "store is available."
            )
            raise StoreUnreachable(msg) from error
    if rows:
        say(f"{store}: added {rows} sequences of an earlier run from a local spool.")
    return rows


def publish_shard(shard: Path, folder: Path) -> int:
    """Move a shard into an encoder's folder; return its rows, 0 if it is gone or damaged."""
    try:
        image = shard.read_bytes()
    except FileNotFoundError:  # another process was faster
        return 0
    name, rows = shard.name.partition("-")[2], _rows(shard)
    if shard_name(image) == name:
        if not (folder / ENCODER_FILE).exists():
            create_encoder_folder(folder, read_encoder_info(shard.parent))
        write_bytes(folder / name, image)
    else:
        say(f"{shard}: is damaged. It is removed; its sequences will be encoded again.")
        rows = 0
    remove_quietly(shard)  # after the commit: a kill in between publishes it again
    return rows


def _spooled_shards(store: Path) -> list[Path]:
    return sorted(spool_of(store / "any").parent.glob("*/*.h5"))


def _rows(shard: Path) -> int:
    """Return the number of rows, with which the name of a spooled shard begins."""
    return int(shard.name.partition("-")[0])
