"""What a store holds, and how far a run that adds to it is; reads only, from any process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from abag.core.arrays import KEY_BYTES, distinct_keys
from abag.core.files import host_name, is_process_alive, partial_owner
from abag.core.messages import size_text
from abag.embed.shards.shard import VectorBlock
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.run_notes import RunRecord
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
    """Unique sequences in the table."""
    to_encode: int
    """Sequences that were missing when the run began."""
    encoded: int
    """Sequences that were committed since."""
    state: str
    """running, finished, stopped, or unknown: started on another machine and silent since."""
    process: str
    """host:pid."""
    sequences_per_s: float | None
    """Over the ten minutes before the last commit."""
    residues_per_s: float | None
    """Over the ten minutes before the last commit."""
    seconds_left: float | None
    factor: float
    """Residues of encoding every pair in 50 epochs, relative to encoding each sequence once."""
    seconds_spared: float | None


class EncoderInfo(TypedDict):
    """What a store holds of one encoder."""

    folder: str
    kind: str
    encoder: str
    fingerprint: str
    rows: int
    unique: int
    shards: int
    bytes: int
    poolings: dict[str, int]
    """Vector width of each pooling."""
    values: dict[str, int]
    """Rows per number format."""
    attrs: dict[str, dict[str, int]]
    """Rows per value of each attribute."""
    newest_seconds_ago: float | None
    oldest_seconds_ago: float | None
    rows_in_last_10_minutes: int
    writing: list[str]
    """Processes that are writing a shard, as host:pid."""
    progress: StoreProgress | None
    damaged: list[str]


class StoreInfo(TypedDict):
    """The keys of ``abag store info --json``."""

    path: str
    rows: int
    bytes: int
    encoders: list[EncoderInfo]
    waiting: int
    """Sequences in the local spools for the store."""
    damaged: list[str]


def info(store: Store) -> StoreInfo:
    """Describe the content of a store.

    Raises
    ------
    StoreUnreachable
    """
    encoders = [_encoder_info(folder) for folder in store.folders()]
    return StoreInfo(
        path=str(store.path),
        rows=sum(e["rows"] for e in encoders),
        bytes=sum(e["bytes"] for e in encoders),
        encoders=encoders,
        waiting=spooled_rows(store.path),
        damaged=[what for _, what in store.damaged],
    )


def _encoder_info(folder: EncoderFolder) -> EncoderInfo:
    blocks, keys = folder.blocks(), folder.keys()
    now = time.time()
    written = {path: path.stat().st_mtime for path in {block.path for block in blocks}}
    ages = [now - at for at in written.values()]
    return EncoderInfo(
        folder=folder.path.name,
        kind=folder.kind,
        encoder=folder.name,
        fingerprint=folder.fingerprint,
        rows=_rows(blocks),
        unique=len(distinct_keys(np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *keys]))[0]),
        shards=len(blocks),
        bytes=sum(a.nbytes for block in blocks for a in block.arrays.values()),
        poolings=blocks[0].widths if blocks else {},
        values=_rows_by(blocks, [block.number_format for block in blocks]),
        attrs={
            name: _rows_by(blocks, [block.attrs.get(name) for block in blocks])
            for name in sorted({name for b in blocks for name in b.attrs} - _OWN_ATTRS)
        },
        newest_seconds_ago=round(min(ages), 1) if ages else None,
        oldest_seconds_ago=round(max(ages), 1) if ages else None,
        rows_in_last_10_minutes=_rows(b for b in blocks if now - written[b.path] < RECENT_SECONDS),
        writing=_writers(folder.path),
        progress=_progress(folder, blocks, written, now),
        damaged=[what for _, what in folder.damaged],
    )


def _rows(blocks: Iterable[VectorBlock]) -> int:
    return sum(block.rows for block in blocks)


def _rows_by(blocks: Sequence[VectorBlock], values: Sequence[object]) -> dict[str, int]:
    """Count rows per value; there is one value per block."""
    rows: Counter[str] = Counter()
    for block, value in zip(blocks, values, strict=True):
        rows[str(value)] += block.rows
    return dict(rows)


def _writers(folder: Path) -> list[str]:
    """List the processes that are writing a shard, as host:pid."""
    owners = (partial_owner(path) for path in folder.glob("*.partial"))
    return sorted({f"{host}:{pid}" for host, pid in filter(None, owners)})


def _progress(
    folder: EncoderFolder, blocks: Sequence[VectorBlock], written: Mapping[Path, float], now: float
) -> StoreProgress | None:
    """Compare what the latest run has to do with what was committed since it started."""
    run = folder.notes.latest_run()
    if run is None:
        return None
    started = run["started"]
    since = [b for b in blocks if written[b.path] >= started - 1]  # clocks of servers are coarse
    encoded = min(run["to_encode"], _rows(since))
    newest = max((written[b.path] for b in since), default=started)
    recent, seconds = _recent(since, written, run.get("encoding_since", started))
    speed = _residues(recent) / seconds if seconds > 0 else None
    state = _state(run, encoded, now - newest)
    left = None
    if speed and state == "running":
        residues_left = run["residues_to_encode"] - _residues(since)
        left = round(max(0.0, residues_left / speed - (now - newest)), 1)
    every_epoch = EPOCHS * run["residues_of_rows"]
    return StoreProgress(
        table=run["table"],
        rows=run["rows"],
        sequences=run["sequences"],
        to_encode=run["to_encode"],
        encoded=encoded,
        state=state,
        process=f"{run['host']}:{run['pid']}",
        sequences_per_s=round(_rows(recent) / seconds, 2) if speed else None,
        residues_per_s=round(speed, 1) if speed else None,
        seconds_left=left,
        factor=round(every_epoch / run["residues"], 1),
        seconds_spared=round((every_epoch - run["residues"]) / speed, 1) if speed else None,
    )


def _recent(
    since: Sequence[VectorBlock], written: Mapping[Path, float], started: float
) -> tuple[list[VectorBlock], float]:
    """Return what was committed lately, and in how many seconds.

    With two commits or more, the time runs from the first to the last, and the first commit does
    not count; otherwise, from the start of encoding.
    """
    newest = max((written[b.path] for b in since), default=started)
    window = max(started, newest - RECENT_SECONDS)
    recent = sorted((b for b in since if written[b.path] >= window), key=lambda b: written[b.path])
    if len(recent) > 1:
        return recent[1:], newest - written[recent[0].path]
    return recent, newest - window


def _residues(blocks: Iterable[VectorBlock]) -> int:
    return sum(int(block.load("length").sum(dtype=np.int64)) for block in blocks)


def _state(run: RunRecord, encoded: int, silent_seconds: float) -> str:
    if encoded >= run["to_encode"]:
        return "finished"
    if run["host"] == host_name():
        return "running" if is_process_alive(run["pid"]) else "stopped"
    return "running" if silent_seconds < RECENT_SECONDS else "unknown"


# --- text ----------------------------------------------------------------------------------------


def describe(store: StoreInfo) -> Iterator[str]:
    """Yield the lines that ``abag store info`` prints."""
    encoders = store["encoders"]
    yield (
        f"{store['path']}: {store['rows']:,} vectors of {len(encoders)} encoders, "
        f"{size_text(store['bytes'])}"
    )
    for encoder in encoders:
        yield from _describe_encoder(encoder)
    if store["waiting"]:
        yield (
            f"{store['waiting']:,} sequences are in a local spool on this machine: "
            "run abag embed again to add them"
        )
    for what in store["damaged"]:
        yield f"damaged: {what}"


def _describe_encoder(encoder: EncoderInfo) -> Iterator[str]:
    yield ""
    duplicates = encoder["rows"] - encoder["unique"]
    yield (
        f"{encoder['kind']} · {encoder['encoder']} ({encoder['fingerprint'][:8]}): "
        f"{encoder['unique']:,} sequences in "
        f"{encoder['shards']:,} shard{'s' * (encoder['shards'] != 1)}, "
        f"{size_text(encoder['bytes'])}" + (f"; {duplicates:,} stored twice" if duplicates else "")
    )
    if encoder["poolings"]:
        poolings = ", ".join(f"{name} {width}" for name, width in encoder["poolings"].items())
        attrs = (encoder["attrs"].get(name, {}) for name in ("precision", "device"))
        made = [*encoder["values"], *(value for counts in attrs for value in counts)]
        yield f"  {poolings} · {', '.join(made)}"
    if encoder["newest_seconds_ago"] is not None:
        writers = ", ".join(encoder["writing"])
        yield f"  last commit {duration_text(encoder['newest_seconds_ago'])} ago" + (
            f", written by {writers}" if writers else ""
        )
    if encoder["progress"]:
        yield from _describe_progress(encoder["progress"])
    for what in encoder["damaged"]:
        yield f"  damaged: {what}"


def _describe_progress(run: StoreProgress) -> Iterator[str]:
    share = run["encoded"] / run["to_encode"] if run["to_encode"] else 1.0
    yield (
        f"  {run['table']}: {run['encoded']:,} of {run['to_encode']:,} sequences encoded "
        f"({share:.0%}), {run['state']}"
        + (f" ({run['process']})" if run["state"] in ("running", "unknown") else "")
    )
    if run["residues_per_s"]:
        left = run["seconds_left"]
        yield (
            f"  {run['sequences_per_s']:,.1f} sequences/s, {run['residues_per_s']:,.0f} residues/s "
            "over its last minutes" + (f"; {duration_text(left)} left" if left is not None else "")
        )
    spared = run["seconds_spared"]
    yield (
        f"  {run['factor']:,.0f} times less than encoding each of {run['rows']:,} rows in each of "
        f"{EPOCHS} epochs" + (f", which would take {duration_text(spared)} more" if spared else "")
    )


def duration_text(seconds: float) -> str:
    """Write a duration in the largest unit of which it has at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"
