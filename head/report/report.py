"""The report of a run: ``report.html``, one self-contained page with its figures inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from abag.core.files import write_text
from abag.head.evaluation import comparison
from abag.head.evaluation.comparison import compare, rank_metric, scores_on_test
from abag.head.evaluation.metrics import metric_label, table_metrics
from abag.head.report.figures import draw_figures
from abag.head.report.results import RunResults
from abag.head.report.templating import render_template
from abag.head.splits.splits import PART_NAMES, TEST, Split

MAX_FOLDS = 20
"""Folds listed in the table of parts."""


def write_report(path: Path, results: RunResults) -> None:
    """Write the report of a run atomically; it needs no network and no scripts."""
    write_text(path, render(results))


def render(results: RunResults) -> str:
    """Return the report as HTML."""
    r = results
    return render_template(
        "report.html.j2",
        title=r.title,
        folds=len(r.splits),
        draws=comparison.DRAWS,
        verdicts=comparison.verdicts(r.pairs, r.splits, r.predicted, r.baselines),
        warnings=comparison.warnings(r.pairs, r.splits),
        scores=_score_table(r),
        drawn=draw_figures(r),
        facts=[*r.facts.items(), *_counts(r).items()],
        split=_split_tables(r.splits),
    )


class _ScoreTable(TypedDict):
    head: list[str]
    rows: list[list[object]]
    test_rows: int


def _score_table(r: RunResults) -> _ScoreTable:
    """Scores of the head and each baseline, and their differences with intervals."""
    own = scores_on_test(r.pairs, r.splits, r.predicted)
    columns, compared = table_metrics(report=True), (rank_metric(own), "rmse")
    rows: list[list[object]] = [["head", *(own[c] for c in columns), "", ""]]
    for name in r.baselines[0]:
        predicted = [b[name] for b in r.baselines]
        scores = scores_on_test(r.pairs, r.splits, predicted)
        differences = []
        for metric in compared:
            found = compare(r.pairs, r.splits, r.predicted, predicted, metric)
            text = None if found is None else f"{found.difference:+.2f}"
            if found is not None and found.low is not None:
                text = f"{text} [{found.low:+.2f}, {found.high:+.2f}]"
            differences.append(text)
        rows.append([name, *(scores[c] for c in columns), *differences])
    head = ["", *map(metric_label, columns)]
    head += [f"head - baseline, {metric_label(metric)}" for metric in compared]
    test_rows = sum(len(split.rows(TEST)) for split in r.splits)
    return {"head": head, "rows": rows, "test_rows": test_rows}


def _counts(r: RunResults) -> dict[str, int]:
    return {
        "pairs": len(r.pairs.pkd),
        "unique antibodies": len(np.unique(r.pairs.antibody)),
        "unique antigens": len(np.unique(r.pairs.antigen)),
        "censored pairs": int(np.count_nonzero(r.pairs.censored)),
    }


class _SplitTables(TypedDict):
    why: str
    part_names: list[str]
    parts: list[list[int]]
    leaks: list[tuple[str, str, int]]
    clusters: list[tuple[str, str, int, str]]


def _split_tables(splits: Sequence[Split]) -> _SplitTables | None:
    """Rows per part, leaked rows by kind and identity, and clusters by identity."""
    description = splits[0].description
    if "leaks" not in description:
        return None
    return {
        "why": f"{description['split']}: {description['why']}.",
        "part_names": ["fold", *PART_NAMES],
        "parts": [
            [split.fold, *(len(split.rows(part)) for part in PART_NAMES.values())]
            for split in splits[:MAX_FOLDS]
        ],
        "leaks": [
            (kind, identity, sum(s.description["leaks"][kind][identity] for s in splits))
            for kind, levels in description["leaks"].items()
            for identity in levels
        ],
        "clusters": [
            (kind, identity, size["clusters"], f"{size['largest_share']:.0%}")
            for kind, levels in description["clusters"].items()
            for identity, size in levels.items()
        ],
    }
