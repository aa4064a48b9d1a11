"""Look after stores: describe them, check every byte, and merge several into one.

A source is never changed, and nothing is copied that does not match its digest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abag.core.errors import DamagedFile, StoreError
from abag.core.files import write_bytes
from abag.core.messages import counted, size_text
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.filesystem import attempts
from abag.embed.store.shard import Shard, check_digest
from abag.embed.store.store import Store, open_store
from abag.embed.store.store_files import write_adapter_files
from abag.embed.store.writer import spooled_rows

_OWN_ATTRS = frozenset(("kind", "encoder", "fingerprint"))


# --- store info ----------------------------------------------------------------------------------


def info(store: Store) -> dict[str, Any]:
    """Return what ``abag store info --json`` prints: the content of a store."""
    encoders = [_encoder_info(folder) for folder in store.folders()]
    rows = sum(encoder["rows"] for encoder in encoders)
    stored_bytes = sum(encoder["bytes"] for encoder in encoders)
    return {
        "path": str(store.path),
        "rows": rows,
        "bytes": stored_bytes,
        "encoders": encoders,
        "waiting": spooled_rows(store.path),
        "damaged": _reasons(store),
    }


def _reasons(damaged: Store | EncoderFolder) -> list[str]:
    """List why folders of a store, or shards of a folder, are skipped."""
    return [reason for _, reason in damaged.damaged]


def _encoder_info(folder: EncoderFolder) -> dict[str, Any]:
    shards = folder.shards()
    newest = max((shard.path.stat().st_mtime for shard in shards), default=None)
    rows = 0
    stored_bytes = 0
    names: set[str] = set()
    for shard in shards:
        rows += shard.rows
        stored_bytes += sum(array.nbytes for array in shard.arrays.values())
        names.update(shard.attrs)
    attrs: dict[str, dict[str, int]] = {}
    for name in sorted(names - _OWN_ATTRS):
        attrs[name] = _rows_by(shards, [shard.attrs.get(name) for shard in shards])
    formats = _rows_by(shards, [shard.number_format for shard in shards])
    return {
        "folder": folder.path.name,
        "kind": folder.kind,
        "encoder": folder.name,
        "fingerprint": folder.fingerprint,
        "rows": rows,
        "unique": folder.count_unique(),
        "shards": len(shards),
        "bytes": stored_bytes,
        "poolings": shards[0].widths if shards else {},
        "values": formats,
        "attrs": attrs,
        "newest_seconds_ago": None if newest is None else round(time.time() - newest, 1),
        "damaged": _reasons(folder),
    }


def _rows_by(shards: Sequence[Shard], values: Sequence[object]) -> dict[str, int]:
    """Count the rows of the shards that have each value."""
    rows: Counter[str] = Counter()
    for shard, value in zip(shards, values, strict=True):
        rows[str(value)] += shard.rows
    return dict(rows)


def describe(store: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that ``abag store info`` prints: a short block per encoder."""
    encoders = counted(len(store["encoders"]), "encoder")
    size = size_text(store["bytes"])
    yield f"{store['path']}: {store['rows']:,} vectors of {encoders}, {size}"
    for encoder in store["encoders"]:
        yield from _describe_encoder(encoder)
    if store["waiting"]:
        yield (
            f"{counted(store['waiting'], 'sequence')} in a local spool on this machine: "
            "run abag embed again to add them"
        )
    for reason in store["damaged"]:
        yield f"damaged: {reason}"


def _describe_encoder(encoder: Mapping[str, Any]) -> Iterator[str]:
    line = (
        f"{encoder['kind']} · {encoder['encoder']} ({encoder['fingerprint'][:8]}): "
        f"{counted(encoder['unique'], 'sequence')} in {counted(encoder['shards'], 'shard')}"
    )
    repeated = encoder["rows"] - encoder["unique"]
    yield f"{line}; {repeated:,} stored twice" if repeated else line
    if encoder["newest_seconds_ago"] is not None:
        poolings = ", ".join(f"{name} {width}" for name, width in encoder["poolings"].items())
        made = [*encoder["values"]]
        for name in ("precision", "device"):
            made += encoder["attrs"].get(name, {})
        ago = duration_text(encoder["newest_seconds_ago"])
        yield f"  {poolings} · {', '.join(made)} · last commit {ago} ago"
    for reason in encoder["damaged"]:
        yield f"  damaged: {reason}"


def duration_text(seconds: float) -> str:
    """Write a duration in the largest unit of which it has at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"


# --- verify and merge ----------------------------------------------------------------------------


def verify(store: Store) -> list[tuple[Path, str]]:
    """Check every byte of a store; list damaged files and folders, and what is wrong with each."""
    findings: list[tuple[Path, str]] = []
    for folder in store.folders():
        folder.check()
        findings += folder.damaged
    store.folders()  # once more: raises if the store has vanished meanwhile
    return findings + store.damaged


def merge(sources: Sequence[Path | str], out: Path | str) -> dict[str, Any]:
    """Copy shards of several stores into one, new or not; ``abag store merge --json``."""
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: is both a source and the result; expected another path. Give a new one."
        raise StoreError(msg)
    target = open_store(out, create=True)
    counts: Counter[str] = Counter()
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            counts += copy_folder(folder, target)
            damaged += _reasons(folder)
        store.folders()  # once more: raises if the source has vanished meanwhile
        damaged += _reasons(store)
    rows = 0
    duplicates = 0
    for folder in target.folders():
        rows += folder.rows
        duplicates += folder.rows - folder.count_unique()
    return {
        "out": str(out),
        "copied": counts["copied"],
        "present": counts["present"],
        "rows": rows,
        "duplicates": duplicates,
        "damaged": damaged,
    }


def copy_folder(folder: EncoderFolder, target: Store) -> Counter[str]:
    """Copy what a store lacks of a folder, every byte checked; count shards copied and present."""
    into = target.create_folder(folder.kind, folder.info)
    refuse_mismatch(folder, into)
    counts: Counter[str] = Counter()
    files = folder.adapter_files()
    for attempt in attempts(into.path):
        with attempt:
            write_adapter_files(into.path, files)
    folder.check()  # `shards` leaves out what it finds damaged
    for shard in folder.shards():
        path = into.path / shard.path.name
        is_present = _is_whole(path)
        counts["present" if is_present else "copied"] += 1
        if is_present:
            continue
        for attempt in attempts(folder.path):
            with attempt:
                image = shard.path.read_bytes()
        for attempt in attempts(into.path):
            with attempt:
                write_bytes(path, image)
    return counts


def refuse_mismatch(folder: EncoderFolder, into: EncoderFolder) -> None:
    """Refuse shards that would count as damaged beside those of `into`."""
    for key in ("fingerprint", "layers", "poolings", "loglik"):
        ours = folder.info.get(key, [])
        theirs = into.info.get(key, [])
        if ours != theirs:
            msg = (
                f"{folder.path}: has the {key} {ours or 'none'}, {into.path} has "
                f"{theirs or 'none'}; expected the same. Use another store."
            )
            raise StoreError(msg)


def _is_whole(path: Path) -> bool:
    """Tell whether a shard is there and its bytes are those that its name says."""
    try:
        check_digest(path)
    except (DamagedFile, FileNotFoundError):
        return False
    return True
