"""``runs``: the state of runs, their configurations, and whether one is better than another.

Runs are compared only if their test rows are the same pairs with the same labels. Scores and
differences have intervals from a bootstrap over whole clusters. The best run is chosen on the
validation set: the best of many on the test set would be so partly by chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict, cast

import numpy as np

from abag import AbagError
from abag.core.arrays import Floats
from abag.core.files import FileDamaged, read_json
from abag.core.messages import align
from abag.core.options import user_path
from abag.head.evaluation.comparison import ScoreInterval, compare, score_interval
from abag.head.evaluation.metrics import METRICS, Scores, headline_metrics, metric_label
from abag.head.evaluation.verdicts import verdict
from abag.head.runs.run_folder import read_config
from abag.head.runs.saved_run import NoFinishedRun, SavedPairs, SavedRun, read_progress, read_run
from abag.head.splits.splits import KEYS, TEST, Split
from abag.head.training.step_log import LogDamaged

if TYPE_CHECKING:
    from abag.head.runs.saved_run import Progress


Comparison: TypeAlias = dict[str, Any]
"""A finished ``run`` minus the best run ``with`` the same test rows: ``best_by`` (a metric on
validation), ``test_rows``, ``difference``, ``verdicts``; or ``with`` None and the ``reason``."""


class NoRuns(AbagError):
    """A folder contains no run."""


@dataclass(frozen=True, slots=True)
class _TestRows:
    """The rows of a finished run that are in the test part of any fold."""

    digest: str
    """Hash of folds, keys, labels and censoring: equal for runs that can be compared."""
    pairs: SavedPairs
    splits: list[Split]
    predicted: list[Floats]


class RunState(TypedDict, total=False):
    """State of one run; that of a run in progress has the keys of `Progress` too."""

    run: Required[str]
    state: Required[str]
    reason: str
    """Why the run is ``unreadable``."""
    epochs: int
    steps: int
    folds: int
    validation: Scores
    """These chose the weights of each epoch, and are better than those of new pairs."""
    test: Scores
    intervals: dict[str, ScoreInterval | None]


class RunsSummary(TypedDict):
    """What `runs` returns."""

    runs: list[RunState]
    differences: dict[str, dict[str, Any]]
    """Configuration key to run to value, where runs differ."""
    comparisons: list[Comparison]


def runs(folders: Path | str | Sequence[Path | str]) -> RunsSummary:
    """Compare runs, finished or in progress; nothing is written.

    Parameters
    ----------
    folders : path or sequence of path
        Runs, or folders that contain runs at any depth.

    Raises
    ------
    NoRuns
        If a folder contains no run.
    """
    given = [folders] if isinstance(folders, Path | str) else folders
    paths = list(dict.fromkeys(run for folder in given for run in find_runs(user_path(folder))))
    configs = {str(path): read_json(path / "config.json") for path in paths}
    states, tested = [], {}
    for path in paths:
        state, rows = _describe_run(path)
        states.append(state)
        if rows is not None:
            tested[str(path)] = rows
    return {
        "runs": states,
        "differences": _differences(configs),
        "comparisons": _compare_with_best(states, tested),
    }


def find_runs(folder: Path) -> list[Path]:
    """Return the runs at or below a folder, sorted by name.

    Raises
    ------
    NoRuns
        If there is none.
    """
    found = [folder] if _is_run(folder) else sorted(_below(folder))
    if not found:
        problem = "contains no run" if folder.is_dir() else "not a folder"
        msg = (
            f"{folder}: {problem}; expected a run folder of abag fit, or a folder of run "
            "folders. Check the path."
        )
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
        return str(read_json(folder / "config.json").get("format")).startswith("abag-run")
    except (OSError, FileDamaged):
        return False


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the options that differ; an option that a run lacks is None."""
    differences = {}
    names = {name for config in configs.values() for name in config}
    for name in sorted(names - {"store_from_run"}):  # says where the run is
        values = {run: config.get(name) for run, config in configs.items()}
        if len({json.dumps(value, sort_keys=True) for value in values.values()}) > 1:
            differences[name] = values
    return differences


def _describe_run(run: Path) -> tuple[RunState, _TestRows | None]:
    """Return the state of a run, and its test rows if it has finished."""
    try:
        if not (run / "summary.json").exists():
            progress = read_progress(run, read_config(run))
            return cast("RunState", {"run": str(run), **progress}), None
        saved = read_run(run)
    except (NoFinishedRun, FileDamaged, LogDamaged) as error:
        return {"run": str(run), "state": "unreadable", "reason": str(error)}, None
    rows = _test_rows(saved)
    return {
        "run": str(run),
        "state": "finished",
        "epochs": saved.summary["epochs"],
        "steps": saved.summary["steps"],
        "folds": len(saved.splits),
        "validation": saved.summary["metrics"]["validation"] or {},
        "test": saved.summary["metrics"]["test"] or {},
        "intervals": {
            metric: score_interval(rows.pairs, rows.splits, rows.predicted, metric)
            for metric in headline_metrics()
        },
    }, rows


def _test_rows(saved: SavedRun) -> _TestRows:
    """Select the pairs that are in the test part of any fold, and hash them."""
    rows = np.any([split.part == TEST for split in saved.splits], axis=0)
    keys = saved.folds[0].loc[rows, KEYS]
    pairs = saved.pairs.of(rows)
    splits = [replace(s, part=s.part[rows], group=s.group[rows]) for s in saved.splits]
    digest = blake2b("\n".join(keys.to_numpy().ravel()).encode(), digest_size=16)
    for array in (pairs.pkd, pairs.censored, *(split.part == TEST for split in splits)):
        digest.update(np.ascontiguousarray(array).data)
    return _TestRows(digest.hexdigest(), pairs, splits, [p[rows] for p in saved.predicted])


def _compare_with_best(
    states: Sequence[RunState], tested: Mapping[str, _TestRows]
) -> list[Comparison]:
    """Compare each finished run with the best run that has the same test rows."""
    scores = {one["run"]: one["validation"] for one in states if one["state"] == "finished"}
    comparisons: list[Comparison] = []
    for digest in dict.fromkeys(rows.digest for rows in tested.values()):
        group = [run for run, rows in tested.items() if rows.digest == digest]
        if len(group) == 1:
            if len(tested) > 1:
                reason = "no other run has the same test rows with the same labels"
                comparisons.append({"run": group[0], "with": None, "reason": reason})
            continue
        metric, best = _best_run(group, scores)
        comparisons += [_compare_runs(run, best, metric, tested) for run in group if run != best]
    return comparisons


def _best_run(group: Sequence[str], scores: Mapping[str, Scores]) -> tuple[str, str]:
    """Return the first headline metric that is defined for all runs, and the best run by it."""
    for metric in headline_metrics():
        known = {run: value for run in group if (value := scores[run].get(metric)) is not None}
        if len(known) == len(group):
            best = min if METRICS[metric].lower_is_better else max
            return metric, best(known, key=lambda run: known[run])
    return "rmse", group[0]


def _compare_runs(run: str, best: str, metric: str, tested: Mapping[str, _TestRows]) -> Comparison:
    rows, best_rows = tested[run], tested[best]
    found = {
        name: compare(rows.pairs, best_rows.splits, rows.predicted, best_rows.predicted, name)
        for name in headline_metrics()
    }
    return {
        "run": run,
        "with": best,
        "best_by": metric,
        "test_rows": int(sum((split.part == TEST).sum() for split in rows.splits)),
        "difference": {name: i and i.to_json() for name, i in found.items()},
        "verdicts": [verdict(run, best, name, i) for name, i in found.items()],
    }


def describe_runs(summary: RunsSummary) -> list[str]:
    """Format the result of `runs` as lines of text."""
    states = summary["runs"]
    names = _short_names([state["run"] for state in states])
    headline = headline_metrics()
    cells, notes = [["run", *(metric.removeprefix("spearman_") for metric in headline)]], []
    for state in states:
        name, intervals = names[state["run"]], state.get("intervals", {})
        scores = [_format_interval(intervals.get(metric)) for metric in headline]
        cells.append([name, *scores])
        if state["state"] != "finished":
            notes.append(f"{name}: {state['state']}, {_describe_unfinished(state)}")
    lines = [*align(cells), *notes]
    if summary["comparisons"]:
        lines += ["", "Differences on the same test rows, with 95 % intervals over clusters"]
        best = {one["with"]: one["best_by"] for one in summary["comparisons"] if one["with"]}
        lines += [_describe_best(run, by, states) for run, by in best.items()]
        for one in summary["comparisons"]:
            lines += one["verdicts"] if one["with"] else [f"{one['run']}: {one['reason']}"]
    if summary["differences"]:
        options = [["option", *names.values()]]
        for option, values in summary["differences"].items():
            options.append([option, *(_shorten(values[run]) for run in names)])
        lines += ["", *align(options)]
    elif len(states) > 1:
        lines += ["", "The runs have the same configuration."]
    return lines


def _describe_best(run: str, metric: str, states: Sequence[RunState]) -> str:
    (score,) = (state["validation"][metric] for state in states if state["run"] == run)
    return (
        f"{run} is the best on validation: {metric_label(metric)} {score:.3f} (optimistic, because "
        "validation chose its weights)."
    )


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Remove the leading folders that all paths share."""
    parts = [Path(path).parts for path in paths]
    folders = zip(*(p[:-1] for p in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    first = shared if len(parts) > 1 else 0
    return {path: str(Path(*p[first:])) for path, p in zip(paths, parts, strict=True)}


def _format_interval(scored: ScoreInterval | None) -> str:
    if scored is None:
        return "-"
    if scored["low"] is None:
        clusters = scored["clusters"]
        return f"{scored['value']:.3f} ({clusters} cluster{'s' * (clusters != 1)})"
    return f"{scored['value']:.3f} ({scored['low']:.2f} to {scored['high']:.2f})"


def _describe_unfinished(state: RunState) -> str:
    if state["state"] == "unreadable":
        return state["reason"]
    one = cast("Progress", state)
    parts = [f"{one['fold']} of {one['folds']} folds"] if one["folds"] > 1 else []
    parts += [f"epoch {one['epoch']} of {one['epochs']}", f"step {one['step']:,}"]
    if one["steps"]:
        parts[-1] += f" of {one['steps']:,} ({one['step'] / one['steps']:.0%})"
    if one["steps_per_s"]:
        parts.append(f"{one['steps_per_s']:,.1f} steps/s")
    if one["seconds_left"] is not None:
        parts.append(f"{_format_time(one['seconds_left'])} left")
    if one["best"]:
        parts.append(
            f"best validation {metric_label(one['best']['metric'])} {one['best']['score']:.3f}"
        )
    if one["checkpoint_s_ago"] is not None:
        parts.append(f"checkpoint {_format_time(one['checkpoint_s_ago'])} ago")
    if one["state"] == "stopped" and one["written_s_ago"] is not None:
        idle = _format_time(one["written_s_ago"])
        parts.append(f"nothing written for {idle}; run abag fit again to resume")
    return ", ".join(parts)


def _format_time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    minutes = round(seconds) // 60
    return f"{minutes} min" if minutes >= 2 else f"{seconds:.0f} s"


def _shorten(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else f"{text[:21]}..."
