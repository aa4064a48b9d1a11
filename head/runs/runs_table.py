"""The result of ``abag runs`` as lines of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, cast

from abag.core.messages import align
from abag.head.evaluation.metrics import headline_metrics, metric_label

if TYPE_CHECKING:
    from abag.head.evaluation.comparison import ScoreInterval
    from abag.head.runs.compare import RunsSummary, RunState
    from abag.head.runs.live_progress import Progress


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
