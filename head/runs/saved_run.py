"""A run read back from its folder: finished, or while another process may be training in it.

Nothing is written or locked: the log is appended in whole lines, other files are renamed into
place, and a line that is being written is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats
from abag.core.files import FileDamaged, why_unreadable
from abag.embed.sequences.chains import KINDS
from abag.head.evaluation.metrics import is_better
from abag.head.regimes.regimes import REGIMES, MeasuredRegime
from abag.head.regimes.splits import TEST, UNUSED, Split
from abag.head.report.results import read_summary
from abag.head.runs.run_folder import read_config
from abag.head.training.step_log import parse_line

if TYPE_CHECKING:
    from abag.head.report.results import RunSummary

ALIVE_SECONDS = 120
"""Time without writing after which a run counts as stopped; it saves every 30 s."""
RECENT_SECONDS = 180
"""Period over which the current speed is measured."""


class NoFinishedRun(AbagError):
    """A folder does not contain a finished run, or it is damaged."""


@dataclass(frozen=True, slots=True)
class SavedPairs:
    """The P pairs of a run, in the order of their keys."""

    pkd: Floats
    """(P,)"""
    censored: NDArray[np.int8]
    """(P,); see `abag.head.evaluation.metrics.score`."""
    antibody: NDArray[np.int64]
    """(P,); antibodies and antigens are numbered in the order of their keys."""
    antigen: NDArray[np.int64]
    """(P,)"""
    antigen_cluster: NDArray[np.int64]
    """(P,)"""
    antibody_cluster: NDArray[np.int64] | None
    """(P,); None if the antibodies were not clustered."""

    def of(self, rows: NDArray[np.bool_]) -> SavedPairs:
        """Return some of the pairs."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, one in columns.items():
            columns[name] = None if one is None else one[rows]
        return SavedPairs(**columns)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The contents of a finished run's folder."""

    config: Mapping[str, Any]
    summary: RunSummary
    frame: pd.DataFrame
    """Rows of ``pairs.parquet``, (P,)."""
    pairs: SavedPairs
    regimes: list[MeasuredRegime]
    """Of the splits only the test parts are known."""
    predicted: list[Floats]
    """Out-of-fold pKd of the test pairs of each fold, (P,); NaN for the others."""
    sigma: list[Floats]
    sequences: pd.DataFrame
    """See `abag.head.runs.run_folder.sequence_frame`."""

    @property
    def splits(self) -> list[Split]:
        """The folds of all regimes."""
        return [split for one in self.regimes for split in one.splits]


def read_run(run: Path) -> SavedRun:
    """Read the folder of a finished run.

    Raises
    ------
    NoFinishedRun
        If a file is missing or damaged, or the files belong to different runs, or to a run of
        another version of abag.
    """
    try:
        config, summary = read_config(run), read_summary(run)
        frame = pd.read_parquet(run / "pairs.parquet")
        tested = pd.read_parquet(run / "predictions.parquet")
        sequences = pd.read_parquet(run / "sequences.parquet")
        antibody, antigen = (
            pd.factorize(frame[f"{kind}_key"], sort=True)[0].astype(np.int64) for kind in KINDS
        )
        of_antibodies = frame.get("antibody_cluster")
        pairs = SavedPairs(
            frame["pkd"].to_numpy(np.float64),
            frame["censored"].to_numpy(np.int8),
            antibody,
            antigen,
            frame["antigen_cluster"].to_numpy(np.int64),
            None if of_antibodies is None else of_antibodies.to_numpy(np.int64),
        )
        labels = ["antibody_key", "antigen_key", "pkd", "censored"]
        same = frame[labels].iloc[tested["pair"]].reset_index(drop=True)
        consistent = same.equals(tested[labels].reset_index(drop=True))
        regimes = [
            _regime(str(name), rows, len(frame))
            for name, rows in tested.groupby("regime", sort=False)
        ]
        folds = [rows for _, rows in tested.groupby("fold", sort=True)]
        predicted, sigma = (
            [
                _of_pairs(rows["pair"], rows[name].to_numpy(np.float64), len(frame), np.nan)
                for rows in folds
            ]
            for name in ("pkd_predicted", "sigma")
        )
    except FileDamaged as error:
        raise NoFinishedRun(str(error)) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = why_unreadable(run, error).rstrip(".")
        msg = (
            f"{run}: not a finished run ({reason}). Check the path, or run abag fit on it until it "
            "ends."
        )
        raise NoFinishedRun(msg) from error
    if not consistent:
        msg = (
            f"{run}: predictions.parquet and pairs.parquet belong to different runs; expected "
            "the same pairs with the same labels. Copy the whole run folder again."
        )
        raise NoFinishedRun(msg)
    return SavedRun(config, summary, frame, pairs, regimes, predicted, sigma, sequences)


def _regime(name: str, tested: pd.DataFrame, n: int) -> MeasuredRegime:
    """Restore a regime of n pairs from its tested rows."""
    pair = tested["pair"]
    groups = [
        _of_pairs(pair, tested[column].to_numpy(np.int64), n, -1)
        for column in ("group", "second_group")
    ]
    splits = []
    for fold, rows in tested.groupby("fold", sort=True):
        part = np.full(n, UNUSED, np.int8)
        part[rows["pair"]] = TEST
        splits.append(Split(name=name, part=part, group=groups[0], fold=int(str(fold))))
    distinct = groups[:1] if np.array_equal(groups[0], groups[1]) else groups
    return MeasuredRegime(REGIMES[name], tuple(splits), tuple(distinct))


def _of_pairs(pair: pd.Series[Any], values: NDArray[Any], n: int, other: float) -> NDArray[Any]:
    """Put values of some pairs into an array for all n, the others being `other`."""
    found = np.full(n, other, values.dtype)
    found[pair] = values
    return found


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
