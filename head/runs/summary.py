"""``summary.json``: what ``fit`` and ``evaluate`` return, and the same as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast, get_type_hints

from abag.core.files import FileDamaged, read_json
from abag.core.messages import align, counted
from abag.head.evaluation.metrics import Scores
from abag.head.evaluation.regime_scores import RegimeScore, describe_regimes
from abag.head.evaluation.strong import StrongSummary, describe_strong


class CurvePoint(TypedDict):
    """Scores of the first regime by the size of the training part."""

    share: float
    """Share of the training groups."""
    training_pairs: int
    """Mean over folds."""
    score: RegimeScore


class RegimeSummary(RegimeScore):
    """What is known of a measured regime."""

    folds: int
    weights: Mapping[str, float]
    """Weight of each part of the prediction, with sum 1."""
    spread: float
    noise: float
    """Residual noise in sigma, in pKd."""
    split: dict[str, Any]
    """Rows per part, clusters and leaks of the folds."""
    metrics: dict[str, Scores]
    """Scores on the test pairs, averaged over folds: of the ``head`` and of the baselines."""


class TableSummary(TypedDict):
    """What ``evaluate`` adds for another table."""

    source: str
    pairs: int
    in_training: dict[str, int]
    """How many pairs are in the training set, as a ``pair`` or by one of their sequences."""
    bias: float | None
    """Mean of predicted minus measured, in pKd, over exact rows."""
    far: int
    """Pairs that no measured regime covers."""
    regimes: list[RegimeScore]
    """Scores of the pairs of the table, by regime; the mean is that of the training labels."""
    metrics: Scores
    """Of all pairs of the table."""


class PredictionsSummary(TypedDict):
    """What ``evaluate`` adds for a file of predictions."""

    source: str
    regimes: list[RegimeScore]
    """Scores of these predictions."""
    verdicts: list[str]
    """Comparisons of the head with them, one per regime."""


class RunSummary(TypedDict):
    """Content of summary.json: what ``fit`` and ``evaluate`` return."""

    run: str
    regimes: list[RegimeSummary]
    """Those that were measured: the table that everybody should see."""
    not_measured: list[dict[str, str]]
    """The other regimes: ``regime``, its ``words``, and ``why`` the table does not allow it."""
    warnings: list[str]
    steps: int
    epochs: int
    """Of the networks that were fitted to all pairs; 0 without networks."""
    seconds: float
    resumed_from_step: int | None
    used: dict[str, Any]
    """Settings that the run chose itself; several values if folds differ."""
    data: dict[str, str | int]
    """The table's ``source``, how many ``pairs``, ``antibodies`` and ``antigens`` it has, and the
    ``quantity`` of its labels, such as pKd or pIC50."""
    noise: float | None
    counts: Mapping[str, int]
    strong: StrongSummary
    """How well strong binders are found; strong is 9.0, or the threshold of ``--select``."""
    learning_curve: NotRequired[list[CurvePoint]]
    """Only with ``--learning-curve``; the last point is the run itself."""
    table: NotRequired[TableSummary]
    predictions: NotRequired[PredictionsSummary]
    strong_at: NotRequired[StrongSummary]
    """The same for ``evaluate --strong``; of the table, if one is given."""


def read_summary(run: Path) -> RunSummary:
    """Read the summary of a finished run.

    Raises
    ------
    FileDamaged
        If it is damaged.
    OSError
        If it cannot be read.
    """
    path = run / "summary.json"
    found = read_json(path)
    needed = get_type_hints(RunSummary).keys() - {
        "learning_curve", "table", "predictions", "strong_at",
    }  # fmt: skip
    if missing := sorted(needed - found.keys()):
        msg = f"{path}: {missing[0]} is missing. Copy the whole run folder again."
        raise FileDamaged(msg)
    return cast("RunSummary", found)


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: of another table first, if given."""
    quantity, lines = summary["data"]["quantity"], list[str]()
    if "table" in summary:
        found = summary["table"]
        lines += [f"{found['source']}:", *_describe_regimes(found["regimes"], quantity)]
        if found["far"]:
            lines.append(
                f"{counted(found['far'], 'pair')} outside training data: no measured row of the "
                "run's table covers such pairs"
            )
        if found["bias"] is not None:
            side = "high" if found["bias"] > 0 else "low"
            amount = f"{abs(found['bias']):.2f} {quantity}"
            lines.append(f"predictions are {amount} too {side} on average")
    if "predictions" in summary:
        found = summary["predictions"]
        lines += [f"{found['source']}:", *_describe_regimes(found["regimes"], quantity)]
        lines += found["verdicts"]
    if "strong_at" in summary:
        lines += ["", *describe_strong(summary["strong_at"])]
    if lines:
        lines += ["", f"{summary['run']}, cross-validated:"]
    return "\n".join([*lines, *_describe_regimes(summary["regimes"], quantity)])


def describe_fit(summary: Mapping[str, Any]) -> str:
    """Describe a finished fit: the table that everybody should see, and what it means."""
    lines = _describe_data(summary)
    lines += _describe_regimes(summary["regimes"], summary["data"]["quantity"])
    lines += [f"{one['words']}: {one['why']}" for one in summary["not_measured"]]
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    return "\n".join(lines + [f"{n:10} {path}" for n, path in places.items() if path.exists()])


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit for a notebook: verdicts, problems, then the table."""
    head, *rows = describe_regimes(summary["regimes"], summary["data"]["quantity"])
    return [
        *_describe_data(summary),
        *(one["sentence"] for one in summary["regimes"]),
        *summary["warnings"],
        *align([head, *rows]),
    ]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    data = summary["data"]
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')} and {counted(data['antigens'], 'antigen')}"
    ]


def _describe_regimes(regimes: Sequence[Mapping[str, Any]], quantity: str) -> list[str]:
    """Lay out scores with a column per regime, which fits into a terminal, and the verdicts."""
    if not regimes:
        return ["too few pairs of any kind to score"]
    head, *rows = describe_regimes(regimes, quantity)
    words = [row[0].partition(", ") for row in rows]
    above = ["", *(first + comma.strip() for first, comma, _ in words)]
    below = ["", *(second for *_, second in words)]
    cells = [list(line) for line in zip(head[1:], *(row[1:] for row in rows), strict=True)]
    table = [above, *([below] if any(below) else []), *cells]
    return [*align(table), *(one["sentence"] for one in regimes)]
