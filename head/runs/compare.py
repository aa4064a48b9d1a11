"""``runs``: the state of runs, their configurations, and whether one is better than another.

Runs are compared only if their test rows are the same pairs with the same labels, in every fold of
every regime. The one with the smallest errors is so partly by chance, if there are many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict, cast

import numpy as np

from abag import AbagError
from abag.core.files import FileDamaged, read_json
from abag.core.messages import align
from abag.core.options import user_path
from abag.head.evaluation.metrics import metric_label
from abag.head.evaluation.regime_scores import TestedPairs, compare_models, describe_regimes
from abag.head.regimes.splits import KEYS, TEST
from abag.head.runs.run_folder import read_config
from abag.head.runs.saved_run import NoFinishedRun, SavedRun, read_progress, read_run
from abag.head.training.step_log import LogDamaged

if TYPE_CHECKING:
    from abag.head.report.results import RegimeSummary
    from abag.head.runs.saved_run import Progress


Comparison: TypeAlias = dict[str, Any]
"""A finished ``run`` beside the best run ``with`` the same test rows, and ``verdicts``, one per
regime; or ``with`` None and the ``reason``."""


class NoRuns(AbagError):
    """A folder contains no run."""


class RunState(TypedDict, total=False):
    """State of one run; that of a run in progress has the keys of `Progress` too."""

    run: Required[str]
    state: Required[str]
    reason: str
    """Why the run is ``unreadable``."""
    epochs: int
    steps: int
    folds: int
    regimes: list[RegimeSummary]
    """Scores of a finished run."""


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
    states, finished = [], dict[str, SavedRun]()
    for path in paths:
        state, saved = _describe_run(path)
        states.append(state)
        if saved is not None:
            finished[str(path)] = saved
    return {
        "runs": states,
        "differences": _differences(configs),
        "comparisons": _compare_with_best(finished),
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


def _describe_run(run: Path) -> tuple[RunState, SavedRun | None]:
    """Return the state of a run, and its contents if it has finished."""
    try:
        if not (run / "summary.json").exists():
            progress = read_progress(run, read_config(run))
            return cast("RunState", {"run": str(run), **progress}), None
        saved = read_run(run)
    except (NoFinishedRun, FileDamaged, LogDamaged) as error:
        return {"run": str(run), "state": "unreadable", "reason": str(error)}, None
    return {
        "run": str(run),
        "state": "finished",
        "epochs": saved.summary["epochs"],
        "steps": saved.summary["steps"],
        "folds": len(saved.splits),
        "regimes": saved.summary["regimes"],
    }, saved


def _digest(saved: SavedRun) -> str:
    """Hash the test pairs of every fold, with their labels."""
    digest = blake2b(digest_size=16)
    for split in saved.splits:
        rows = split.rows(TEST)
        keys = saved.frame.loc[rows, KEYS]
        digest.update("\n".join([split.name, *keys.to_numpy().ravel()]).encode())
        for array in (saved.pairs.pkd[rows], saved.pairs.censored[rows]):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _mean_rmse(saved: SavedRun) -> float:
    return float(np.mean([one["rmse"] for one in saved.summary["regimes"]]))


def _compare_with_best(finished: Mapping[str, SavedRun]) -> list[Comparison]:
    """Compare each finished run with the best run that has the same test rows."""
    comparisons: list[Comparison] = []
    digests = {run: _digest(saved) for run, saved in finished.items()}
    for digest in dict.fromkeys(digests.values()):
        group = sorted(
            (run for run in finished if digests[run] == digest),
            key=lambda run: _mean_rmse(finished[run]),
        )
        best, *others = group
        if not others and len(finished) > 1:
            reason = "no other run has the same test rows with the same labels"
            comparisons.append({"run": best, "with": None, "reason": reason})
        for run in others:
            verdicts = _compare_runs(run, best, finished)
            comparisons.append({"run": run, "with": best, "verdicts": verdicts})
    return comparisons


def _compare_runs(run: str, best: str, finished: Mapping[str, SavedRun]) -> list[str]:
    """Compare two runs in every regime."""
    found, at = [], 0
    for one in finished[best].regimes:
        tested = TestedPairs.of(finished[best].pairs, one)
        folds = slice(at, at + len(one.splits))
        at += len(one.splits)
        own, other = (tested.take(finished[name].predicted[folds]) for name in (run, best))
        found.append(compare_models(one.regime.words, run, best, tested, own, other))
    return found


def describe_runs(summary: RunsSummary) -> list[str]:
    """Format the result of `runs` as lines of text."""
    states = summary["runs"]
    names = _short_names([state["run"] for state in states])
    cells, notes = list[list[str]](), list[str]()
    for state in states:
        name = names[state["run"]]
        head, *rows = describe_regimes(state.get("regimes", ()))
        cells = cells or [["run", *head]]
        cells += [[name if not i else "", *row] for i, row in enumerate(rows)]
        if state["state"] != "finished":
            notes.append(f"{name}: {state['state']}, {_describe_unfinished(state)}")
    lines = [*align(cells), *notes]
    for one in summary["comparisons"]:
        texts = one["verdicts"] if one["with"] else [f"{one['run']}: {one['reason']}"]
        for path in sorted(names, key=len, reverse=True):
            texts = [text.replace(path, names[path]) for text in texts]
        lines += texts
    if summary["differences"]:
        options = [["option", *names.values()]]
        for option, values in summary["differences"].items():
            options.append([option, *(_shorten(values[run]) for run in names)])
        lines += ["", *align(options)]
    elif len(states) > 1:
        lines += ["", "The runs have the same configuration."]
    return lines


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Remove the leading folders that all paths share."""
    parts = [Path(path).parts for path in paths]
    folders = zip(*(p[:-1] for p in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    first = shared if len(parts) > 1 else 0
    return {path: str(Path(*p[first:])) for path, p in zip(paths, parts, strict=True)}


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
