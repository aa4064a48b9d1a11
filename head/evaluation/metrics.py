"""Metrics of predictions against measurements, in one registry.

A metric that is undefined for the given rows is ``None``, never 0 or NaN. Predictions of different
folds are never pooled, because even the training mean of each fold would then correlate with the
labels: score each fold and average the scores (`average_folds`).

To add a metric, write its function and register it in `METRICS`. Scores, comparisons, tables and
the choices of ``--select`` all derive from the registry.

A censored row has a bound instead of a label: -1 if its pKd lies below the bound, +1 if above. It
counts only in `concordance`, in the pairs of rows with a known order, and in `beyond_bound`.

N rows, of which E are exact; P pairs of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abag.core.arrays import Floats, Ints

if TYPE_CHECKING:
    from abag.head.data.quantity import Quantity

Number: TypeAlias = float | int | None
Scores: TypeAlias = dict[str, Number]

STRONG_PKD = 9.0
"""Lowest pKd of a strong binder (Kd of 1 nM)."""
BUDGET_SHARE = 0.1
"""Share of the rows that can be picked for the next experiment."""
MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows are left out of the correlation within antigens."""
CONFIDENT_PKD = 1.0
"""Labels at least this far apart are in a known order, whatever the error of the assay.

References
----------
AbRank, arXiv 2506.17857: affinities compared in pairs that differ by more than a margin.
"""
ROUNDING = 1e-9
"""8.1 is at least 1 above 7.1 in floating point too."""
LISTED_PAIRS = 1 << 20
"""Pairs of rows that are compared; of more pairs a quarter as many are drawn."""


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
    """Labels of the exact rows, shape (E,)."""
    antigen: Ints
    """Antigen of each exact row, shape (E,)."""
    sign: int = 1
    """-1 if lower values are better."""

    @classmethod
    def of(
        cls, pkd: ArrayLike, antigen: ArrayLike, censored: ArrayLike = 0, sign: int = 1
    ) -> MeasuredRows:
        """Convert columns as `score` takes them."""
        y = np.asarray(pkd, np.float64)
        censoring = np.broadcast_to(np.asarray(censored, np.int8), y.shape)
        exact = censoring == 0
        return cls(y, censoring, y[exact], np.asarray(antigen, np.int64)[exact], sign)

    def score(self, predicted: ArrayLike, strong_pkd: float | None = STRONG_PKD) -> Scores:
        """Compute what `score` does, for one of several predictions, shape (N,).

        Strong binders are found from `strong_pkd` too, if that is not the usual threshold. Without
        a threshold, the metrics of strong binders are None.
        """
        rows = ScoredRows.of(self, predicted)
        if strong_pkd is None:
            used = {n: metric for n, metric in METRICS.items() if not AT_THRESHOLD.fullmatch(n)}
            none = dict.fromkeys(strong_metrics(STRONG_PKD))
        else:
            used = METRICS | strong_metrics(strong_pkd)
            none = {}
        return none | {
            "n": len(self.every_pkd),
            "n_censored": int(np.count_nonzero(self.censored)),
            **{name: metric.function(rows) for name, metric in used.items()},
        }

    def score_one(self, name: str, predicted: ArrayLike) -> Number:
        """Compute only the metric `name`."""
        return find_metric(name).function(ScoredRows.of(self, predicted))

    @cached_property
    def pkd_ranks(self) -> Floats:
        return ranks(self.pkd)

    @cached_property
    def within_antigen(self) -> RanksByGroup:
        return RanksByGroup(self.pkd, self.antigen)

    @cached_property
    def decidable_pairs(self) -> KnownOrder:
        return decidable_pairs(self.every_pkd, self.censored)

    @cached_property
    def confident_pairs(self) -> KnownOrder:
        return KnownOrder(self.pkd + CONFIDENT_PKD - ROUNDING, self.pkd)


@dataclass(frozen=True)
class ScoredRows:
    """Labels of rows and one prediction of each."""

    measured: MeasuredRows
    every_predicted: Floats
    """Predicted pKd of all rows, shape (N,)."""

    @classmethod
    def of(cls, measured: MeasuredRows, predicted: ArrayLike) -> ScoredRows:
        p = np.asarray(predicted, np.float64)
        return cls(measured, p) if np.isfinite(p).all() else cls(NO_ROWS, NO_ROWS.every_pkd)

    @property
    def pkd(self) -> Floats:
        return self.measured.pkd

    @cached_property
    def predicted(self) -> Floats:
        """Predicted pKd of the exact rows, shape (E,)."""
        return np.asarray(self.every_predicted[self.measured.censored == 0])

    @property
    def strengths(self) -> tuple[Floats, Floats]:
        """Labels and predictions of the exact rows, of which higher is better, shape (E,) each."""
        return self.measured.sign * self.pkd, self.measured.sign * self.predicted

    def spearman_within_antigen(self) -> float | None:
        values = self.measured.within_antigen.spearman(self.predicted)
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else None

    @cached_property
    def calibration(self) -> Scores:
        return calibration(self.pkd, self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric and the places it appears in."""

    function: Callable[[ScoredRows], Number]
    label: str = ""
    lower_is_better: bool = False
    in_tables: bool = False
    """Shown in the report's tables of scores."""
    selectable: bool = False
    """Can be given to ``--select``."""
    unit: str = ""
    meaning: str = ""
    """What it measures, for tables."""


def selectable_metrics() -> list[str]:
    """Names that ``--select`` accepts."""
    return [name for name, metric in METRICS.items() if metric.selectable]


def metric_heading(name: str, quantity: Quantity | str = "pKd") -> str:
    """Name of a metric with its unit, for the labels' quantity such as pIC50."""
    metric = find_metric(name)
    unit = metric.unit and f" ({quantity})"
    return f"{metric.label or name.replace('_', ' ')}{unit}"


def is_better(name: str, value: float | None, best: float | None) -> bool:
    """Compare two scores of the metric `name`; a defined score is better than an undefined one."""
    if value is None or best is None:
        return value is not None
    return value < best if find_metric(name).lower_is_better else value > best


def score(
    pkd: ArrayLike,
    predicted: ArrayLike,
    antigen: ArrayLike,
    censored: ArrayLike = 0,
) -> Scores:
    """Compute all metrics for one set of predictions, for example one fold; columns are (N,).

    `pkd` has the bounds of censored rows. If any prediction is not finite, every metric is
    undefined, so that leaving out difficult rows cannot improve a score. The result has ``n`` rows,
    of which ``n_censored`` are censored, and the value of each entry of `METRICS`.
    """
    return MeasuredRows.of(pkd, antigen, censored).score(predicted)


def rmse(pkd: Floats, predicted: Floats) -> float | None:
    """Root mean squared error in pKd units, shape (N,) each; None without rows."""
    return finite(np.sqrt(np.mean((pkd - predicted) ** 2))) if len(pkd) else None


def mae(pkd: Floats, predicted: Floats) -> float | None:
    """Mean absolute error in pKd units, shape (N,) each; None without rows."""
    return finite(np.abs(pkd - predicted).mean()) if len(pkd) else None


def r2(pkd: Floats, predicted: Floats) -> float | None:
    """Coefficient of determination, shape (N,) each; None for constant labels.

    It compares with the mean of these labels, as ``sklearn.metrics.r2_score`` does.
    """
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    return finite(1 - np.sum((pkd - predicted) ** 2) / np.sum((pkd - pkd.mean()) ** 2))


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

    Predicted ties at the cut share the last places; measured ties all count as strongest.
    """
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    budget = max(1, round(BUDGET_SHARE * len(pkd)))
    strongest = pkd >= np.sort(pkd)[-budget]
    return finite(_expected_hits(strongest, predicted, budget) / budget / strongest.mean())


def _recall(pkd: Floats, predicted: Floats, threshold: float) -> float | None:
    strong = pkd >= threshold
    return float((predicted[strong] >= threshold).mean()) if strong.any() else None


def _precision(pkd: Floats, predicted: Floats, threshold: float) -> float | None:
    picked = predicted >= threshold
    return float((pkd[picked] >= threshold).mean()) if picked.any() else None


def _average_precision(pkd: Floats, predicted: Floats, threshold: float) -> float | None:
    return average_precision(pkd >= threshold, predicted)


def average_precision(strong: NDArray[np.bool_], predicted: Floats) -> float | None:
    """Mean precision over strong binders in order of prediction; ties are picked together."""
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


def average_folds(folds: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """Average each metric over the ``n`` folds in which it is defined; ``sd`` needs two of them."""
    result: dict[str, dict[str, Any]] = {}
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


STRONG_METRICS: dict[str, Callable[[Floats, Floats, float], Number]] = {
    "recall": _recall,
    "precision": _precision,
    "average_precision": _average_precision,
}
"""Metrics of strong binders by name; the third argument is the lowest pKd of one."""
AT_THRESHOLD = re.compile(rf"({'|'.join(STRONG_METRICS)})_at_(\d{{1,2}}(?:\.\d{{1,3}})?)")
"""Names of these metrics with their threshold."""


def strong_metrics(threshold: float) -> dict[str, Metric]:
    """Return the metrics of binders of at least this pKd, by names such as ``recall_at_8.5``."""

    def at_threshold(function: Callable[[Floats, Floats, float], Number]) -> Metric:
        return Metric(
            function=lambda rows: function(*rows.strengths, rows.measured.sign * threshold),
            selectable=True,
        )

    return {
        f"{name}_at_{threshold:.10g}": at_threshold(function)
        for name, function in STRONG_METRICS.items()
    }


def find_metric(name: str) -> Metric:
    """Return a metric of `METRICS`, or one of strong binders from the pKd in its name."""
    if name in METRICS or AT_THRESHOLD.fullmatch(name) is None:
        return METRICS[name]
    return strong_metrics(strong_threshold(name))[usual_name(name)]


@overload
def strong_threshold(select: str) -> float: ...
@overload
def strong_threshold(select: str, quantity: Quantity) -> float | None: ...
def strong_threshold(select: str, quantity: Quantity | None = None) -> float | None:
    """Return the pKd from which a binder is strong: that of the selecting metric, or the usual.

    Another quantity than an affinity has no usual threshold: None.
    """
    found = AT_THRESHOLD.fullmatch(select)
    if found is not None:
        return float(found[2])
    return STRONG_PKD if quantity is None or quantity.affinity else None


def usual_name(name: str) -> str:
    """Return the name that scores have for a metric: ``recall_at_8.5`` for ``recall_at_8.50``."""
    found = AT_THRESHOLD.fullmatch(name)
    return name if found is None else f"{found[1]}_at_{float(found[2]):.10g}"


class MeasuredPairs(Protocol):
    """What scoring needs of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antibody(self) -> Ints: ...
    @property
    def antigen(self) -> Ints: ...
    @property
    def antigen_cluster(self) -> Ints | None: ...
    @property
    def quantity(self) -> Quantity: ...


def antigen_clusters(pairs: MeasuredPairs) -> Ints:
    """Return the cluster of each pair's antigen, (P,): the antigen if they were not clustered."""
    return pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster


def antigen_groups(pairs: MeasuredPairs, rows: Ints) -> Ints:
    """Group rows, (R,), for the metrics within antigen; the result has shape (R,).

    A group is an antigen, or the antigens of a cluster that have too few exact rows each.
    """
    antigen = np.unique(pairs.antigen[rows], return_inverse=True)[1]
    exact = np.bincount(antigen, pairs.censored[rows] == 0)
    few = exact[antigen] < MIN_ROWS_PER_ANTIGEN
    cluster = antigen_clusters(pairs)[rows]
    return np.where(few, len(antigen) + cluster, antigen)


def rows_to_score(pairs: MeasuredPairs, rows: Ints) -> MeasuredRows:
    """Return rows of pairs that several models predict."""
    groups = antigen_groups(pairs, rows)
    return MeasuredRows.of(pairs.pkd[rows], groups, pairs.censored[rows], pairs.quantity.sign)


# --- ranks, and pairs of rows in their measured order ---------------------------------------------


def finite(value: float | np.floating) -> float | None:
    """Return a number, or None for infinity and NaN."""
    return float(value) if np.isfinite(value) else None


def pearson(pkd: Floats, predicted: Floats) -> float | None:
    """Linear correlation, shape (N,) each; None below two rows or if one side is constant."""
    if len(pkd) < 2 or np.ptp(pkd) == 0 or np.ptp(predicted) == 0:
        return None
    y, p = pkd - pkd.mean(), predicted - predicted.mean()
    return finite(np.clip(y @ p / (np.linalg.norm(y) * np.linalg.norm(p)), -1, 1))


def spearman(pkd: Floats, predicted: Floats) -> float | None:
    """Rank correlation, shape (N,) each, mean ranks for ties; None if one side is constant."""
    return pearson(ranks(pkd), ranks(predicted))


def ranks(values: NDArray[np.generic]) -> Floats:
    """Rank like ``scipy.stats.rankdata`` in half the time; the rank of NaN is NaN."""
    _, run, size = np.unique(values, return_inverse=True, return_counts=True)
    return np.where(np.isnan(values), np.nan, (np.cumsum(size) - (size - 1) / 2)[run])


def spearman_by_group(pkd: Floats, predicted: Floats, group: Ints) -> Floats:
    """Compute `spearman` within each of G groups, (G,), in ascending order of their numbers.

    Constant predictions have 0, not NaN, as too few rows and constant labels have: else a model
    that is constant for most antigens would be scored on the others only.
    """
    return RanksByGroup(pkd, group).spearman(predicted)


class RanksByGroup:
    """Ranks of N labels within G groups, for `spearman_by_group` of several predictions."""

    def __init__(self, pkd: Floats, group: Ints) -> None:
        _, self._group, self._size = np.unique(group, return_inverse=True, return_counts=True)
        self._pkd = self._centred_ranks(pkd)

    def spearman(self, predicted: Floats) -> Floats:
        """Correlate predictions, (N,), with the labels in each group, (G,)."""
        y, p = self._pkd, self._centred_ranks(predicted)
        covariance, of_labels, of_predicted = (
            np.bincount(self._group, products, len(self._size))
            for products in (y * p, y * y, p * p)
        )
        scale = np.sqrt(of_labels * of_predicted)
        found = np.clip(covariance / np.where(scale > 0, scale, 1.0), -1, 1)
        defined = (self._size >= MIN_ROWS_PER_ANTIGEN) & (of_labels > 0) & np.isfinite(scale)
        return np.where(defined, found, np.nan)

    def _centred_ranks(self, values: Floats) -> Floats:
        """Rank each value within its group, with mean ranks for ties, minus the mean rank."""
        _, place = np.unique(values, return_inverse=True)
        before = np.cumsum(self._size) - self._size
        within = ranks(self._group * len(values) + place) - before[self._group]
        return np.where(np.isnan(values), np.nan, within - (self._size[self._group] + 1) / 2)


class KnownOrder:
    """Pairs of N rows whose labels have a known order, counted for any number of predictions.

    Row i is known to be below row j if ``below[i] <= above[j]``.
    """

    def __init__(self, below: Floats | Ints, above: Floats | Ints) -> None:
        order = np.argsort(below, kind="stable")
        end = np.searchsorted(below[order], above, "right")  # row k is above the rows order[:end]
        last = np.cumsum(end)
        self.pairs = int(end.sum())
        listed = np.arange(self.pairs) if self.pairs <= LISTED_PAIRS else None
        if listed is None:  # a million rows have too many; the share is right to three digits
            listed = np.random.default_rng(0).integers(self.pairs, size=LISTED_PAIRS // 4)
        k = np.searchsorted(last, listed, "right")
        self._high, self._low = k, order[end[k] - (last[k] - listed)]

    def share_right(self, predicted: Floats) -> float | None:
        """Return the share of the pairs that predictions, (N,), have in this order.

        Predicted ties count half; None without pairs.
        """
        if not self.pairs:
            return None
        difference = predicted[self._high] - predicted[self._low]
        return float((np.mean(difference > 0) + np.mean(difference >= 0)) / 2)


def decidable_pairs(pkd: Floats, censored: NDArray[np.int8]) -> KnownOrder:
    """Return the pairs of rows whose order labels and bounds, (N,), tell."""
    _, rank = np.unique(pkd, return_inverse=True)
    # Row i is below row j if upper[i] < lower[j]; a bound lies just beside its label.
    upper = np.where(censored > 0, np.iinfo(np.int64).max, 3 * rank + np.where(censored < 0, 0, 1))
    lower = np.where(censored < 0, 0, 3 * rank + np.where(censored > 0, 2, 1))
    return KnownOrder(upper, lower - 1)


METRICS: dict[str, Metric] = {
    "spearman_within_antigen": Metric(
        function=ScoredRows.spearman_within_antigen, label="Spearman within antigen",
        in_tables=True, selectable=True,
        meaning="Rank correlation of the antibodies of one antigen: the median over antigens with "
        "at least 5 exact rows. 1 is perfect, 0 is chance.",
    ),
    "spearman": Metric(
        function=lambda r: pearson(r.measured.pkd_ranks, ranks(r.predicted)),
        label="Spearman", in_tables=True, selectable=True,
        meaning="Rank correlation of predicted and measured values. 1 is perfect, 0 is chance.",
    ),
    "pearson": _single(
        pearson, label="Pearson", in_tables=True, selectable=True,
        meaning="Linear correlation of predicted and measured values. 1 is perfect, 0 is chance.",
    ),
    "rmse": _single(
        rmse, label="RMSE", in_tables=True, selectable=True, lower_is_better=True,
        unit="pKd", meaning="Root of the mean squared error; large errors count most.",
    ),
    "mae": _single(
        mae, label="MAE", in_tables=True, selectable=True, lower_is_better=True, unit="pKd",
        meaning="Mean absolute error.",
    ),
    "r2": _single(
        r2, label="R2", in_tables=True,
        meaning="Share of the variance of the test labels that is explained, as scikit-learn's "
        "r2_score. Below 0 their mean would be better.",
    ),
    **strong_metrics(STRONG_PKD),
    "spread_ratio": _single(
        spread_ratio, in_tables=True,
        meaning="Standard deviation of the predictions relative to that of the labels. Below 1 "
        "predictions are shrunk toward the mean.",
    ),
    "top_enrichment": Metric(
        function=lambda rows: top_enrichment(*rows.strengths), in_tables=True, selectable=True,
        meaning="How many times more of the strongest tenth are in the predicted tenth than by "
        "chance.",
    ),
    "pair_accuracy": Metric(
        function=lambda r: r.measured.confident_pairs.share_right(r.predicted),
        in_tables=True, selectable=True,
        meaning="Share of the pairs of rows at least 1 unit apart that are predicted in the right "
        "order. 0.5 is chance.",
    ),
    "concordance": Metric(
        function=lambda r: r.measured.decidable_pairs.share_right(r.every_predicted),
        in_tables=True,
        meaning="Share of all pairs of rows with a known order, censored ones included, that are "
        "predicted in that order. 0.5 is chance.",
    ),
    "beyond_bound": Metric(
        function=lambda rows: beyond_bound(
            rows.measured.every_pkd, rows.every_predicted, rows.measured.censored
        ),
        lower_is_better=True,
    ),
    **_joint("calibration", "calibration_slope", "calibration_intercept"),
}  # fmt: skip
"""All metrics by name, in the order of the keys of `score`."""
NO_ROWS = MeasuredRows.of([], [])
"""What is scored if a prediction is not finite."""
