"""The scores of a run and its baselines as text."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag.core.messages import counted
from abag.head.evaluation.metrics import table_metrics
from abag.head.evaluation.verdicts import best_baseline
from abag.head.training.uncertainty import describe_sigma

if TYPE_CHECKING:
    from collections.abc import Mapping


WIDTH = 80
"""Columns of the text of a fit."""


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: on test, then on another table."""
    rows = {"head": summary["metrics"]["test"]}
    if "predictions" in summary:
        rows[summary["predictions"]["source"]] = summary["predictions"]["test"]
    rows |= {name: s["test"] for name, s in summary["baselines"].items() if "test" in s}
    text = _lay_out("test rows", rows)
    if explained := describe_test_rows(int(rows["head"]["n"] or 0), summary["split"]):
        text += f"\n{explained}"
    text += _describe_intervals(summary["intervals"])
    text += "".join(f"\n{line}" for line in textwrap.wrap(describe_sigma(summary["sigma"]), WIDTH))
    if "table" not in summary:
        return text
    parts = ("table", "table_new_antibodies", "table_new_antigens")
    found = {name.replace("table", "head", 1): summary["metrics"][name] for name in parts}
    found |= {name: scores.get("table") for name, scores in summary["baselines"].items()}
    known = {name: scores for name, scores in found.items() if scores}
    below = [_lay_out("table rows", known), *summary["table"]["verdicts"]]
    intervals = _describe_intervals(summary["table"]["intervals"])
    return text + "\n\n" + "\n".join(below) + intervals


def _describe_intervals(intervals: Mapping[str, Any]) -> str:
    """List the scores of the head that have an interval, on lines of `WIDTH`."""
    shown = ", ".join(
        f"{metric} {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
        for metric, one in intervals.items()
        if one["low"] is not None
    )
    lines = textwrap.wrap(f"head, 95 % intervals: {shown}", WIDTH) if shown else []
    return "".join(f"\n{line}" for line in lines)


def describe_test_rows(n: int, split: Mapping[str, Any]) -> str:
    """Explain why there are more test rows than tested pairs; empty if there are not.

    `n` is summed over folds; `split` is that of a summary.
    """
    pairs = split["test_pairs"]
    if pairs == n:
        return ""
    times = f"each tested in {n // pairs} of" if n % pairs == 0 else "some tested in several of"
    return f"{n:,} test rows: {pairs:,} pairs, {times} {split['folds']} folds"


def describe_fit(summary: Mapping[str, Any]) -> str:
    """Describe a finished fit in at most twelve lines of 80 columns."""
    lines = [*_describe_data(summary), *_main_scores(summary).splitlines()]
    test = int(summary["metrics"]["test"]["n"] or 0)
    if explained := describe_test_rows(test, summary["split"]):
        lines.append(explained)
    lines += textwrap.wrap(summary["verdict"], WIDTH)
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    return "\n".join(lines + [f"{n:10} {path}" for n, path in places.items() if path.exists()])


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit in four lines."""
    shown = {n: summary["metrics"]["test"][n] for n in table_metrics()}
    scores = ", ".join(f"{n} {value:.3f}" for n, value in shown.items() if value is not None)
    return [*_describe_data(summary), f"test: {scores}", summary["verdict"]]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    split, data = summary["split"], summary["data"]
    rows = ", ".join(f"{n:,} {part}" for part, n in split["rows"].items() if n)
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')} and {counted(data['antigens'], 'antigen')}",
        f"split {split['name']}: "
        + (f"{split['folds']} folds" if split["folds"] > 1 else f"{rows} pairs"),
    ]


def _main_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores of the head, of the strongest baseline and of the training mean."""
    of_all = {"head": summary["metrics"], **summary["baselines"]}
    best = best_baseline(of_all, "rmse")
    names = dict.fromkeys(n for n in (best, "train_mean") if n in summary["baselines"])
    rows = {"head": summary["metrics"]["test"]}
    return _lay_out("test rows", rows | {str(n): of_all[str(n)]["test"] for n in names})


def _lay_out(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    headings = {metric: metric.removeprefix("spearman_") for metric in table_metrics()}
    widths = {metric: max(8, len(heading) + 2) for metric, heading in headings.items()}
    titles = f"{title}: {rows['head']['n']:,}"
    first = max(map(len, (titles, *(name[:24] for name in rows))))
    lines = [f"{titles:{first}}" + "".join(f"{h:>{widths[m]}}" for m, h in headings.items())]
    for name, scores in rows.items():
        values = {metric: scores.get(metric) for metric in widths}
        cells = {metric: "-" if x is None else f"{x:.3f}" for metric, x in values.items()}
        lines.append(
            f"{name:{first}.{first}}" + "".join(f"{cells[m]:>{w}}" for m, w in widths.items())
        )
    return "\n".join(lines)
