"""The progress of a run, read from its folder while another process may be training in it.

Nothing is written or locked: the log is appended in whole lines, other files are renamed into
place, and a line that is being written is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pyarrow.compute as pc
import pyarrow.parquet as pq

from abag.head.evaluation.metrics import is_better
from abag.head.training.step_log import parse_line

ALIVE_SECONDS = 120
"""Time without writing after which a run counts as stopped; it saves every 30 s."""
RECENT_SECONDS = 180
"""Period over which the current speed is measured."""


class _Log(NamedTuple):
    """The log of one fold."""

    step: int
    epoch: int
    epoch_lines: Sequence[Mapping[str, Any]]
    """Lines at the end of an epoch, which have the time."""


class Progress(TypedDict):
    """Progress of an unfinished run; None for what is not known yet."""

    state: str
    """``starting``, ``training`` or ``stopped``."""
    fold: int
    folds: int
    epoch: int
    epochs: int
    step: int
    steps: int | None
    """Of all folds."""
    steps_per_s: float | None
    """Over the last minutes."""
    seconds_left: float | None
    written_s_ago: float | None
    checkpoint_s_ago: float | None
    best: dict[str, Any] | None
    """The best validation so far: ``metric``, ``score`` and ``step``."""


def read_progress(run: Path, config: Mapping[str, Any], now: float | None = None) -> Progress:
    """Read how far an unfinished run with this config.json has come, at the Unix time `now`."""
    now = time.time() if now is None else now
    paths = sorted((run / "checkpoints").glob("fold-*/log.jsonl"))
    paths = paths or [p for p in [run / "metrics.jsonl"] if p.exists()]
    logs = [_read_log(path) for path in paths]
    folds = _folds(run)
    first = next((log.epoch_lines[0] for log in logs if log.epoch_lines), None)
    steps_per_epoch = first["step"] / first["epoch"] if first else 0
    step = sum(log.step for log in logs)
    steps = round(steps_per_epoch * config["epochs"] * folds) or None
    speed = next((s for log in reversed(logs) if (s := _speed(log.epoch_lines))), None)
    saved = run / "checkpoints"
    checkpoints = [*saved.glob("latest"), *saved.glob("*/latest")]  # of folds and their stacks
    written_s_ago = _seconds_since([run / "config.json", *paths, *checkpoints], now)
    state = "training" if step else "starting"
    return {
        "state": "stopped" if (written_s_ago or 0) > ALIVE_SECONDS else state,
        "fold": max(len(logs), 1),
        "folds": folds,
        "epoch": logs[-1].epoch if logs else 0,
        "epochs": config["epochs"],
        "step": step,
        "steps": steps,
        "steps_per_s": speed and round(speed, 2),
        "seconds_left": round(max(steps - step, 0) / speed, 1) if speed and steps else None,
        "written_s_ago": written_s_ago,
        "checkpoint_s_ago": _seconds_since(checkpoints, now),
        "best": _best(logs[-1].epoch_lines, config["select"]) if logs else None,
    }


def _folds(run: Path) -> int:
    path = run / "splits.parquet"  # written after config.json
    if not path.exists():
        return 1
    return int(pc.max(pq.read_table(path, columns=["fold"])["fold"]).as_py() or 0) + 1


def _seconds_since(paths: Sequence[Path], now: float) -> float | None:
    """Seconds since the newest of the files was written; None if none exists."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:  # being rotated
            continue
    return round(max(0.0, now - max(times)), 1) if times else None


def _read_log(path: Path) -> _Log:
    lines = path.read_bytes().split(b"\n")[:-1]  # the last line is being written
    epoch_lines = [
        parse_line(path, n, line) for n, line in enumerate(lines, 1) if b'"seconds"' in line
    ]
    last = parse_line(path, len(lines), lines[-1]) if lines else {"step": 0, "epoch": 0}
    return _Log(last["step"], last["epoch"], epoch_lines)


def _speed(epoch_lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps per second over the last minutes of training."""
    if not epoch_lines:
        return None
    last = epoch_lines[-1]
    # The newest line that is old enough; the seconds of a resumed run continue.
    old = [e for e in epoch_lines[:-1] if e["seconds"] < last["seconds"] - RECENT_SECONDS]
    first = old[-1] if old else {"step": 0, "seconds": 0.0}
    took = last["seconds"] - first["seconds"]
    return float((last["step"] - first["step"]) / took) if took > 0 else None


def _best(epoch_lines: Sequence[Mapping[str, Any]], select: str) -> dict[str, Any] | None:
    best: dict[str, Any] | None = None
    for line in epoch_lines:
        value = line.get("validation", {}).get(select)
        if is_better(select, value, best["score"] if best else None):
            best = {"metric": select, "score": value, "step": line["step"]}
    return best
