"""Metrics of predictions against measurements, in one registry, and what they are made of: ranks,
rank correlations, and the pairs of rows that predictions have in their measured order.

A metric that is undefined for the given rows is ``None``, never 0 or NaN. Predictions of different
folds are never pooled as they are, because even the training mean of each fold would then correlate
with the labels: each fold is scored, and the scores are averaged (`score_folds`).

To add a metric, write its function and register it in `METRICS`. Scores, comparisons, tables and
the choices of ``--select`` all derive from the registry. Metrics of strong binders have plain names
there, and the threshold beside them in `ScoredRows`; their keys in scores and in ``--select`` have
both, as in ``recall_at_8.5`` (`metric_key`).

A censored row has a bound instead of a label: -1 if its pKd lies below the bound, +1 if above. It
counts only in `concordance`, in the pairs of rows with a known order, and in `beyond_bound`.

A label with a weight counts as so many rows, of a mean of 1; a pair of rows counts by the product.

N rows in G groups, of which E are exact; P pairs of a table; R tested pairs of a regime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abag.core.arrays import Floats, Ints, weights_of

if TYPE_CHECKING:
    from abag.head.labels.headers import Quantity
    from abag.head.labels.labelled_pairs import LabelledPairs


MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows are left out of the correlation within antigens. Of pairs of a
regime, a cell with fewer has no rank correlation of its own."""
FEWEST_RANKED = 3
"""Pairs below which nothing is ranked."""
TIED = 1e-12
"""Variance of ranks below which they are equal."""
LEVEL_DIGITS = 9
"""Digits of predictions whose means were taken off: those that were equal still are."""
LISTED_PAIRS = 1 << 20
"""Pairs of rows that are compared; of more pairs a quarter as many are drawn."""


def finite(value: float | np.floating) -> float | None:
    """Return a number, or None for infinity and NaN."""
    return float(value) if np.isfinite(value) else None


def _mean(values: NDArray[Any], weight: Floats | None) -> float:
    """Return the mean of N values, in which each counts by its weight, (N,)."""
    return float(values.mean() if weight is None else np.average(values, weights=weight))


def _sd(values: Floats, weight: Floats | None) -> float:
    return float(np.sqrt(_mean(np.square(values - _mean(values, weight)), weight)))


def pearson(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Compute the linear correlation, shape (N,) each; None below two rows or for constants."""
    if len(pkd) < 2 or np.ptp(pkd) == 0 or np.ptp(predicted) == 0:
        return None
    y = pkd - _mean(pkd, weight)
    p = predicted - _mean(predicted, weight)
    if weight is not None:
        y = y * np.sqrt(weight)
        p = p * np.sqrt(weight)
    norm = float(np.linalg.norm(y) * np.linalg.norm(p))
    if norm == 0:  # weights leave constants
        return None
    correlation = float(y @ p) / norm
    return finite(min(max(correlation, -1.0), 1.0))  # rounding may exceed 1


def ranks(values: NDArray[np.generic], weight: Floats | None = None) -> Floats:
    """Rank like ``scipy.stats.rankdata`` in half the time; the rank of NaN is NaN."""
    _, run, counts = np.unique(values, return_inverse=True, return_counts=True)
    size = counts if weight is None else np.bincount(run, weight)
    mean_rank = np.cumsum(size) - (size - 1) / 2  # of each run of equal values
    return np.where(np.isnan(values), np.nan, mean_rank[run])


class Order:
    """Hold the order of N values within groups, to sum what stands below or above each of them."""

    def __init__(self, values: NDArray[np.generic], group: Ints) -> None:
        self._group = group
        self._rows = np.lexsort((values, group))
        ordered = values[self._rows]
        is_new = np.ones(len(ordered), np.bool_)  # a run of ties begins
        is_new[1:] = (ordered[1:] != ordered[:-1]) | (np.diff(group[self._rows]) != 0)
        self._first = np.flatnonzero(is_new)
        self._run = np.cumsum(is_new) - 1

    def below(self, value: Floats) -> Floats:
        """Add up values of the rows of a group that are below each row, and half of its ties."""
        of_run = np.add.reduceat(value[self._rows], self._first)
        of_group = np.bincount(self._group, value)
        group_of_run = self._group[self._rows[self._first]]
        before = np.cumsum(of_run) - of_run - (np.cumsum(of_group) - of_group)[group_of_run]
        below = np.empty(len(value))
        below[self._rows] = (before + of_run / 2)[self._run]
        return below

    def above(self, value: Floats) -> Floats:
        """Do as `below` of the rows above."""
        return np.bincount(self._group, value)[self._group] - self.below(value)


class RanksByGroup:
    """Rank N labels within G groups, to correlate several predictions with them."""

    def __init__(self, pkd: Floats, group: Ints, weight: Floats | None = None) -> None:
        _, self._group, self._rows = np.unique(group, return_inverse=True, return_counts=True)
        self._weight = np.ones(len(pkd)) if weight is None else weight
        self._size = np.bincount(self._group, self._weight)
        self._pkd = self._centred_ranks(pkd)

    def spearman(self, predicted: Floats) -> Floats:
        """Correlate the ranks of predictions, (N,), and labels in each group, (G,), by its number.

        Constant predictions have 0, not NaN, as too few rows and constant labels have: else a model
        that is constant for most antigens would be scored on the others only.
        """
        y = self._pkd
        p = self._centred_ranks(predicted)
        covariance = self._sum_groups(y * p)
        label_variance = self._sum_groups(y * y)
        scale = np.sqrt(label_variance * self._sum_groups(p * p))
        correlation = np.clip(covariance / np.where(scale > 0, scale, 1.0), -1, 1)
        defined = (self._rows >= MIN_ROWS_PER_ANTIGEN) & (label_variance > 0) & np.isfinite(scale)
        return np.where(defined, correlation, np.nan)

    def _sum_groups(self, values: Floats) -> Floats:
        sums = np.bincount(self._group, values * self._weight, len(self._size))
        return np.asarray(sums, np.float64)

    def _centred_ranks(self, values: Floats) -> Floats:
        """Rank each value within its group, with mean ranks for ties, minus the mean rank."""
        rank = Order(values, self._group).below(self._weight)
        return np.where(np.isnan(values), np.nan, rank - self._size[self._group] / 2)


class RankValues(NamedTuple):
    """Hold rank correlations, and what each of R pairs adds to them; all of shape (R,)."""

    unit: Ints
    """What a pair is ranked in, see `rank_units`; -1 of pairs that are not ranked."""
    correlation: Floats
    """Spearman correlation of its unit; NaN of pairs that are not ranked."""
    influence: Floats
    """By how much the correlation grows with the weight of the pair, with mean 0 in a unit."""
    shortfall: Floats
    """By how much the correlation of so few pairs is expected to be below that of many."""


def rank_units(cell: Ints, sequence: Ints) -> Ints:
    """Number the sets of pairs within which pairs are ranked, (R,); -1 where nothing is.

    Only pairs of one cell are compared: those of one fold, and of one antigen or antibody where one
    is held fixed. Labels and predictions of two folds differ in level, because each fold learns
    from the labels that the others test: pooled as they are, even training means would be ranked,
    in the wrong order. A cell of `MIN_ROWS_PER_ANTIGEN` pairs is a unit. Smaller ones would leave
    most pairs of many tables unranked, and their correlations are coarse and too small: so cells of
    one `sequence`, (R,), are pooled once the mean of each cell is taken off its labels and
    predictions, and the cells of sequences that have too few pairs for that are pooled together.
    """
    _, dense, size = np.unique(cell, return_inverse=True, return_counts=True)
    of_cell = size[dense]
    unit = np.where(of_cell >= MIN_ROWS_PER_ANTIGEN, dense, -1)
    is_pooled = (of_cell >= 2) & (of_cell < MIN_ROWS_PER_ANTIGEN)
    if not is_pooled.any():
        return unit
    _, number, pairs = np.unique(sequence[is_pooled], return_inverse=True, return_counts=True)
    rest = len(size) + len(pairs)
    unit[is_pooled] = np.where(pairs[number] >= MIN_ROWS_PER_ANTIGEN, len(size) + number, rest)
    if np.count_nonzero(unit == rest) < FEWEST_RANKED:
        unit[unit == rest] = -1
    return unit


def rank_values(
    predicted: Floats,
    pkd: Floats,
    cell: Ints,
    sequence: Ints,
    weight: Floats | None,
) -> RankValues:
    """Return the Spearman correlation of each unit of `rank_units`, and what pairs add to it.

    Pairs with a weight, (R,), count as so many pairs. Units of equal labels are not ranked; equal
    predictions have a correlation of 0. The influence of a pair is the derivative of the
    correlation by its weight: of the product of ranks, of both variances, and of the ranks of all
    others.

    References
    ----------
    Croux and Dehon, Statistical Methods & Applications 19, 2010, for the influence function;
    Hoeffding, Annals of Mathematical Statistics 19, 1948, for the expectation in small samples.
    """
    nowhere = np.full(len(pkd), np.nan)
    unit = rank_units(cell, sequence)
    rows = np.flatnonzero(unit >= 0)
    _, dense = np.unique(unit[rows], return_inverse=True)
    _, cell_of_row = np.unique(cell[rows], return_inverse=True)
    w = np.ones(len(rows)) if weight is None else weight[rows]
    within = _Within(dense, cell_of_row, w)
    x = within.ranked(predicted[rows])
    y = within.ranked(pkd[rows])
    length = np.sqrt(x.variance * y.variance)  # 0 if predictions are equal: they rank nothing
    scale = np.where(length > 0, length, 1.0)
    correlation = np.clip(within.mean(x.rank * y.rank) / scale, -1, 1) * (length > 0)
    product = x.rank * y.rank + x.order.above(w * y.rank) + y.order.above(w * x.rank)
    influence = (product - within.mean(product)) / scale
    for ranked in (x, y):
        square = np.square(ranked.rank) + 2 * ranked.order.above(w * ranked.rank)
        relative = (square - within.mean(square)) / np.where(length > 0, ranked.variance, 1.0)
        influence -= correlation / 2 * relative
    is_ranked = y.variance > 0
    result = RankValues(unit.copy(), nowhere, np.zeros(len(pkd)), np.zeros(len(pkd)))
    result.unit[rows[~is_ranked]] = -1
    rows = rows[is_ranked]
    result.correlation[rows] = correlation[is_ranked]
    result.influence[rows] = np.where(length > 0, influence, 0.0)[is_ranked]
    shortfall = _shortfall(correlation, within.informative)
    result.shortfall[rows] = shortfall[is_ranked]
    return result


def _shortfall(correlation: Floats, pairs: Floats) -> Floats:
    """Return by how much sample correlations are below those of many pairs, if labels are normal.

    The expectation of a sample's is 3 (tau - rho) / (n + 1) above rho, and tau follows from rho.
    """
    tau = 2 / np.pi * np.arcsin(np.clip(2 * np.sin(np.pi * correlation / 6), -1, 1))
    return np.asarray(3 * (correlation - tau) / (pairs + 1))


class _Ranked(NamedTuple):
    """Hold the ranks of one column within units, (R,) each."""

    rank: Floats
    """Mean rank of ties, minus the mean rank of the cell."""
    variance: Floats
    """Of the ranks of its unit."""
    order: Order


@dataclass(frozen=True, slots=True)
class _Within:
    """Take means of R rows within units, which consist of cells."""

    unit: Ints
    cell: Ints
    weight: Floats

    def mean(self, value: Floats, group: Ints | None = None) -> Floats:
        """Return the weighted mean of the group of each row, or of its unit."""
        group = self.unit if group is None else group
        total = np.bincount(group, self.weight * value) / np.bincount(group, self.weight)
        return np.asarray(total[group])

    @property
    def informative(self) -> Floats:
        """Return the effective number of pairs of the unit of each row."""
        total = np.bincount(self.unit, self.weight)
        return np.asarray((np.square(total) / np.bincount(self.unit, self.weight**2))[self.unit])

    def ranked(self, value: Floats) -> _Ranked:
        """Rank values within units; where a unit has several cells, less the mean of each."""
        first_cell = np.full(int(self.unit.max(initial=-1)) + 1, -1)
        first_cell[self.unit] = self.cell
        is_mixed = np.zeros(len(first_cell), np.bool_)
        is_mixed[self.unit[first_cell[self.unit] != self.cell]] = True
        aligned = np.where(is_mixed[self.unit], value - self.mean(value, self.cell), value)
        order = Order(np.round(aligned, LEVEL_DIGITS), self.unit)
        rank = order.below(self.weight)
        rank -= self.mean(rank, self.cell)
        variance = self.mean(np.square(rank))
        # weights leave rounding errors in ranks that are all tied
        variance[variance < TIED] = 0.0
        return _Ranked(rank, variance, order)


class KnownOrder:
    """Hold the pairs of N rows whose labels have a known order, to score several predictions.

    Row i is known to be below row j if ``below[i] <= above[j]``. Of more than `most_listed` pairs,
    a quarter as many are drawn.
    """

    def __init__(
        self, below: Floats | Ints, above: Floats | Ints, *, most_listed: int = LISTED_PAIRS
    ) -> None:
        order = np.argsort(below, kind="stable")
        end = np.searchsorted(below[order], above, "right")  # row k is above the rows order[:end]
        last = np.cumsum(end)
        self.pairs = int(end.sum())
        listed = np.arange(self.pairs) if self.pairs <= most_listed else None
        if listed is None:  # a million rows have too many; the share is right to three digits
            listed = np.random.default_rng(0).integers(self.pairs, size=most_listed // 4)
        high = np.searchsorted(last, listed, "right")
        self._high = high
        self._low = order[end[high] - (last[high] - listed)]

    def share_right(self, predicted: Floats, weight: Floats | None = None) -> float | None:
        """Return the share of the pairs that predictions, (N,), have in this order.

        Predicted ties count half; None without pairs.
        """
        if not self.pairs:
            return None
        low, high, right = self.compare(predicted)
        return _mean(right, None if weight is None else weight[low] * weight[high])

    def compare(self, predicted: Floats) -> tuple[Ints, Ints, Floats]:
        """Return the lower and the higher row of each listed pair, and 1 if predicted so, else 0.

        Predicted ties have one half.
        """
        difference = predicted[self._high] - predicted[self._low]
        right = (np.sign(difference) + 1) / 2
        return self._low, self._high, np.asarray(right, np.float64)


def decidable_pairs(pkd: Floats, censored: NDArray[np.int8]) -> KnownOrder:
    """Return the pairs of rows whose order labels and bounds, (N,), tell."""
    _, rank = np.unique(pkd, return_inverse=True)
    # Row i is below row j if upper[i] < lower[j]; a bound lies just beside its label.
    place = 3 * rank + np.sign(censored) + 1
    upper = np.where(censored > 0, np.iinfo(np.int64).max, place)
    lower = np.where(censored < 0, 0, place)
    return KnownOrder(upper, lower - 1)


Number: TypeAlias = float | int | None
Scores: TypeAlias = dict[str, Number]

STRONG_PKD = 9.0
"""Lowest pKd of a strong binder (Kd of 1 nM)."""
BUDGET_SHARE = 0.1
"""Share of the rows that can be picked for the next experiment."""
CONFIDENT_PKD = 1.0
"""Labels at least this far apart are in a known order, whatever the error of the assay.

References
----------
AbRank, arXiv 2506.17857: affinities compared in pairs that differ by more than a margin.
"""
ROUNDING = 1e-9
"""8.1 is at least 1 above 7.1 in floating point too."""


@dataclass(frozen=True)  # no slots: cached properties are kept in __dict__
class MeasuredRows:
    """Hold labels of N rows, and what follows from them alone, to score several predictions.

    `of` makes them from plain columns.
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
    every_weight: Floats | None = None
    """How much each row counts, of a mean of 1, shape (N,); None: all alike."""

    @classmethod
    def of(
        cls,
        pkd: ArrayLike,
        antigen: ArrayLike,
        censored: ArrayLike = 0,
        sign: int = 1,
        weight: Floats | None = None,
    ) -> MeasuredRows:
        """Convert columns, (N,); `pkd` has the bounds of censored rows."""
        y = np.asarray(pkd, np.float64)
        censoring = np.broadcast_to(np.asarray(censored, np.int8), y.shape)
        exact = censoring == 0
        return cls(y, censoring, y[exact], np.asarray(antigen, np.int64)[exact], sign, weight)

    def score(self, predicted: ArrayLike, strong_pkd: float | None = STRONG_PKD) -> Scores:
        """Compute all metrics of one of several predictions, shape (N,), for example of one fold.

        If any prediction is not finite, every metric is undefined, so that leaving out difficult
        rows cannot improve a score. The result has ``n`` rows, of which ``n_censored`` are
        censored, and the value of each entry of `METRICS`. Strong binders are found from
        `strong_pkd` too, if that is not the usual threshold. Without a threshold, the metrics of
        strong binders are None.
        """
        scores: Scores = {
            "n": len(self.every_pkd),
            "n_censored": int(np.count_nonzero(self.censored)),
        }
        usual = None if strong_pkd is None else STRONG_PKD
        for threshold in dict.fromkeys((usual, strong_pkd)):
            rows = ScoredRows.of(self, predicted, threshold)
            named = STRONG_PKD if threshold is None else threshold
            for name, metric in METRICS.items():
                if metric.has_threshold or threshold == usual:
                    scores[metric_key(name, named)] = metric.function(rows)
        return scores

    def score_one(self, key: str, predicted: ArrayLike) -> Number:
        """Compute only the metric with this key."""
        rows = ScoredRows.of(self, predicted, strong_threshold(key))
        return find_metric(key).function(rows)

    @cached_property
    def weight(self) -> Floats | None:
        """Return how much each of the exact rows counts, (E,)."""
        return None if self.every_weight is None else self.every_weight[self.censored == 0]

    @cached_property
    def pkd_ranks(self) -> Floats:
        """Rank the labels of the exact rows, (E,)."""
        return ranks(self.pkd, self.weight)

    @cached_property
    def within_antigen(self) -> RanksByGroup:
        """Rank the labels of the exact rows within each antigen."""
        return RanksByGroup(self.pkd, self.antigen, self.weight)

    @cached_property
    def decidable_pairs(self) -> KnownOrder:
        """Find the pairs of rows whose order labels and bounds tell."""
        return decidable_pairs(self.every_pkd, self.censored)

    @cached_property
    def confident_pairs(self) -> KnownOrder:
        """Find the pairs of exact rows that are at least `CONFIDENT_PKD` apart."""
        return KnownOrder(self.pkd + CONFIDENT_PKD - ROUNDING, self.pkd)


@dataclass(frozen=True)
class ScoredRows:
    """Hold labels of rows, one prediction of each, and the threshold of strong binders."""

    measured: MeasuredRows
    every_predicted: Floats
    """Predicted pKd of all rows, shape (N,)."""
    strong_pkd: float | None = STRONG_PKD
    """Lowest pKd of a strong binder; the highest value if lower ones are better. None: metrics of
    strong binders are undefined."""

    @classmethod
    def of(
        cls, measured: MeasuredRows, predicted: ArrayLike, strong_pkd: float | None = STRONG_PKD
    ) -> ScoredRows:
        """Join labels and predictions, (N,); there are no rows if a prediction is not finite."""
        every_predicted = np.asarray(predicted, np.float64)
        if not np.isfinite(every_predicted).all():
            return cls(NO_ROWS, NO_ROWS.every_pkd, strong_pkd)
        return cls(measured, every_predicted, strong_pkd)

    @property
    def pkd(self) -> Floats:
        """Return the labels of the exact rows, shape (E,)."""
        return self.measured.pkd

    @cached_property
    def predicted(self) -> Floats:
        """Return the predicted pKd of the exact rows, shape (E,)."""
        return np.asarray(self.every_predicted[self.measured.censored == 0])

    @property
    def strengths(self) -> tuple[Floats, Floats]:
        """Return labels and predictions of the exact rows, (E,) each, of which higher is better."""
        return self.measured.sign * self.pkd, self.measured.sign * self.predicted

    def spearman_within_antigen(self) -> float | None:
        """Return the median of the rank correlations within antigens; None if all are undefined."""
        values = self.measured.within_antigen.spearman(self.predicted)
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Describe a metric and the places that it appears in."""

    function: Callable[[ScoredRows], Number]
    label: str = ""
    """Heading of its column; empty: its key with spaces."""
    lower_is_better: bool = False
    has_threshold: bool = False
    """Whether it counts strong binders, from `ScoredRows.strong_pkd` on."""
    of_levelled_folds: bool = False
    """Whether folds are scored together: that of few strong binders is far above chance, whatever
    is predicted."""
    in_tables: bool = False
    """Shown in the report's tables of scores."""
    selectable: bool = False
    """Can be given to ``--select``."""
    unit: str = ""
    """``pKd`` if it has the unit of the labels; empty if it has none."""
    meaning: str = ""
    """What it measures, for tables."""


def selectable_metrics() -> list[str]:
    """List the keys of metrics that ``--select`` accepts, with the usual threshold."""
    return [metric_key(name) for name, metric in METRICS.items() if metric.selectable]


def metric_heading(key: str, quantity: Quantity) -> str:
    """Name a metric with its unit, for the labels' quantity such as pIC50."""
    metric = find_metric(key)
    unit = metric.unit and f" ({quantity})"
    return f"{metric.label or key.replace('_', ' ')}{unit}"


def is_better(key: str, value: float | None, best: float | None) -> bool:
    """Compare two scores of a metric; a defined score is better than an undefined one."""
    if value is None or best is None:
        return value is not None
    return value < best if find_metric(key).lower_is_better else value > best


def rmse(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Compute the root mean squared error in pKd units, shape (N,) each; None without rows."""
    return finite(np.sqrt(_mean((pkd - predicted) ** 2, weight))) if len(pkd) else None


def mae(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Compute the mean absolute error in pKd units, shape (N,) each; None without rows."""
    return finite(_mean(np.abs(pkd - predicted), weight)) if len(pkd) else None


def r2(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Compute the coefficient of determination, shape (N,) each; None for constant labels.

    It compares with the mean of these labels, as ``sklearn.metrics.r2_score`` does.
    """
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    count = 1.0 if weight is None else weight
    residual = np.sum(count * (pkd - predicted) ** 2)
    total = np.sum(count * (pkd - _mean(pkd, weight)) ** 2)
    return finite(1 - residual / total)


def calibration_slope(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Fit measured on predicted pKd, shape (N,) each; a slope below 1 means overconfidence."""
    if len(pkd) < 2 or np.ptp(predicted) == 0:
        return None
    deviation = predicted - _mean(predicted, weight)
    weighed = deviation if weight is None else deviation * weight
    return finite(float(weighed @ (pkd - _mean(pkd, weight)) / (weighed @ deviation)))


def beyond_bound(
    pkd: Floats, predicted: Floats, censored: NDArray[np.int8], weight: Floats | None
) -> float | None:
    """Compute the share of censored rows, (N,) each, whose prediction is not within its bound."""
    wrong = censored * (predicted - pkd) < 0
    is_bound = censored != 0
    of_bounds = None if weight is None else weight[is_bound]
    return finite(_mean(wrong[is_bound], of_bounds)) if censored.any() else None


def spread_ratio(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Compare the standard deviation of predicted and measured pKd, (N,); None for constants."""
    if not len(pkd) or np.ptp(pkd) == 0:
        return None
    return finite(_sd(predicted, weight) / _sd(pkd, weight))


def top_enrichment(pkd: Floats, predicted: Floats, weight: Floats | None = None) -> float | None:
    """Count the strongest tenth in the predicted tenth, relative to chance.

    Predicted ties at the cut share the last places; measured ties all count as strongest.
    """
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    budget: float = max(1, round(BUDGET_SHARE * len(pkd)))
    if weight is not None:
        budget = BUDGET_SHARE * weight.sum()
    strongest = pkd >= _cut(pkd, budget, weight)
    precision = _expected_hits(strongest, predicted, budget, weight) / budget
    return finite(precision / _mean(strongest, weight))


def _recall(
    pkd: Floats, predicted: Floats, threshold: float, weight: Floats | None
) -> float | None:
    strong = pkd >= threshold
    of_strong = None if weight is None else weight[strong]
    return _mean(predicted[strong] >= threshold, of_strong) if strong.any() else None


def _precision(
    pkd: Floats, predicted: Floats, threshold: float, weight: Floats | None = None
) -> float | None:
    return _recall(predicted, pkd, threshold, weight)  # of those picked, which are strong


def _average_precision(
    pkd: Floats, predicted: Floats, threshold: float, weight: Floats | None = None
) -> float | None:
    return average_precision(pkd >= threshold, predicted, weight)


def average_precision(
    strong: NDArray[np.bool_], predicted: Floats, weight: Floats | None = None
) -> float | None:
    """Average the precision over strong binders in order of prediction; ties go together.

    Both have shape (N,); None without strong binders. Equal to
    ``sklearn.metrics.average_precision_score``.
    """
    if not strong.any():
        return None
    count = np.ones(len(strong)) if weight is None else weight
    hits, picked, _ = hits_by_cutoff(strong, predicted, count)
    precision_of_new_hits = np.diff(hits, prepend=0) * hits / picked
    return finite(np.sum(precision_of_new_hits) / hits[-1])


def hits_by_cutoff(
    strong: NDArray[np.bool_] | Floats, predicted: Floats, weight: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return weights of strong and of all rows from each cut-off on, and it, the highest first.

    `strong`, (N,), is whether a row is strong, or how probably.
    """
    order = np.argsort(-predicted, kind="stable")
    falling = predicted[order]
    # ties go together: no cut-off divides equal predictions
    last = np.flatnonzero(np.append(np.diff(falling) != 0, True))
    hits = np.cumsum(strong[order] * weight[order])[last]
    return hits, np.cumsum(weight[order])[last], falling[last]


def _cut(values: Floats, budget: float, weight: Floats | None) -> float:
    """Return the value from which on the highest of N values fill a budget of their weights."""
    order = np.argsort(-values, kind="stable")
    filled = np.arange(1, len(order) + 1) if weight is None else np.cumsum(weight[order])
    at = np.searchsorted(filled, budget * (1 - ROUNDING))
    return float(values[order[min(int(at), len(order) - 1)]])


def _expected_hits(
    strong: NDArray[np.bool_], predicted: Floats, budget: float, weight: Floats | None
) -> float:
    """Count strong binders among the ``budget`` best predictions; ties at the cut share places."""
    count = np.ones(len(strong)) if weight is None else weight
    cut = _cut(predicted, budget, weight)
    above = predicted > cut
    tied = predicted == cut
    share = (budget - count[above].sum()) / count[tied].sum()
    return float(count[above & strong].sum() + share * count[tied & strong].sum())


def average_folds(folds: Sequence[Scores]) -> dict[str, float | None]:
    """Average each metric over the folds in which it is defined."""
    means: dict[str, float | None] = {}
    for name in folds[0] if folds else ():
        scores = [fold[name] for fold in folds]
        values = [value for value in scores if value is not None]
        means[name] = float(np.mean(values)) if values else None
    return means


def level_folds(predicted: Floats, fold: Ints, weight: Floats | None) -> Floats:
    """Take the mean of each fold off its predictions, (N,), which are then scored together."""
    _, fold = np.unique(fold, return_inverse=True)
    count = np.ones(len(predicted)) if weight is None else weight
    level = np.bincount(fold, count * predicted) / np.bincount(fold, count)
    return np.asarray(np.round(predicted - level[fold], LEVEL_DIGITS))


def score_folds(folds: Sequence[MeasuredRows], predicted: Sequence[ArrayLike], key: str) -> Number:
    """Score predictions of several folds, (N,) each, by the metric with this key.

    It is the mean over the folds in which it is defined, or that of levelled folds together,
    without those of which a prediction is not finite.
    """
    by_fold = [*zip(folds, predicted, strict=True)]
    if not find_metric(key).of_levelled_folds:
        scores = [{key: labels.score_one(key, of_fold)} for labels, of_fold in by_fold]
        return average_folds(scores)[key]
    rows = [ScoredRows.of(*of_fold) for of_fold in by_fold]
    measured = [of_fold.measured for of_fold in rows]
    fold = np.repeat(np.arange(len(rows)), [len(labels.pkd) for labels in measured])
    weights = [labels.weight for labels in measured if labels.weight is not None]
    weight = np.concatenate(weights) if weights else None
    pkd = np.concatenate([labels.pkd for labels in measured])
    levelled = level_folds(np.concatenate([of_fold.predicted for of_fold in rows]), fold, weight)
    return MeasuredRows.of(pkd, fold, sign=folds[0].sign, weight=weight).score_one(key, levelled)


def _single(
    function: Callable[[Floats, Floats, Floats | None], Number],
    **flags: Any,  # noqa: ANN401
) -> Metric:
    """Make a metric of a function of the labels, predictions and weights of exact rows."""

    def of_rows(rows: ScoredRows) -> Number:
        return function(rows.pkd, rows.predicted, rows.measured.weight)

    return Metric(function=of_rows, **flags)


def _strong(
    function: Callable[[Floats, Floats, float, Floats | None], float | None],
    **flags: Any,  # noqa: ANN401
) -> Metric:
    """Make a metric of strong binders; the third argument is the lowest strength of one."""

    def at_threshold(rows: ScoredRows) -> Number:
        if rows.strong_pkd is None:
            return None
        threshold = rows.measured.sign * rows.strong_pkd
        return function(*rows.strengths, threshold, rows.measured.weight)

    return Metric(function=at_threshold, selectable=True, has_threshold=True, **flags)


def metric_key(name: str, strong_pkd: float = STRONG_PKD) -> str:
    """Return the key of a metric in scores: its name, with the threshold if it has one."""
    # g: at_9, not at_9.0
    return f"{name}_at_{strong_pkd:.10g}" if METRICS[name].has_threshold else name


def split_key(key: str) -> tuple[str, float | None]:
    """Split a key such as ``recall_at_8.5`` into name and threshold; None if it has none."""
    name, separator, threshold = key.partition("_at_")
    has_threshold = separator and name in METRICS and METRICS[name].has_threshold
    if has_threshold and threshold.replace(".", "", 1).isdecimal():
        return name, float(threshold)
    return key, None


def find_metric(key: str) -> Metric:
    """Return the metric of `METRICS` with this key, whatever its threshold."""
    name, _ = split_key(key)
    return METRICS[name]


def strong_threshold(select: str, quantity: Quantity | None = None) -> float | None:
    """Return the pKd from which a binder is strong: that of the selecting metric, or the usual.

    Another quantity than an affinity has no usual threshold: None.
    """
    _, threshold = split_key(select)
    if threshold is not None:
        return threshold
    return STRONG_PKD if quantity is None or quantity.affinity else None


def rows_to_score(pairs: LabelledPairs, rows: Ints) -> MeasuredRows:
    """Return rows of pairs that several models predict.

    Metrics within antigen are of groups: an antigen, or the antigens of a cluster that have too few
    exact rows each.
    """
    _, antigen = np.unique(pairs.antigen[rows], return_inverse=True)
    exact_rows = np.bincount(antigen, pairs.censored[rows] == 0)
    few = exact_rows[antigen] < MIN_ROWS_PER_ANTIGEN
    cluster = (pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster)[rows]
    # clusters are numbered above the antigens
    groups = np.where(few, len(antigen) + cluster, antigen)
    weight = weights_of(pairs.share, rows)
    sign = pairs.quantity.sign
    return MeasuredRows.of(pairs.pkd[rows], groups, pairs.censored[rows], sign, weight)


METRICS: dict[str, Metric] = {
    "spearman_within_antigen": Metric(
        function=ScoredRows.spearman_within_antigen, label="Spearman within antigen",
        in_tables=True, selectable=True,
        meaning="Rank correlation of the antibodies of one antigen: the median over antigens with "
        "at least 5 exact rows. 1 is perfect, 0 is chance.",
    ),
    "spearman": Metric(
        function=lambda r: pearson(
            r.measured.pkd_ranks, ranks(r.predicted, r.measured.weight), r.measured.weight
        ),
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
    "recall": _strong(_recall),
    "precision": _strong(_precision),
    "average_precision": _strong(_average_precision, of_levelled_folds=True),
    "spread_ratio": _single(
        spread_ratio, in_tables=True,
        meaning="Standard deviation of the predictions relative to that of the labels. Below 1 "
        "predictions are shrunk toward the mean.",
    ),
    "top_enrichment": Metric(
        function=lambda rows: top_enrichment(*rows.strengths, rows.measured.weight),
        in_tables=True, selectable=True,
        meaning="How many times more of the strongest tenth are in the predicted tenth than by "
        "chance.",
    ),
    "pair_accuracy": Metric(
        function=lambda r: r.measured.confident_pairs.share_right(
            r.predicted, r.measured.weight
        ),
        in_tables=True, selectable=True,
        meaning="Share of the pairs of rows at least 1 unit apart that are predicted in the right "
        "order. 0.5 is chance.",
    ),
    "concordance": Metric(
        function=lambda r: r.measured.decidable_pairs.share_right(
            r.every_predicted, r.measured.every_weight
        ),
        in_tables=True,
        meaning="Share of all pairs of rows with a known order, censored ones included, that are "
        "predicted in that order. 0.5 is chance.",
    ),
    "beyond_bound": Metric(
        function=lambda rows: beyond_bound(
            rows.measured.every_pkd,
            rows.every_predicted,
            rows.measured.censored,
            rows.measured.every_weight,
        ),
        lower_is_better=True,
    ),
}  # fmt: skip
"""All metrics by plain name, in the order of the keys of scores."""
NO_ROWS = MeasuredRows.of([], [])
"""What is scored if a prediction is not finite."""
