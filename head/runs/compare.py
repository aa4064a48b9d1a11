"""``runs``: what differs between runs, how far each has come, and whether one is better.

Runs are compared only where their test rows are the same pairs with the same labels; every score
and every difference comes with the interval of a bootstrap by whole clusters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.head.data.splits import TEST, Split
from abag.head.evaluation.comparison import Interval, compare, verdict
from abag.head.evaluation.metrics import METRICS, headline_metrics
from abag.head.runs.external_table import KEYS
from abag.head.runs.live_progress import read_progress
from abag.head.runs.saved_run import NoFinishedRun, SavedPairs, SavedRun, read_run

Floats: TypeAlias = NDArray[np.float64]


class NoRuns(AbagError):
    """Folders without a run."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """The part of a finished run that was held out in some fold."""

    digest: str
    """Over folds, keys, labels and censoring."""
    pairs: SavedPairs
    splits: list[Split]
    predicted: list[Floats]


def runs(folders: Path | str | Sequence[Path | str]) -> dict[str, Any]:
    """Compare runs, finished or under way; reads only.

    Parameters
    ----------
    folders : path or sequence of path
        Runs, or folders that hold runs at any depth.

    Returns
    -------
    dict
        ``runs``: for each ``run``, ``state`` and, when finished, ``test`` (all metrics) and
        ``intervals`` (``value``, ``low``, ``high`` of the headline metrics, ``clusters``); else
        what `live_progress.read_progress` tells. ``differences``: configuration key to run to
        value, where runs differ. ``comparisons``: each finished run less the best one of the same
        test rows, by metric, with a sentence; or the ``reason`` why not.

    Raises
    ------
    NoRuns
    """
    given = [folders] if isinstance(folders, Path | str) else folders
    paths = list(dict.fromkeys(run for folder in given for run in find_runs(Path(folder))))
    configs = {str(path): _config(path) for path in paths}
    told, tested = [], {}
    for path in paths:
        one, rows = _tell(path, configs[str(path)])
        told.append(one)
        if rows is not None:
            tested[str(path)] = rows
    return {
        "runs": told,
        "differences": _differences(configs),
        "comparisons": _comparisons(told, tested),
    }


def find_runs(folder: Path) -> list[Path]:
    """Return the runs at or below a folder, by name.

    Raises
    ------
    NoRuns
    """
    found = [folder] if _is_run(folder) else sorted(_below(folder))
    if not found:
        what = "holds no run" if folder.is_dir() else "is no folder"
        msg = f"{folder}: {what}; expected one that abag fit made, or a folder of such. Check the path."  # noqa: E501
        raise NoRuns(msg)
    return found


def _below(folder: Path) -> Iterator[Path]:
    for inner in folder.iterdir() if folder.is_dir() else ():
        if _is_run(inner):
            yield inner
        elif inner.is_dir() and not inner.is_symlink():
            yield from _below(inner)


def _is_run(folder: Path) -> bool:
    try:
        return "antibody_fingerprint" in _config(folder)
    except NoRuns:
        return False


def _config(run: Path) -> dict[str, Any]:
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{run}: its config.json cannot be read ({error}). Copy the whole run folder again."
        raise NoRuns(msg) from error
    return config if isinstance(config, dict) else {}


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tell which options differ; one that a run lacks is null there."""
    names = sorted({name for config in configs.values() for name in config})
    rows = {name: {run: config.get(name) for run, config in configs.items()} for name in names}
    return {
        name: values
        for name, values in rows.items()
        if len({json.dumps(value, sort_keys=True) for value in values.values()}) > 1
    }


def _tell(run: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], _Tested | None]:
    """Tell how a run stands; with what it was tested on, if it has finished."""
    if not (run / "summary.json").exists():
        return {"run": str(run), **read_progress(run, config)}, None
    try:
        saved = read_run(run)
    except NoFinishedRun as error:
        return {"run": str(run), "state": "unreadable", "reason": str(error)}, None
    tested = _tested(saved)
    return {
        "run": str(run),
        "state": "finished",
        "epochs": saved.summary["epochs"],
        "steps": saved.summary["steps"],
        "folds": len(saved.splits),
        "test": saved.summary["metrics"]["test"],
        "intervals": {m: _scored(tested, m) for m in headline_metrics()},
    }, tested


def _tested(saved: SavedRun) -> _Tested:
    """Select the pairs that are tested in some fold, and say what they are."""
    rows = np.any([split.part == TEST for split in saved.splits], axis=0)
    keys = saved.folds[0].loc[rows, KEYS]
    pairs = SavedPairs(
        saved.pairs.pkd[rows],
        saved.pairs.censored[rows],
        pd.factorize(keys["antigen_key"], sort=True)[0].astype(np.int64),
    )
    splits = [replace(s, part=s.part[rows], group=s.group[rows]) for s in saved.splits]
    running = blake2b("\n".join(keys.to_numpy().ravel()).encode(), digest_size=16)
    for array in (pairs.pkd, pairs.censored, *(split.part == TEST for split in splits)):
        running.update(np.ascontiguousarray(array).data)
    return _Tested(running.hexdigest(), pairs, splits, [p[rows] for p in saved.predicted])


def _scored(tested: _Tested, metric: str) -> dict[str, Any] | None:
    """Score a run with its interval: by how much it falls short of perfect predictions."""
    perfect = [tested.pairs.pkd] * len(tested.splits)
    short = compare(tested.pairs, tested.splits, tested.predicted, perfect, metric)
    if short is None:
        return None
    best = METRICS[metric].perfect
    return {
        "value": best + short.difference,
        "low": None if short.low is None else best + short.low,
        "high": None if short.high is None else best + short.high,
        "clusters": short.clusters,
    }


def _comparisons(
    told: Sequence[Mapping[str, Any]], tested: Mapping[str, _Tested]
) -> list[dict[str, Any]]:
    """Compare each finished run with the best of those that were tested on the same rows."""
    scores = {one["run"]: one["intervals"] for one in told if one["state"] == "finished"}
    lines: list[dict[str, Any]] = []
    for digest in dict.fromkeys(one.digest for one in tested.values()):
        group = [run for run, one in tested.items() if one.digest == digest]
        if len(group) == 1:
            if len(tested) > 1:
                reason = "no other run was tested on the same rows with the same labels"
                lines.append({"run": group[0], "with": None, "reason": reason})
            continue
        by, best = _best(group, scores)
        lines += [_compared(run, best, by, tested) for run in group if run != best]
    return lines


def _best(group: Sequence[str], scores: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Name the first headline metric that all have, and the run that is best by it."""
    by = next((m for m in headline_metrics() if all(scores[run][m] for run in group)), None)
    if by is None:
        return "rmse", group[0]
    sign = -1 if METRICS[by].lower_is_better else 1
    return by, max(group, key=lambda run: sign * scores[run][by]["value"])


def _compared(run: str, best: str, by: str, tested: Mapping[str, _Tested]) -> dict[str, Any]:
    one, other = tested[run], tested[best]
    found: dict[str, Interval | None] = {
        metric: compare(one.pairs, other.splits, one.predicted, other.predicted, metric)
        for metric in headline_metrics()
    }
    return {
        "run": run,
        "with": best,
        "best_by": by,
        "test_rows": int(sum((split.part == TEST).sum() for split in one.splits)),
        "difference": {m: i and asdict(i) for m, i in found.items()},
        "verdicts": [
            verdict("run", best, m, i).replace("The run", run, 1) for m, i in found.items()
        ],
    }


# ---- for people ----------------------------------------------------------------------------------


def describe_runs(found: Mapping[str, Any]) -> list[str]:
    """Lay out what `runs` found, as lines of a terminal."""
    names = _short([one["run"] for one in found["runs"]])
    lines = _table(
        ["run", "state", *(m.replace("_", " ") for m in headline_metrics())],
        [[names[one["run"]], *_cells(one)] for one in found["runs"]],
    )
    for one in found["runs"]:
        lines += [f"{names[one['run']]}: {text}" for text in _underway(one)]
    if found["comparisons"]:
        lines += ["", "Difference on the same test rows, 95 % of draws of whole clusters"]
        lines += [text for one in found["comparisons"] for text in _said(one)]
    if found["differences"]:
        runs_ = [one["run"] for one in found["runs"]]
        rows = [
            [key, *(_value(values[run]) for run in runs_)]
            for key, values in found["differences"].items()
        ]
        lines += ["", *_table(["option", *(names[run] for run in runs_)], rows)]
    elif len(found["runs"]) > 1:
        lines += ["", "The runs have the same configuration."]
    return lines


def _short(paths: Sequence[str]) -> dict[str, str]:
    """Leave out the folder that all runs share."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while len(parts) > 1 and all(
        len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts
    ):
        shared += 1
    return {path: str(Path(*p[shared:])) for path, p in zip(paths, parts, strict=True)}


def _cells(one: Mapping[str, Any]) -> list[str]:
    if one["state"] != "finished":
        return [one["state"], *["-"] * len(headline_metrics())]
    return ["finished", *(_interval(one["intervals"][metric]) for metric in headline_metrics())]


def _interval(scored: Mapping[str, Any] | None) -> str:
    if scored is None:
        return "-"
    if scored["low"] is None:
        clusters = scored["clusters"]
        return f"{scored['value']:.3f} ({clusters} cluster{'s' * (clusters != 1)})"
    return f"{scored['value']:.3f} ({scored['low']:.3f} to {scored['high']:.3f})"


def _underway(one: Mapping[str, Any]) -> Iterator[str]:
    if one["state"] == "finished":
        return
    if one["state"] == "unreadable":
        yield one["reason"]
        return
    said = [f"epoch {one['epoch']} of {one['epochs']}", f"step {one['step']:,}"]
    if one["folds"] > 1:
        said.insert(0, f"fold {one['fold']} of {one['folds']}")
    if one["steps"]:
        said[-1] += f" of {one['steps']:,} ({one['step'] / one['steps']:.0%})"
    if one["steps_per_s"]:
        said.append(f"{one['steps_per_s']:,.1f} steps/s")
    if one["seconds_left"] is not None:
        said.append(f"{_time(one['seconds_left'])} left")
    if one["best"]:
        said.append(f"best {one['best']['metric'].replace('_', ' ')} {one['best']['score']:.3f}")
    if one["checkpoint_s_ago"] is not None:
        said.append(f"checkpoint {_time(one['checkpoint_s_ago'])} ago")
    if one["state"] == "stopped":
        said.append(
            f"nothing written for {_time(one['written_s_ago'])}; run abag fit again to go on"
        )
    yield ", ".join(said)


def _time(seconds: float) -> str:
    minutes, hours = divmod(round(seconds), 60)[0], seconds / 3600
    return (
        f"{hours:.1f} h" if hours >= 2 else f"{minutes} min" if minutes >= 2 else f"{seconds:.0f} s"
    )


def _said(one: Mapping[str, Any]) -> list[str]:
    return one["verdicts"] if one["with"] else [f"{one['run']}: {one['reason']}"]


def _value(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
