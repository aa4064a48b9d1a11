"""Maintain stores: check every byte, and merge several into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abag.core.files import write_bytes
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.shard import DamagedShard, check_digest
from abag.embed.store.store import Store, StoreMismatch, open_store
from abag.embed.store.store_files import write_adapter_files


def verify(store: Store) -> list[tuple[Path, str]]:
    """Check every byte of a store; list damaged files and folders, and what is wrong with each."""
    findings: list[tuple[Path, str]] = []
    for folder in store.folders():
        folder.check()
        findings += folder.damaged
    return findings + store.damaged


def merge(sources: Sequence[Path | str], out: Path | str) -> dict[str, Any]:
    """Copy the shards of several stores into one, which is created if it is new.

    Merging again copies only what is new. The sources are not changed. Returns what ``abag store
    merge --json`` prints: shards `copied` and `present` before, `rows` of the result, `duplicates`
    among them, and `damaged` shards that were left out.
    """
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: is both a source and the result; expected another path. Give a new one."
        raise StoreMismatch(msg)
    target = open_store(out, create=True)
    counts: Counter[str] = Counter()
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            into = target.create_folder(folder.kind, folder.info)
            refuse_other_poolings(folder, into)
            write_adapter_files(into.path, folder.adapter_files())
            folder.check()
            for shard in folder.shards():
                path = into.path / shard.path.name
                if _is_whole(path):
                    counts["present"] += 1
                else:
                    write_bytes(path, shard.path.read_bytes())
                    counts["copied"] += 1
            damaged += [what for _, what in folder.damaged]
        damaged += [what for _, what in store.damaged]
    return {
        "out": str(out),
        "copied": counts["copied"],
        "present": counts["present"],
        "rows": sum(folder.rows for folder in target.folders()),
        "duplicates": sum(folder.rows - folder.count_unique() for folder in target.folders()),
        "damaged": damaged,
    }


def refuse_other_poolings(folder: EncoderFolder, into: EncoderFolder) -> None:
    """Refuse shards of other poolings, which would count as damaged beside those of `into`."""
    for key in ("layers", "poolings"):
        ours, theirs = folder.info.get(key, []), into.info.get(key, [])
        if ours != theirs:
            msg = (
                f"{folder.path}: has more {key} ({ours or 'none'}), {into.path} has "
                f"{theirs or 'none'}; expected the same. Merge into another store."
            )
            raise StoreMismatch(msg)


def _is_whole(path: Path) -> bool:
    """Whether a shard is there and its bytes are those that its name says."""
    try:
        check_digest(path)
    except (DamagedShard, FileNotFoundError):
        return False
    return True
