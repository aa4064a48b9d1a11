"""What a store holds, and how a run that adds to it is doing; read only, from any process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from abag.core.files import host_name, is_process_alive, partial_owner
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.maintenance import first_places
from abag.embed.store.shard import VectorBlock
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import Store

RECENT_SECONDS = 600.0
EPOCHS = 50  # of the notebooks that encoded both sequences of every pair in every epoch
_OWN_ATTRS = frozenset(("kind", "encoder", "fingerprint", "rows"))


class StoreProgress(TypedDict):
    """How far the latest run into an encoder's folder is."""

    table: str
    rows: int
    sequences: int
    """Unique ones in the table."""
    to_encode: int
    """Those that were missing when the run began."""
    encoded: int
    """Those that are committed since."""
    state: str
    """running, finished, stopped, or unknown: begun on another machine, and silent for a while."""
    process: str
    sequences_per_s: float | None
    residues_per_s: float | None
    """Both over the ten minutes before the last commit."""
    seconds_left: float | None
    factor: float
    """How many times as many residues the table has if every pair is encoded in 50 epochs."""
    seconds_spared: float | None


def info(store: Store) -> dict[str, Any]:
    """Say what a store holds.

    Returns
    -------
    dict
        JSON values: ``path``, ``rows``, ``bytes``, ``encoders`` (one entry per folder, with its
        ``progress``, a `StoreProgress` or None), ``waiting`` (sequences in the local spool that the
        store does not hold yet), ``damaged``.
    """
    encoders = [_describe(folder) for folder in store.folders()]
    return {
        "path": str(store.path),
        "rows": sum(e["rows"] for e in encoders),
        "bytes": sum(e["bytes"] for e in encoders),
        "encoders": encoders,
        "waiting": spooled_rows(store.path),
        "damaged": [f"{what}" for _, what in store.damaged],
    }


def _describe(folder: EncoderFolder) -> dict[str, Any]:
    blocks = folder.blocks()
    now = time.time()
    states = {path: path.stat() for path in {block.path for block in blocks}}
    ages = [now - state.st_mtime for state in states.values()]
    recent = [b.rows for b in blocks if now - states[b.path].st_mtime < RECENT_SECONDS]
    return {
        "folder": folder.path.name,
        "kind": folder.kind,
        "encoder": folder.name,
        "fingerprint": folder.fingerprint,
        "rows": folder.rows,
        "unique": len(first_places(folder.keys())),
        "shards": len(blocks),
        "bytes": sum(a.nbytes for block in blocks for a in block.arrays.values()),
        "poolings": blocks[0].widths if blocks else {},
        "values": _rows_by(blocks, lambda block: _values(block)),
        "attrs": {
            name: _rows_by(blocks, lambda block, name=name: block.attrs.get(name))  # type: ignore[misc]
            for name in sorted({name for b in blocks for name in b.attrs} - _OWN_ATTRS)
        },
        "newest_seconds_ago": round(min(ages), 1) if ages else None,
        "oldest_seconds_ago": round(max(ages), 1) if ages else None,
        "rows_in_last_10_minutes": sum(recent),
        "writing": _writers(folder.path),
        "progress": _progress(folder, blocks, {p: s.st_mtime for p, s in states.items()}, now),
        "damaged": [what for _, what in folder.damaged],
    }


def _rows_by(
    blocks: Sequence[VectorBlock], value: Callable[[VectorBlock], object]
) -> dict[str, int]:
    """Count rows by what `value` says of their block."""
    rows: Counter[str] = Counter()
    for block in blocks:
        rows[str(value(block))] += block.rows
    return dict(rows)


def _values(block: VectorBlock) -> str:
    return np.dtype(block.arrays[next(iter(block.widths))].dtype).name


def _writers(folder: Path) -> list[str]:
    """Name the processes that are writing a shard at this moment, as host:pid."""
    if not folder.is_dir():
        return []
    owners = (partial_owner(path) for path in folder.glob("*.partial"))
    return sorted({f"{host}:{pid}" for host, pid in filter(None, owners)})


def _progress(
    folder: EncoderFolder, blocks: Sequence[VectorBlock], written: Mapping[Path, float], now: float
) -> StoreProgress | None:
    """Compare what the latest run set out to do with what was committed since."""
    begun = folder.noted_run()
    if begun is None:
        return None
    started = float(begun["started"])
    since = [b for b in blocks if written[b.path] >= started - 1]  # clocks of servers are coarse
    encoded = min(int(begun["to_encode"]), sum(block.rows for block in since))
    newest = max((written[b.path] for b in since), default=started)
    recent, seconds = _recent(since, written, float(begun.get("encoding_since", started)))
    speed = _residues(recent) / seconds if seconds > 0 else None
    state = _state(begun, encoded, now - newest)
    left = None
    if speed and state == "running":
        todo = int(begun["residues_to_encode"]) - _residues(since)
        left = round(max(0.0, todo / speed - (now - newest)), 1)
    old_way = EPOCHS * int(begun["residues_of_rows"])
    return StoreProgress(
        table=str(begun["table"]),
        rows=int(begun["rows"]),
        sequences=int(begun["sequences"]),
        to_encode=int(begun["to_encode"]),
        encoded=encoded,
        state=state,
        process=f"{begun['host']}:{begun['pid']}",
        sequences_per_s=round(sum(b.rows for b in recent) / seconds, 2) if speed else None,
        residues_per_s=round(speed, 1) if speed else None,
        seconds_left=left,
        factor=round(old_way / int(begun["residues"]), 1),
        seconds_spared=round((old_way - int(begun["residues"])) / speed, 1) if speed else None,
    )


def _recent(
    since: Sequence[VectorBlock], written: Mapping[Path, float], started: float
) -> tuple[list[VectorBlock], float]:
    """Return what was committed lately, and in how many seconds.

    The time goes from one commit to the last where there are two, else from when encoding began.
    """
    newest = max((written[b.path] for b in since), default=started)
    window = max(started, newest - RECENT_SECONDS)
    recent = sorted((b for b in since if written[b.path] >= window), key=lambda b: written[b.path])
    if len(recent) > 1:
        return recent[1:], newest - written[recent[0].path]
    return recent, newest - window


def _residues(blocks: Iterable[VectorBlock]) -> int:
    return sum(int(block.load("length").sum(dtype=np.int64)) for block in blocks)


def _state(begun: Mapping[str, Any], encoded: int, silent_seconds: float) -> str:
    if encoded >= int(begun["to_encode"]):
        return "finished"
    if begun["host"] == host_name():
        return "running" if is_process_alive(int(begun["pid"])) else "stopped"
    return "running" if silent_seconds < RECENT_SECONDS else "unknown"


# --- for a person --------------------------------------------------------------------------------


def describe(told: Mapping[str, Any]) -> Iterator[str]:
    """Lay :func:`info` out as a screen of text."""
    encoders = told["encoders"]
    yield f"{told['path']}: {told['rows']:,} vectors of {len(encoders)} encoders, " + _size(
        told["bytes"]
    )
    for encoder in encoders:
        yield from _describe_encoder(encoder)
    if told["waiting"]:
        yield f"{told['waiting']:,} sequences wait on this machine: run abag embed again"
    for what in told["damaged"]:
        yield f"damaged: {what}"


def _describe_encoder(told: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    again = told["rows"] - told["unique"]
    yield (
        f"{told['kind']} · {told['encoder']} ({told['fingerprint'][:8]}): {told['unique']:,} "
        f"sequences in {told['shards']:,} shards, {_size(told['bytes'])}"
        + (f"; {again:,} stored twice" if again else "")
    )
    if told["poolings"]:
        poolings = ", ".join(f"{name} {width}" for name, width in told["poolings"].items())
        made = [
            *told["values"],
            *told["attrs"].get("precision", ()),
            *told["attrs"].get("device", ()),
        ]
        yield f"  {poolings} · {', '.join(made)}"
    if told["newest_seconds_ago"] is not None:
        yield f"  last commit {_ago(told['newest_seconds_ago'])} ago" + (
            f", written by {', '.join(told['writing'])}" if told["writing"] else ""
        )
    if told["progress"]:
        yield from _describe_progress(told["progress"])
    for what in told["damaged"]:
        yield f"  damaged: {what}"


def _describe_progress(told: StoreProgress) -> Iterator[str]:
    share = told["encoded"] / told["to_encode"] if told["to_encode"] else 1.0
    yield (
        f"  {told['table']}: {told['encoded']:,} of {told['to_encode']:,} sequences encoded "
        f"({share:.0%}), {told['state']}"
        + (f" ({told['process']})" if told["state"] in ("running", "unknown") else "")
    )
    if told["residues_per_s"]:
        left = told["seconds_left"]
        yield (
            f"  {told['sequences_per_s']:,.1f} sequences/s, {told['residues_per_s']:,.0f} "
            "residues/s over its last minutes"
            + (f"; {_ago(left)} left" if left is not None else "")
        )
    spared = told["seconds_spared"]
    yield (
        f"  {told['factor']:,.0f} times less than encoding each of {told['rows']:,} rows in each "
        f"of {EPOCHS} epochs" + (f", which would take {_ago(spared)} more" if spared else "")
    )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _ago(seconds: float) -> str:
    """Say a time in its largest fitting unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
