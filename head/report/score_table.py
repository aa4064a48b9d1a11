"""The scores of a run and its baselines as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from abag.head.evaluation.metrics import table_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: on test, then on another table."""
    rows = {"head": summary["metrics"]["test"]}
    if "predictions" in summary:
        rows[summary["predictions"]["source"]] = summary["predictions"]["test"]
    rows |= {name: s["test"] for name, s in summary["baselines"].items() if "test" in s}
    text = _lay_out("test rows", rows)
    if explained := describe_test_rows(int(rows["head"]["n"] or 0), summary["split"]):
        text += f"\n{explained}"
    if "table" not in summary:
        return text
    parts = ("table", "table_new_antibodies", "table_new_antigens")
    found = {name.replace("table", "head", 1): summary["metrics"][name] for name in parts}
    found |= {name: scores.get("table") for name, scores in summary["baselines"].items()}
    known = {name: scores for name, scores in found.items() if scores}
    below = [_lay_out("table rows", known), *summary["table"].get("verdicts", [])]
    return text + "\n\n" + "\n".join(below)


def describe_test_rows(n: int, split: Mapping[str, Any]) -> str:
    """Explain why there are more test rows than tested pairs; empty if there are not.

    `n` is summed over folds; `split` is that of a summary, which older runs saved without the
    number of pairs.
    """
    pairs = split.get("test_pairs", n)
    if pairs == n:
        return ""
    times = f"each tested in {n // pairs} of" if n % pairs == 0 else "some tested in several of"
    return f"{n:,} test rows: {pairs:,} pairs, {times} {split['folds']} folds"


def _lay_out(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    widths = {metric: max(12, len(metric) + 2) for metric in table_metrics()}
    names = "".join(f"{metric:>{width}}" for metric, width in widths.items())
    lines = [f"{title + ': ' + str(rows['head']['n']):24}{names}"]
    for name, scores in rows.items():
        values = {metric: scores.get(metric) for metric in widths}
        cells = {metric: "-" if x is None else f"{x:.3f}" for metric, x in values.items()}
        lines.append(f"{name:24.24}" + "".join(f"{cells[m]:>{w}}" for m, w in widths.items()))
    return "\n".join(lines)
