"""The result of ``abag runs`` as lines of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from abag.head.evaluation.metrics import headline_metrics, metric_label

if TYPE_CHECKING:
    from abag.head.runs.compare import RunsSummary, RunState, ScoreInterval
    from abag.head.runs.live_progress import Progress


def describe_runs(summary: RunsSummary) -> list[str]:
    """Format the result of `runs` as lines of text."""
    states = summary["runs"]
    names = _short_names([state["run"] for state in states])
    headline = headline_metrics()
    lines = _align(
        ["run", "state", *map(metric_label, headline)],
        [[names[state["run"]], *_cells(state, headline)] for state in states],
    )
    for state in states:
        if state["state"] != "finished":
            lines.append(f"{names[state['run']]}: {_describe_unfinished(state)}")
    if summary["comparisons"]:
        lines += ["", "Differences on the same test rows, with 95 % intervals over clusters"]
        for one in summary["comparisons"]:
            lines += one["verdicts"] if one["with"] else [f"{one['run']}: {one['reason']}"]
    if summary["differences"]:
        rows = [
            [option, *(_shorten(values[state["run"]]) for state in states)]
            for option, values in summary["differences"].items()
        ]
        lines += ["", *_align(["option", *(names[state["run"]] for state in states)], rows)]
    elif len(states) > 1:
        lines += ["", "The runs have the same configuration."]
    return lines


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Remove the leading folders that all paths share."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while len(parts) > 1 and all(
        len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts
    ):
        shared += 1
    return {path: str(Path(*p[shared:])) for path, p in zip(paths, parts, strict=True)}


def _cells(state: RunState, headline: Sequence[str]) -> list[str]:
    if state["state"] != "finished":
        return [state["state"], *["-"] * len(headline)]
    return ["finished", *(_format_interval(state["intervals"][metric]) for metric in headline)]


def _format_interval(scored: ScoreInterval | None) -> str:
    if scored is None:
        return "-"
    if scored["low"] is None:
        clusters = scored["clusters"]
        return f"{scored['value']:.3f} ({clusters} cluster{'s' * (clusters != 1)})"
    return f"{scored['value']:.3f} ({scored['low']:.3f} to {scored['high']:.3f})"


def _describe_unfinished(state: RunState) -> str:
    if state["state"] == "unreadable":
        return state["reason"]
    one = cast("Progress", state)
    parts = [f"fold {one['fold']} of {one['folds']}"] if one["folds"] > 1 else []
    parts += [f"epoch {one['epoch']} of {one['epochs']}", f"step {one['step']:,}"]
    if one["steps"]:
        parts[-1] += f" of {one['steps']:,} ({one['step'] / one['steps']:.0%})"
    if one["steps_per_s"]:
        parts.append(f"{one['steps_per_s']:,.1f} steps/s")
    if one["seconds_left"] is not None:
        parts.append(f"{_format_time(one['seconds_left'])} left")
    if one["best"]:
        parts.append(f"best {metric_label(one['best']['metric'])} {one['best']['score']:.3f}")
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


def _align(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
