"""How far a run has come, read from its folder while another process may be training in it.

Nothing is written and nothing is locked: the log is appended whole lines, the rest is renamed into
place, and a line that is just being written is left for the next look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from abag.head.evaluation.metrics import is_better

ALIVE_SECONDS = 120
"""A run that wrote nothing for so long is taken for stopped: it saves every 30 s."""
RECENT_SECONDS = 180
"""What counts as now when speed is told."""


@dataclass(frozen=True, slots=True)
class _Log:
    """What the log of one fold says."""

    step: int
    epoch: int
    epochs: Sequence[Mapping[str, Any]]
    """Lines that end an epoch; they know the time."""


def read_progress(run: Path, config: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """Tell how far a run that has not finished has come.

    Parameters
    ----------
    run : Path
    config : mapping
        Content of its config.json.
    now : float, optional
        Seconds since 1970; None: as the clock says.

    Returns
    -------
    dict
        ``state`` (``training``, ``stopped``, ``starting``), ``fold``, ``folds``, ``epoch``,
        ``epochs``, ``step``, ``steps`` (of all folds), ``steps_per_s`` (of the last minutes),
        ``seconds_left``, ``written_s_ago``, ``checkpoint_s_ago``, ``best`` (``metric``,
        ``score``, ``step``); None for what is not known yet.
    """
    now = time.time() if now is None else now
    logs = sorted((run / "checkpoints").glob("fold-*/log.jsonl"))
    paths = logs or [p for p in [run / "metrics.jsonl"] if p.exists()]
    read = [_read_log(path) for path in paths]
    folds = _folds(run)
    an_epoch = next(
        (log.epochs[0]["step"] / log.epochs[0]["epoch"] for log in read if log.epochs), 0
    )
    step = sum(log.step for log in read)
    steps = round(an_epoch * config["epochs"] * folds) or None
    speed = next((s for log in reversed(read) if (s := _speed(log.epochs))), None)
    ago = _ago([run / "config.json", *paths, *_checkpoints(run)], now)
    return {
        "state": "stopped" if (ago or 0) > ALIVE_SECONDS else "training" if step else "starting",
        "fold": max(len(read), 1),
        "folds": folds,
        "epoch": read[-1].epoch if read else 0,
        "epochs": config["epochs"],
        "step": step,
        "steps": steps,
        "steps_per_s": speed and round(speed, 2),
        "seconds_left": round(max(steps - step, 0) / speed, 1) if speed and steps else None,
        "written_s_ago": ago,
        "checkpoint_s_ago": _ago(_checkpoints(run), now),
        "best": _best(read[-1].epochs, config["select"]) if read else None,
    }


def _folds(run: Path) -> int:
    path = run / "splits.parquet"  # written after config.json
    if not path.exists():
        return 1
    return int(pc.max(pq.read_table(path, columns=["fold"])["fold"]).as_py() or 0) + 1


def _checkpoints(run: Path) -> list[Path]:
    return [*(run / "checkpoints").glob("latest"), *(run / "checkpoints").glob("fold-*/latest")]


def _ago(paths: Sequence[Path], now: float) -> float | None:
    """Seconds since the newest of some files was written; None where there is none."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:  # just being rotated
            continue
    return round(max(0.0, now - max(times)), 1) if times else None


def _read_log(path: Path) -> _Log:
    lines = path.read_bytes().split(b"\n")[:-1]  # after the last end of line: being written
    ends = [json.loads(line) for line in lines if b'"seconds"' in line]
    last = json.loads(lines[-1]) if lines else {"step": 0, "epoch": 0}
    return _Log(last["step"], last["epoch"], ends)


def _speed(ends: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps a second over the last minutes of training."""
    if not ends:
        return None
    last = ends[-1]
    # the newest line that is old enough; a resumed run's seconds go on where they were
    old = [e for e in ends[:-1] if e["seconds"] < last["seconds"] - RECENT_SECONDS]
    first = old[-1] if old else {"step": 0, "seconds": 0.0}
    took = last["seconds"] - first["seconds"]
    return float((last["step"] - first["step"]) / took) if took > 0 else None


def _best(ends: Sequence[Mapping[str, Any]], select: str) -> dict[str, Any] | None:
    best: dict[str, Any] | None = None
    for line in ends:
        value = line.get("validation", {}).get(select)
        if is_better(select, value, best["score"] if best else None):
            best = {"metric": select, "score": value, "step": line["step"]}
    return best
