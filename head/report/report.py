"""The pages that people read: ``report.html`` of a run and the model card of its predictor.

Both are rendered from the files in ``templates``. The report is one self-contained page. The card
is not dated: the same run gives the same card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from abag.core.files import write_text
from abag.embed.families.registry import ALIASES
from abag.head.evaluation import comparison
from abag.head.evaluation.comparison import rank_metric
from abag.head.evaluation.metrics import metric_label, table_metrics
from abag.head.report.figures import draw_figures
from abag.head.report.results import ModelScores, RunResults, RunSummary
from abag.head.splits.splits import PART_NAMES, TEST, Split

MAX_FOLDS = 20
"""Folds listed in the table of parts."""
LICENCES = {name: alias.licence for name, alias in ALIASES.items()}
"""Licences of the encoders that abag knows by name."""


def write_report(path: Path, results: RunResults, scores: ModelScores) -> None:
    """Write the report of a run atomically; it needs no network and no scripts."""
    write_text(path, render(results, scores))


def render(results: RunResults, scores: ModelScores) -> str:
    """Return the report as HTML."""
    r = results
    counts = {
        "pairs": len(r.pairs.pkd),
        "unique antibodies": len(np.unique(r.pairs.antibody)),
        "unique antigens": len(np.unique(r.pairs.antigen)),
        "censored pairs": int(np.count_nonzero(r.pairs.censored)),
    }
    return _render_template(
        "report.html.j2",
        title=r.title,
        folds=len(r.splits),
        draws=comparison.DRAWS,
        verdicts=scores["verdicts"],
        warnings=scores["warnings"],
        scores=_score_table(r, scores),
        drawn=draw_figures(r),
        facts=[*r.facts.items(), *counts.items()],
        split=_split_tables(r.splits),
    )


def model_card(source: str, config: Mapping[str, object], summary: RunSummary) -> str:
    """Return the model card of a run on the table `source`, as Markdown."""
    scores = {"**this predictor**": summary["metrics"]["test"]}
    scores |= {name: parts["test"] for name, parts in summary["baselines"].items()}
    return _render_template(
        "model_card.md.j2",
        source=source,
        config=config,
        summary=summary,
        split=summary["split"],
        scores=scores,
        metrics=table_metrics(),
        metric_label=metric_label,
        licences=LICENCES,
    )


def _render_template(name: str, **values: object) -> str:
    """Render a file of ``templates``; values are escaped in HTML."""
    environment = Environment(
        loader=PackageLoader("abag.head.report", "templates"),
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _format_cell, "label": lambda name: name.replace("_", " ")}
    return environment.get_template(name).render(**values)


def _format_cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _score_table(r: RunResults, found: ModelScores) -> dict[str, Any]:
    """Scores of the head and each baseline, and their differences with intervals."""
    own = found["metrics"]["test"] or {}
    columns, compared = table_metrics(report=True), (rank_metric(own), "rmse")
    rows: list[list[object]] = [["head", *(own[c] for c in columns), "", ""]]
    for name, parts in found["baselines"].items():
        differences: list[str | None] = []
        for metric in compared:
            interval = r.compared_with(name, metric)
            text = None if interval is None else f"{interval.difference:+.2f}"
            for one, low, high in [] if interval is None else interval.known:
                unit = "" if one is interval else f" by {one.unit}"
                text = f"{text} [{low:+.2f}, {high:+.2f}]{unit}"
            differences.append(text)
        rows.append([name, *(parts["test"][c] for c in columns), *differences])
    head = ["", *map(metric_label, columns)]
    head += [f"head - baseline, {metric_label(metric)}" for metric in compared]
    test_rows = sum(len(split.rows(TEST)) for split in r.splits)
    return {"head": head, "rows": rows, "test_rows": test_rows}


def _split_tables(splits: Sequence[Split]) -> dict[str, Any] | None:
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
