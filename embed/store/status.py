"""What a store holds, and how far a run that adds to it is: ``store info``.

A run leaves two notes beside the vectors: what it has to encode, and how fast it was. They only
inform: one that cannot be written or read, or makes no sense, counts as absent.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np

from abag import AbagError
from abag.core.arrays import KEY_BYTES, distinct_keys
from abag.core.files import host_name, is_process_alive, partial_owner, write_json
from abag.core.messages import size_text
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.shard import Shard
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import Store
from abag.embed.store.store_files import read_json

RUN_FILE = "run.json"
SPEED_FILE = "speed.json"
LARGEST = 1e15
"""Numbers from here on are no counts, times or process ids."""
RECENT_SECONDS = 600.0
EPOCHS = 50  # of the notebooks that encoded both sequences of every pair in every epoch
_OWN_ATTRS = frozenset(("kind", "encoder", "fingerprint"))


# --- notes of a run ------------------------------------------------------------------------------


class RunPlan(TypedDict):
    """What a run of ``abag embed`` has to do for one encoder."""

    table: str
    rows: int
    sequences: int
    """Unique sequences in the table."""
    to_encode: int
    """Those that the store did not hold."""
    residues: int
    """Of the unique sequences."""
    residues_to_encode: int
    residues_of_rows: int
    """Of all rows: what encoding each row would take."""


class RunRecord(RunPlan):
    """Content of run.json; times are seconds since 1970."""

    started: float
    encoding_since: float
    """When encoding began: after reading the table and loading the encoder."""
    host: str
    pid: int


def start_run(folder: Path, plan: RunPlan) -> None:
    """Note that this process starts a run that adds to an encoder's folder."""
    now = round(time.time(), 3)
    process = {"started": now, "encoding_since": now, "host": host_name(), "pid": os.getpid()}
    _write(folder / RUN_FILE, {**plan, **process})


def start_encoding(folder: Path) -> None:
    """Note that the latest run begins to encode."""
    if (record := latest_run(folder)) is not None:
        _write(folder / RUN_FILE, {**record, "encoding_since": round(time.time(), 3)})


def latest_run(folder: Path) -> RunRecord | None:
    """Return the record of the latest run, if there is one that makes sense."""
    record = _read(folder / RUN_FILE)
    for name in RunRecord.__required_keys__:
        value = record.get(name)
        is_valid = isinstance(value, int | float) and 0 < value < LARGEST
        if not (isinstance(value, str) if name in ("table", "host") else is_valid):
            return None
    return cast("RunRecord", record)


def note_speed(folder: Path, residues: int, seconds: float, device: str) -> None:
    """Note how fast the latest run encoded."""
    speed = {"residues": residues, "seconds": round(seconds, 3), "device": device}
    _write(folder / SPEED_FILE, speed)


def residues_per_s(folder: Path) -> float | None:
    """Return the speed of the latest run that encoded, if there was one."""
    speed = _read(folder / SPEED_FILE)
    try:
        per_s = float(speed["residues"]) / float(speed["seconds"])
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    return per_s if 0 < per_s < LARGEST else None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (OSError, AbagError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, value: object) -> None:
    with suppress(OSError):
        write_json(path, value)


# --- content and progress ------------------------------------------------------------------------


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


class _Commit(NamedTuple):
    """A shard, and when it was committed."""

    at: float
    block: Shard


def _encoder_info(folder: EncoderFolder) -> EncoderInfo:
    blocks = folder.shards()
    commits = [_Commit(block.path.stat().st_mtime, block) for block in blocks]
    now = time.time()
    keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *folder.keys()])
    ages = [round(now - commit.at, 1) for commit in commits]
    owners = filter(None, (partial_owner(path) for path in folder.path.glob("*.partial")))
    return EncoderInfo(
        folder=folder.path.name,
        kind=folder.kind,
        encoder=folder.name,
        fingerprint=folder.fingerprint,
        rows=sum(block.rows for block in blocks),
        unique=len(distinct_keys(keys)[0]),
        shards=len(blocks),
        bytes=sum(array.nbytes for block in blocks for array in block.arrays.values()),
        poolings=blocks[0].widths if blocks else {},
        values=_rows_by(blocks, [block.number_format for block in blocks]),
        attrs={
            name: _rows_by(blocks, [block.attrs.get(name) for block in blocks])
            for name in sorted({name for block in blocks for name in block.attrs} - _OWN_ATTRS)
        },
        newest_seconds_ago=min(ages, default=None),
        oldest_seconds_ago=max(ages, default=None),
        rows_in_last_10_minutes=_rows(c for c in commits if now - c.at < RECENT_SECONDS),
        writing=sorted({f"{host}:{pid}" for host, pid in owners}),
        progress=_progress(folder.path, commits, now),
        damaged=[what for _, what in folder.damaged],
    )


def _rows_by(blocks: Sequence[Shard], values: Sequence[object]) -> dict[str, int]:
    """Count rows per value; there is one value per block."""
    rows: Counter[str] = Counter()
    for block, value in zip(blocks, values, strict=True):
        rows[str(value)] += block.rows
    return dict(rows)


def _progress(folder: Path, commits: Sequence[_Commit], now: float) -> StoreProgress | None:
    """Compare what the latest run has to do with what was committed since it started."""
    run = latest_run(folder)
    if run is None:
        return None
    started = run["started"]
    since = sorted((c for c in commits if c.at >= started - 1), key=lambda c: c.at)  # coarse clocks
    newest = since[-1].at if since else started
    encoded = min(run["to_encode"], _rows(since))
    # with several commits, the time before the first does not count: it includes the start
    begin = max(run["encoding_since"], newest - RECENT_SECONDS)
    recent = [commit for commit in since if commit.at >= begin]
    if len(recent) > 1:
        begin, recent = recent[0].at, recent[1:]
    seconds = newest - begin
    speed = _residues(recent) / seconds if seconds > 0 else None
    state, left = _state(run, encoded, now - newest), None
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


def _rows(commits: Iterable[_Commit]) -> int:
    return sum(commit.block.rows for commit in commits)


def _residues(commits: Iterable[_Commit]) -> int:
    return sum(int(commit.block.load("length").sum(dtype=np.int64)) for commit in commits)


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
