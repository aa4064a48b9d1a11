"""Metrics of predictions against measurements, in one registry.

A metric that is undefined for the given rows is ``None``, never 0 or NaN. Predictions of different
folds are never pooled, because even the training mean of each fold would then correlate with the
labels: score each fold and average the scores (`average_folds`).

To add a metric, write its function and register it in `METRICS`. Scores, comparisons, tables and
the choices of ``--select`` all derive from the registry.

A censored row has a bound instead of a label: -1 if its pKd lies below the bound, +1 if above. It
counts only in `concordance`, in the pairs of rows with a known order, and in `beyond_bound`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abag.core.arrays import Floats, Ints
from abag.head.evaluation.ranking import (
    ConfidentPairs,
    KnownOrder,
    RanksByGroup,
    concordance,
    decidable_pairs,
    finite,
    pearson,
    ranks,
)

Number: TypeAlias = float | int | None
Scores: TypeAlias = dict[str, Number]

STRONG_PKD = 9.0
"""Lowest pKd of a strong binder (Kd of 1 nM)."""
BUDGET_SHARE = 0.1
"""Share of the rows that can be picked for the next experiment."""


class FoldAverage(TypedDict):
    """A metric over the ``n`` folds in which it is defined."""

    mean: float | None
    sd: float | None
    """Standard deviation; None with fewer than two folds."""
    n: int


@dataclass(frozen=True)
class MeasuredRows:
    """Labels of N rows, and what follows from them alone; `score` scores any number of predictions.

    `of` makes one from plain columns.
    """

    every_pkd: Floats
    """Label or bound of all rows, shape (N,)."""
    censored: NDArray[np.int8]
    """Shape (N,); see the top of this file."""
    pkd: Floats
    """Labels of the E exact rows, shape (E,)."""
    antigen: Ints
    """Antigen of each exact row, shape (E,)."""

    @classmethod
    def of(cls, pkd: ArrayLike, antigen: ArrayLike, censored: ArrayLike = 0) -> MeasuredRows:
        """Convert columns as `score` takes them."""
        y = np.asarray(pkd, np.float64)
        censoring = np.broadcast_to(np.asarray(censored, np.int8), y.shape)
        exact = censoring == 0
        return cls(y, censoring, y[exact], np.asarray(antigen, np.int64)[exact])

    def score(self, predicted: ArrayLike) -> Scores:
        """Compute what `score` does, for one of several predictions, shape (N,)."""
        rows = ScoredRows.of(self, predicted)
        return {
            "n": len(self.every_pkd),
            "n_censored": int(np.count_nonzero(self.censored)),
            **{name: metric.function(rows) for name, metric in METRICS.items()},
        }

    def score_one(self, name: str, predicted: ArrayLike) -> Number:
        """Compute only the metric `name`."""
        return METRICS[name].function(ScoredRows.of(self, predicted))

    @cached_property
    def pkd_ranks(self) -> Floats:
        return ranks(self.pkd)

    @cached_property
    def within_antigen(self) -> RanksByGroup:
        return RanksByGroup.of(self.pkd, self.antigen)

    @cached_property
    def decidable_pairs(self) -> KnownOrder:
        return decidable_pairs(self.every_pkd, self.censored)

    @cached_property
    def confident_pairs(self) -> ConfidentPairs:
        return ConfidentPairs(self.pkd, self.antigen)


@dataclass(frozen=True)
class ScoredRows:
    """Labels of rows and one prediction of each."""

    measured: MeasuredRows
    every_predicted: Floats
    """Predicted pKd of all rows, shape (N,)."""

    @classmethod
    def of(cls, measured: MeasuredRows, predicted: ArrayLike) -> ScoredRows:
        """Join labels and predictions; drop all rows if a prediction is not finite."""
        p = np.asarray(predicted, np.float64)
        return cls(measured, p) if np.isfinite(p).all() else cls(NO_ROWS, NO_ROWS.every_pkd)

    @property
    def pkd(self) -> Floats:
        """Labels of the E exact rows, shape (E,)."""
        return self.measured.pkd

    @cached_property
    def predicted(self) -> Floats:
        """Predicted pKd of the exact rows, shape (E,)."""
        return np.asarray(self.every_predicted[self.measured.censored == 0])

    @property
    def antigen(self) -> Ints:
        """Antigen of each exact row, shape (E,)."""
        return self.measured.antigen

    @cached_property
    def within_antigen(self) -> Scores:
        return _quartiles(self.measured.within_antigen.spearman(self.predicted))

    @cached_property
    def strong_binders(self) -> Scores:
        return _strong_binders(self.pkd, self.predicted, STRONG_PKD)

    @cached_property
    def concordance(self) -> Scores:
        return concordance(self.measured.decidable_pairs, self.every_predicted)

    @cached_property
    def confident_pairs(self) -> Scores:
        return self.measured.confident_pairs.score(self.predicted)

    @cached_property
    def calibration(self) -> Scores:
        return calibration(self.pkd, self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric and the places it appears in."""

    function: Callable[[ScoredRows], Number]
    label: str = ""
    """Name in sentences; empty: the name with spaces."""
    lower_is_better: bool = False
    headline: bool = False
    """Logged for each validation in short, most important first."""
    in_tables: bool = False
    """Shown in tables of scores."""
    in_report: bool = False
    """Shown in the report's table, even if not in other tables."""
    selectable: bool = False
    """Can be given to ``--select``."""
    unit: str = ""
    """``pKd`` where the score is in units of the labels."""
    meaning: str = ""
    """What it measures, for tables."""


def headline_metrics() -> list[str]:
    """Names of the metrics that are shown in short, most important first."""
    return [name for name, metric in METRICS.items() if metric.headline]


def table_metrics(*, report: bool = False) -> list[str]:
    """Names of the metrics in tables of scores, or in the report's table."""
    return [n for n, metric in METRICS.items() if metric.in_tables or (report and metric.in_report)]


def selectable_metrics() -> list[str]:
    """Names that ``--select`` accepts."""
    return [name for name, metric in METRICS.items() if metric.selectable]


def metric_label(name: str) -> str:
    """Name of a metric for use in sentences and table headings."""
    return METRICS[name].label or name.replace("_", " ")


def metric_heading(name: str, quantity: str = "pKd") -> str:
    """Name of a metric with its unit, for the labels' quantity such as pIC50."""
    unit = METRICS[name].unit and f" ({quantity})"
    return f"{metric_label(name)}{unit}"


def direction(name: str) -> str:
    """Which values of a metric are better, in words."""
    return "lower is better" if METRICS[name].lower_is_better else "higher is better"


def is_better(name: str, value: float | None, best: float | None) -> bool:
    """Compare two scores of the metric `name`; a defined score is better than an undefined one."""
    if value is None or best is None:
        return value is not None
    return value < best if METRICS[name].lower_is_better else value > best


def score(
    pkd: ArrayLike,
    predicted: ArrayLike,
    antigen: ArrayLike,
    censored: ArrayLike = 0,
) -> Scores:
    """Compute all metrics for one set of predictions, for example one fold.

    Parameters
    ----------
    pkd : array_like, shape=(N,), dtype=float
        Measured pKd, or the bound of a censored row.
    predicted : array_like, shape=(N,), dtype=float
        Predicted pKd. If any value is not finite, every metric is undefined, so that leaving out
        difficult rows cannot improve a score.
    antigen : array_like, shape=(N,), dtype=int
        Number of each row's antigen.
    censored : array_like, shape=(N,), dtype=int, optional
        -1: the pKd is below ``pkd``; +1: above; 0: exact. One number applies to all rows.

    Returns
    -------
    dict
        ``n`` rows, of which ``n_censored`` are censored, and the value of each entry of `METRICS`.
    """
    return MeasuredRows.of(pkd, antigen, censored).score(predicted)


def rmse(pkd: Floats, predicted: Floats) -> float | None:
    """Root mean squared error in pKd units, shape (N,) each; None without rows."""
    return finite(np.sqrt(np.mean((pkd - predicted) ** 2))) if len(pkd) else None


def mae(pkd: Floats, predicted: Floats) -> float | None:
    """Mean absolute error in pKd units, shape (N,) each; None without rows."""
    return finite(np.abs(pkd - predicted).mean()) if len(pkd) else None


def r2(pkd: Floats, predicted: Floats) -> float | None:
    """Share of the variance explained, shape (N,) each; None for constant labels."""
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    return finite(1 - np.sum((pkd - predicted) ** 2) / np.sum((pkd - pkd.mean()) ** 2))


def _quartiles(values: Floats) -> Scores:
    values = values[np.isfinite(values)]
    quartiles = np.percentile(values, [50, 25, 75]).tolist() if len(values) else [None] * 3
    names = [f"spearman_within_antigen{suffix}" for suffix in ("", "_q25", "_q75")]
    return dict(zip(names, quartiles, strict=True)) | {"antigens_scored": len(values)}


def calibration(pkd: Floats, predicted: Floats) -> Scores:
    """Fit measured on predicted pKd, shape (N,) each; a slope below 1 means overconfidence."""
    if len(pkd) < 2 or np.ptp(predicted) == 0:
        return {"calibration_slope": None, "calibration_intercept": None}
    p = predicted - predicted.mean()
    slope = p @ (pkd - pkd.mean()) / (p @ p)
    intercept = pkd.mean() - slope * predicted.mean()
    return {"calibration_slope": finite(slope), "calibration_intercept": finite(intercept)}


def beyond_bound(pkd: Floats, predicted: Floats, censored: NDArray[np.int8]) -> float | None:
    """Share of the censored rows, (N,) each, whose prediction is not within their bound."""
    wrong = censored * (predicted - pkd) < 0
    return finite(wrong[censored != 0].mean()) if censored.any() else None


def spread_ratio(pkd: Floats, predicted: Floats) -> float | None:
    """Standard deviation of predicted relative to measured pKd, (N,) each; None for constants."""
    return finite(predicted.std() / pkd.std()) if len(pkd) and np.ptp(pkd) else None


def top_enrichment(pkd: Floats, predicted: Floats) -> float | None:
    """How many times more of the strongest tenth are in the predicted tenth than by chance.

    `pkd` and `predicted` have shape (N,). Predicted ties at the cut share the last places; measured
    ties all count as strongest. None for constant labels.
    """
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    budget = max(1, round(BUDGET_SHARE * len(pkd)))
    strongest = pkd >= np.sort(pkd)[-budget]
    return finite(_expected_hits(strongest, predicted, budget) / budget / strongest.mean())


def _strong_binders(pkd: Floats, predicted: Floats, threshold: float) -> Scores:
    strong, picked = pkd >= threshold, predicted >= threshold
    hits = np.count_nonzero(strong & picked)
    base = float(strong.mean()) if len(strong) else 0.0
    precision = hits / picked.sum() if picked.any() else None
    budget = max(1, round(BUDGET_SHARE * len(strong)))
    found = _expected_hits(strong, predicted, budget)
    return {
        "recall_at_9": hits / strong.sum() if strong.any() else None,
        "precision_at_9": precision,
        "average_precision_at_9": average_precision(strong, predicted),
        "enrichment_at_9": precision / base if precision is not None and base else None,
        "recall_at_9_budget": found / strong.sum() if strong.any() else None,
        "precision_at_9_budget": found / budget if len(strong) else None,
        "enrichment_at_9_budget": found / budget / base if base else None,
    }


def average_precision(strong: NDArray[np.bool_], predicted: Floats) -> float | None:
    """Mean precision over strong binders in order of prediction; ties are picked together.

    `strong` and `predicted` have shape (N,). The result is None without strong binders.
    """
    if not strong.any():
        return None
    order = np.argsort(-predicted, kind="stable")
    last = np.append(np.diff(predicted[order]) != 0, True)
    hits = np.cumsum(strong[order])[last]
    picked = np.flatnonzero(last) + 1
    return finite(np.sum(np.diff(hits, prepend=0) * hits / picked) / hits[-1])


def _expected_hits(strong: NDArray[np.bool_], predicted: Floats, budget: int) -> float:
    """Count strong binders among the ``budget`` best predictions; ties at the cut share places."""
    if not len(strong):
        return 0.0
    cut = np.sort(predicted)[-budget]
    above, tied = predicted > cut, predicted == cut
    share = (budget - above.sum()) / tied.sum()
    return float(strong[above].sum() + share * strong[tied].sum())


def average_folds(folds: Sequence[Scores]) -> dict[str, FoldAverage]:
    """Average each metric over the folds in which it is defined."""
    result: dict[str, FoldAverage] = {}
    for name in folds[0] if folds else ():
        values = [value for fold in folds if (value := fold[name]) is not None]
        result[name] = {
            "mean": float(np.mean(values)) if values else None,
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "n": len(values),
        }
    return result


def _joint(group: str, *names: str, **flags: Any) -> dict[str, Metric]:  # noqa: ANN401
    """Make metrics of the scores that a property of `ScoredRows` computes together."""

    def take(name: str) -> Callable[[ScoredRows], Number]:
        return lambda rows: getattr(rows, group)[name]

    return {name: Metric(function=take(name), **flags) for name in names}


def _single(function: Callable[[Floats, Floats], Number], **flags: Any) -> Metric:  # noqa: ANN401
    """Make a metric of a function of the labels and predictions of exact rows."""
    return Metric(function=lambda rows: function(rows.pkd, rows.predicted), **flags)


AT_THRESHOLD = r"(recall|precision|average_precision)_at_(\d{1,2}(?:\.\d{1,3})?)"
"""Names of metrics of strong binders for any threshold in pKd."""


class _Metrics(dict[str, Metric]):
    """Metrics by name; those of `AT_THRESHOLD` are made when they are asked for."""

    def __missing__(self, name: str) -> Metric:
        found = re.fullmatch(AT_THRESHOLD, name)
        if found is None:
            raise KeyError(name)
        what, threshold = found[1], float(found[2])
        return Metric(
            function=lambda rows: _strong_binders(rows.pkd, rows.predicted, threshold)[
                f"{what}_at_9"
            ]
        )


def strong_threshold(select: str) -> float:
    """Return the pKd from which a binder is strong: that of the selecting metric, or the usual."""
    found = re.fullmatch(AT_THRESHOLD, select)
    return STRONG_PKD if found is None else float(found[2])


METRICS: dict[str, Metric] = _Metrics({
    **_joint(
        "within_antigen", "spearman_within_antigen",
        label="Spearman within antigen", headline=True, in_tables=True, selectable=True,
        meaning="Rank correlation of the antibodies of one antigen: the median over antigens with "
        "at least 5 exact rows. 1 is perfect, 0 is chance.",
    ),
    **_joint(
        "within_antigen",
        "spearman_within_antigen_q25", "spearman_within_antigen_q75", "antigens_scored",
    ),
    "spearman": Metric(
        function=lambda r: pearson(r.measured.pkd_ranks, ranks(r.predicted)),
        label="Spearman", in_tables=True, headline=True, selectable=True,
        meaning="Rank correlation of predicted and measured values. 1 is perfect, 0 is chance.",
    ),
    "pearson": _single(
        pearson, label="Pearson", in_tables=True, selectable=True,
        meaning="Linear correlation of predicted and measured values. 1 is perfect, 0 is chance.",
    ),
    "rmse": _single(
        rmse, label="RMSE", in_tables=True, headline=True, selectable=True, lower_is_better=True,
        unit="pKd", meaning="Root of the mean squared error; large errors count most.",
    ),
    "mae": _single(
        mae, label="MAE", in_tables=True, selectable=True, lower_is_better=True, unit="pKd",
        meaning="Mean absolute error.",
    ),
    "r2": _single(
        r2, label="R2", in_tables=True,
        meaning="Share of the variance of the test labels that is explained. 0 or less is no "
        "better than their mean.",
    ),
    **_joint(
        "strong_binders", "recall_at_9", "precision_at_9", "average_precision_at_9",
        selectable=True,
    ),
    **_joint(
        "strong_binders", "enrichment_at_9",
        "recall_at_9_budget", "precision_at_9_budget", "enrichment_at_9_budget",
    ),
    "spread_ratio": _single(
        spread_ratio, in_report=True,
        meaning="Standard deviation of the predictions relative to that of the labels. Below 1 "
        "predictions are shrunk toward the mean.",
    ),
    "top_enrichment": _single(
        top_enrichment, in_report=True, selectable=True,
        meaning="How many times more of the strongest tenth are in the predicted tenth than by "
        "chance.",
    ),
    **_joint(
        "confident_pairs", "pair_accuracy", in_report=True, selectable=True,
        meaning="Share of the pairs of rows at least 1 unit apart that are predicted in the right "
        "order. 0.5 is chance.",
    ),
    **_joint("confident_pairs", "pair_accuracy_within_antigen", "confident_pairs"),
    **_joint(
        "concordance", "concordance", in_report=True,
        meaning="Share of all pairs of rows with a known order, censored ones included, that are "
        "predicted in that order. 0.5 is chance.",
    ),
    **_joint("concordance", "decidable_pairs"),
    "beyond_bound": Metric(
        function=lambda rows: beyond_bound(
            rows.measured.every_pkd, rows.every_predicted, rows.measured.censored
        ),
        lower_is_better=True,
    ),
    **_joint("calibration", "calibration_slope", "calibration_intercept"),
})  # fmt: skip
"""All metrics by name, in the order of the keys of `score`."""
NO_ROWS = MeasuredRows.of([], [])
"""What is scored if a prediction is not finite."""
