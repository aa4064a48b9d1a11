"""A predictor's README.md: its data, test scores, limits and licences.

Everything comes from the files of the run and nothing is dated: the same run gives the same card.
"""

from __future__ import annotations

from collections.abc import Mapping

from abag.head.evaluation.metrics import metric_label, table_metrics
from abag.head.report.results import RunSummary
from abag.head.report.templating import render_template

LICENCES = {
    "igt5": "MIT (Exscientia/IgT5; Kenlay et al. 2024)",
    "igt5-unpaired": "MIT (Exscientia/IgT5_unpaired; Kenlay et al. 2024)",
    "antiberty": "MIT (AntiBERTy; Ruffolo et al. 2021)",
    "composition": "no weights: part of abag (MIT)",
    "tiny-igt5": "random weights made by abag: its vectors have no biological meaning",
    "tiny-esm2": "random weights made by abag: its vectors have no biological meaning",
} | {f"esm2-{size}": "MIT (ESM-2; Lin et al. 2023)" for size in ("8m", "35m", "150m", "650m", "3b")}
"""Licences of the encoders that abag knows by name."""


def model_card(source: str, config: Mapping[str, object], summary: RunSummary) -> str:
    """Return the card of a finished run.

    Parameters
    ----------
    source : str
        Name of the table.
    config : mapping
        Content of config.json.
    summary : RunSummary
        What `fit` returns.

    Returns
    -------
    str
        Markdown.
    """
    scores = {"**this predictor**": summary["metrics"]["test"]}
    scores |= {name: parts["test"] for name, parts in summary["baselines"].items()}
    return render_template(
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
