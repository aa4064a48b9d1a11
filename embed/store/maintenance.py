"""Maintain stores: check every byte, and merge several into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from abag.core.arrays import KEY_BYTES, distinct_keys
from abag.core.files import Files, write_bytes
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.shard import DamagedShard, check_digest
from abag.embed.store.store import Store, StoreMismatch, open_store
from abag.embed.store.store_files import write_adapter_files


class MergeSummary(TypedDict):
    """The keys of ``abag store merge --json``."""

    out: str
    copied: int
    """Shards."""
    present: int
    """Shards that were already in the result."""
    rows: int
    duplicates: int
    """Rows with a key that an earlier shard holds."""
    damaged: list[str]
    """Shards that were left out."""


def verify(store: Store) -> list[tuple[Path, str]]:
    """Check every byte of a store.

    Returns
    -------
    list of (Path, str)
        Each damaged file or folder, and what is wrong with it.

    Raises
    ------
    StoreUnreachable
    """
    findings: list[tuple[Path, str]] = []
    for folder in store.folders():
        folder.check()
        findings += folder.damaged
    return findings + store.damaged


def merge(
    sources: Sequence[Path | str], out: Path | str, *, files: Files | None = None
) -> MergeSummary:
    """Copy the shards of several stores into one, which is created if it is new.

    Merging again copies only what is new. The sources are not changed.

    Raises
    ------
    StoreMismatch
        If `out` is one of the sources, or encoder folders of one name differ.
    NotAStore, StoreUnreachable, OSError
    """
    files = files or Files()
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: is both a source and the result; expected another path. Give a new one."
        raise StoreMismatch(msg)
    target = open_store(out, create=True, files=files)
    counts: Counter[str] = Counter()
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            into = target.create_folder(folder.kind, folder.info)
            refuse_other_poolings(folder, into)
            write_adapter_files(into.path, folder.adapter_files(), files)
            folder.check()
            for shard in folder.shards():
                path = into.path / shard.path.name
                if is_whole(path):
                    counts["present"] += 1
                else:
                    write_bytes(path, shard.path.read_bytes(), files=files)
                    counts["copied"] += 1
            damaged += [what for _, what in folder.damaged]
        damaged += [what for _, what in store.damaged]
    return MergeSummary(
        out=str(out),
        copied=counts["copied"],
        present=counts["present"],
        rows=sum(folder.rows for folder in target.folders()),
        duplicates=sum(folder.rows - count_unique(folder) for folder in target.folders()),
        damaged=damaged,
    )


def count_unique(folder: EncoderFolder) -> int:
    """Count the sequences in a folder; one that is stored twice counts once."""
    keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *folder.keys()])
    return len(distinct_keys(keys)[0])


def refuse_other_poolings(folder: EncoderFolder, into: EncoderFolder) -> None:
    """All shards of a folder hold the same poolings; others would count as damaged."""
    ours, theirs = folder.info.get("layers", []), into.info.get("layers", [])
    if ours != theirs:
        msg = (
            f"{folder.path}: has poolings of layers {ours or 'none'} beside the last, {into.path} "
            f"of {theirs or 'none'}; expected the same. Merge into another store."
        )
        raise StoreMismatch(msg)


def is_whole(path: Path) -> bool:
    """Whether a shard is there and its bytes are those that its name says."""
    try:
        check_digest(path)
    except (DamagedShard, FileNotFoundError):
        return False
    return True
