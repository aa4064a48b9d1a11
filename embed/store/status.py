"""What a store holds, and how far a run that adds to it is: ``store info``.

A run leaves two notes beside the vectors: how many sequences it has to encode, and how fast it was.
They only inform: one that cannot be written or read, or makes no sense, counts as absent.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from abag import AbagError
from abag.core.files import host_name, is_process_alive, write_json
from abag.core.messages import counted, size_text
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.shard import Shard
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import Store
from abag.embed.store.store_files import read_json

RUN_FILE = "run.json"
SPEED_FILE = "speed.json"
LARGEST = 1e15
"""Numbers from here on are no counts, times or process ids."""
SILENT_SECONDS = 600.0
"""Time without a commit after which a run on another machine may have ended."""
_OWN_ATTRS = frozenset(("kind", "encoder", "fingerprint"))


# --- notes of a run ------------------------------------------------------------------------------


def note_run(folder: Path, to_encode: int) -> None:
    """Note that this process starts to encode sequences into an encoder's folder."""
    process = {"started": round(time.time(), 3), "host": host_name(), "pid": os.getpid()}
    _write(folder / RUN_FILE, {"to_encode": to_encode, **process})


def note_speed(folder: Path, residues: int, seconds: float, device: str) -> None:
    """Note how fast the latest run encoded."""
    speed = {"residues": residues, "seconds": round(seconds, 3), "device": device}
    _write(folder / SPEED_FILE, speed)


def residues_per_s(folder: Path) -> float | None:
    """Return the speed of the latest run that encoded, if there was one."""
    speed = _read(folder / SPEED_FILE, "residues", "seconds")
    return speed["residues"] / speed["seconds"] if speed else None


def _read(path: Path, *numbers: str) -> dict[str, Any]:
    """Read a note; empty if one of its numbers is not positive."""
    with suppress(OSError, AbagError):
        note = read_json(path)
        if isinstance(note, dict) and all(
            isinstance(note.get(name), int | float) and 0 < note[name] < LARGEST for name in numbers
        ):
            return note
    return {}


def _write(path: Path, value: object) -> None:
    with suppress(OSError):
        write_json(path, value)


# --- content and progress ------------------------------------------------------------------------


def info(store: Store) -> dict[str, Any]:
    """Return what ``abag store info --json`` prints: the content of a store.

    `waiting` counts sequences in the local spools for the store. For each encoder, `poolings` are
    their widths, and `values` and `attrs` count rows per number format and value of an attribute.
    """
    encoders = [_encoder_info(folder) for folder in store.folders()]
    return {
        "path": str(store.path),
        "rows": sum(encoder["rows"] for encoder in encoders),
        "bytes": sum(encoder["bytes"] for encoder in encoders),
        "encoders": encoders,
        "waiting": spooled_rows(store.path),
        "damaged": [what for _, what in store.damaged],
    }


def _encoder_info(folder: EncoderFolder) -> dict[str, Any]:
    shards, now = folder.shards(), time.time()
    commits = [(shard.path.stat().st_mtime, shard.rows) for shard in shards]
    names = sorted({name for shard in shards for name in shard.attrs} - _OWN_ATTRS)
    return {
        "folder": folder.path.name,
        "kind": folder.kind,
        "encoder": folder.name,
        "fingerprint": folder.fingerprint,
        "rows": sum(shard.rows for shard in shards),
        "unique": folder.count_unique(),
        "shards": len(shards),
        "bytes": sum(array.nbytes for shard in shards for array in shard.arrays.values()),
        "poolings": shards[0].widths if shards else {},
        "values": _rows_by(shards, [shard.number_format for shard in shards]),
        "attrs": {n: _rows_by(shards, [shard.attrs.get(n) for shard in shards]) for n in names},
        "newest_seconds_ago": min((round(now - at, 1) for at, _ in commits), default=None),
        "progress": _progress(folder.path, commits, now),
        "damaged": [what for _, what in folder.damaged],
    }


def _rows_by(shards: Sequence[Shard], values: Sequence[object]) -> dict[str, int]:
    """Count rows per value; there is one value per shard."""
    rows: Counter[str] = Counter()
    for shard, value in zip(shards, values, strict=True):
        rows[str(value)] += shard.rows
    return dict(rows)


def _progress(
    folder: Path, commits: Sequence[tuple[float, int]], now: float
) -> dict[str, Any] | None:
    """Compare what the latest run has to do with the rows committed since it started.

    Its state is running, finished, stopped, or unknown: on another machine and silent since.
    """
    run = _read(folder / RUN_FILE, "to_encode", "started", "pid")
    if not run:
        return None
    started, to_encode = float(run["started"]), int(run["to_encode"])
    since = [(at, rows) for at, rows in commits if at >= started - 1]  # coarse clocks
    newest = max((at for at, _ in since), default=started)
    encoded = min(to_encode, sum(rows for _, rows in since))
    if encoded >= to_encode:
        state = "finished"
    elif run.get("host") == host_name():
        state = "running" if is_process_alive(int(run["pid"])) else "stopped"
    else:
        state = "running" if now - newest < SILENT_SECONDS else "unknown"
    return {
        "to_encode": to_encode,
        "encoded": encoded,
        "state": state,
        "process": f"{run.get('host')}:{run['pid']}",
        "sequences_per_s": round(encoded / (newest - started), 2) if newest > started else None,
    }


# --- text ----------------------------------------------------------------------------------------


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
    for what in store["damaged"]:
        yield f"damaged: {what}"


def _describe_encoder(encoder: Mapping[str, Any]) -> Iterator[str]:
    repeated = encoder["rows"] - encoder["unique"]
    yield (
        f"{encoder['kind']} · {encoder['encoder']} ({encoder['fingerprint'][:8]}): "
        f"{counted(encoder['unique'], 'sequence')} in {counted(encoder['shards'], 'shard')}"
        + (f"; {repeated:,} stored twice" if repeated else "")
    )
    if encoder["newest_seconds_ago"] is not None:
        poolings = ", ".join(f"{name} {width}" for name, width in encoder["poolings"].items())
        attrs = (encoder["attrs"].get(name, {}) for name in ("precision", "device"))
        made = ", ".join([*encoder["values"], *(value for counts in attrs for value in counts)])
        ago = duration_text(encoder["newest_seconds_ago"])
        yield f"  {poolings} · {made} · last commit {ago} ago"
    run = encoder["progress"]
    if run and run["state"] != "finished":
        speed = f", {run['sequences_per_s']:,.1f} per second" if run["sequences_per_s"] else ""
        yield (
            f"  {run['state']} ({run['process']}): {run['encoded']:,} of {run['to_encode']:,} "
            f"sequences encoded ({run['encoded'] / run['to_encode']:.0%}){speed}"
        )
    for what in encoder["damaged"]:
        yield f"  damaged: {what}"


def duration_text(seconds: float) -> str:
    """Write a duration in the largest unit of which it has at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
