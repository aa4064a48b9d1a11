"""Scores of models on the test part, and differences of two models, with bootstrap intervals.

Intervals come from a bootstrap over clusters of pairs, identical for both models. Whole groups of
the split are resampled, identically for all folds, and each fold is scored separately. Where
antigens occur in several groups (random, mutations, antibody ...), clusters of antigens are
resampled as well. Intervals are widened for few clusters, see `widening`. `verdicts` says what the
differences mean.

A sample is the number of times that each row occurs in it, so a score of D samples of R rows is a
few operations on a (D, R) matrix. `scorer` uses the entry of `VECTORISED` for its metric, or else
repeats the rows and scores each sample with the metric itself, which gives the same numbers.
A metric in `OF_MEAN_ERROR` needs only the sums over rows that are drawn together: `mean_errors`.
Counts are float64, because numpy multiplies no other type as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from abag.core.arrays import Floats, Ints, distinct
from abag.head.evaluation.metrics import BUDGET_SHARE, METRICS, MeasuredRows, Scores
from abag.head.evaluation.ranking import (
    MIN_ROWS_PER_ANTIGEN,
    SCOPES,
    ClusterPairs,
    ordered_by_cluster,
    spearman_by_group,
)
from abag.head.splits.splits import TEST, Split

ScoreOfSamples: TypeAlias = Callable[[Floats], Floats]
"""Scores of D samples, (D,), by how often each of R rows is in them, (D, R)."""

TINY = np.finfo(np.float64).tiny
DRAWS = 500
"""Bootstrap samples per interval."""
SAMPLED_AT_ONCE = 1 << 18
"""Rows times samples that are scored in one go: 2 MB per matrix, which stay in a core's cache."""
MOST_KEPT = 1 << 26
"""Clusters times samples of which the counts are kept for the next interval, in bytes."""
MIN_CLUSTERS = 5
"""With fewer clusters, resampling them says little about new clusters: no interval."""
MIN_ROWS = 10
"""With fewer test rows, no interval: five rows can form five clusters."""
LEVEL = 0.95
PAIRED_ROWS, MOST_CLUSTERS = 1500, 300
"""Of a fold, for intervals of scores of pairs of rows, whose number grows with the square. Fewer
rows make the interval wider; 300 clusters give nearly the same as more."""


def scorer(metric: str, pkd: Floats, predicted: Floats, antigen: Ints) -> ScoreOfSamples:
    """Return a function that computes a metric on D bootstrap samples at a time.

    Parameters
    ----------
    metric : str
        A key of `abag.head.evaluation.metrics.METRICS`.
    pkd, predicted : NDArray, shape=(R,), dtype=float64
    antigen : NDArray, shape=(R,), dtype=int64

    Returns
    -------
    callable
        Takes how often each row occurs in each sample, shape (D, R), and returns the scores, shape
        (D,), both float64; NaN where the metric is undefined.
    """
    if not (len(predicted) and np.isfinite(predicted).all()):
        return lambda counts_DR: np.full(len(counts_DR), np.nan)
    if metric in VECTORISED:
        return VECTORISED[metric](pkd, predicted, antigen)
    return partial(score_repeated, metric, pkd, predicted, antigen)


def score_repeated(
    metric: str, pkd: Floats, predicted: Floats, antigen: Ints, counts_DR: Floats
) -> Floats:
    """Compute what `scorer` does, one sample at a time."""
    values = []
    for counts in counts_DR:
        rows = np.repeat(np.arange(len(pkd)), counts.astype(np.int64))
        values.append(MeasuredRows.of(pkd[rows], antigen[rows]).score_one(metric, predicted[rows]))
    return np.array(values, np.float64)  # None becomes NaN


def median_of_samples(values: Floats, counts_DR: Floats) -> Floats:
    """Return the median of R values in each of D samples, NaN for empty ones; shape (D,)."""
    if not len(values):
        return np.full(len(counts_DR), np.nan)
    order = np.argsort(values)
    seen_DR, size_D = counts_DR.take(order, axis=1).cumsum(axis=1), counts_DR.sum(axis=1)
    ends = [(seen_DR > (middle // 2)[:, None]).argmax(axis=1) for middle in (size_D - 1, size_D)]
    middle_D: Floats = values[order[ends]].mean(axis=0)
    return np.where(size_D > 0, middle_D, np.nan)


def _spearman(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    moments = _rank_moments(pkd, predicted)

    def score(counts_DR: Floats) -> Floats:
        yy_D, yp_D, pp_D = moments(counts_DR)
        scale_D = np.sqrt(yy_D * pp_D)
        defined = scale_D > 0  # the centred ranks of a constant are exactly 0
        return np.where(defined, np.clip(yp_D / np.where(defined, scale_D, 1), -1, 1), np.nan)

    return score


def _spearman_within_antigen(pkd: Floats, predicted: Floats, antigen: Ints) -> ScoreOfSamples:
    """Take the median over antigens; predictions that are constant within one rank nothing."""
    rows_G = [np.flatnonzero(antigen == one) for one in np.unique(antigen)]
    moments_G = [_rank_moments(pkd[rows], predicted[rows]) for rows in rows_G]

    def score(counts_DR: Floats) -> Floats:
        found_DG = np.full((len(counts_DR), len(rows_G)), np.nan)
        for of_samples, rows, found_D in zip(moments_G, rows_G, found_DG.T, strict=True):
            counts_DK = counts_DR.take(rows, axis=1)
            yy_D, yp_D, pp_D = of_samples(counts_DK)
            defined = (yy_D > 0) & (counts_DK.sum(axis=1) >= MIN_ROWS_PER_ANTIGEN)
            scale_D = np.sqrt(yy_D * pp_D)
            correlation_D = np.clip(yp_D / np.where(scale_D > 0, scale_D, 1), -1, 1)
            found_D[defined] = correlation_D[defined]
        found_DG.sort(axis=1)  # undefined ones to the end
        defined_D = np.isfinite(found_DG).sum(axis=1)
        middle = [np.maximum(0, defined_D - 1) // 2, np.minimum(defined_D // 2, len(rows_G) - 1)]
        return np.asarray(found_DG[np.arange(len(found_DG)), middle].mean(axis=0))

    return score


def _rank_moments(pkd: Floats, predicted: Floats) -> Callable[[Floats], tuple[Floats, ...]]:
    """Return what sums products of centred ranks in D samples: labels with labels, labels with
    predictions, and predictions with predictions; (D,) each.

    The rank of a row is the mean rank of its copies and ties in the sample.
    """
    ranks = [_centred_ranks(values) for values in (pkd, predicted)]

    def sums(counts_DR: Floats) -> tuple[Floats, ...]:
        y_DR, p_DR = (of_samples(counts_DR) for of_samples in ranks)
        return tuple(
            np.einsum("dr,dr,dr->d", counts_DR, *two)
            for two in ((y_DR, y_DR), (y_DR, p_DR), (p_DR, p_DR))
        )

    return sums


def _centred_ranks(values: Floats) -> ScoreOfSamples:
    """Rank rows in each sample, minus the mean rank, (D, R); exact, being multiples of a half."""
    order = np.argsort(values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
    run = np.unique(values, return_inverse=True)[1]

    def rank(counts_DR: Floats) -> Floats:
        # rows up to each distinct value
        seen_DT = counts_DR.take(order, axis=1).cumsum(axis=1).take(last, axis=1)
        before_DT = np.pad(seen_DT, ((0, 0), (1, 0)))[:, :-1]
        centred_DT: Floats = (seen_DT + before_DT - seen_DT[:, -1:]) / 2
        return centred_DT.take(run, axis=1)

    return rank


def mean_errors(error_K: Floats, size_K: Floats, counts_DK: Floats) -> Floats:
    """Average errors in each of D samples of K clusters; NaN in a sample without rows; (D,).

    `error_K` is the sum of the errors of each cluster's rows, `size_K` their number.
    """
    size_D = counts_DK @ size_K
    return np.where(size_D > 0, counts_DK @ error_K / np.maximum(1, size_D), np.nan)


def accuracies(right_KK: Floats, pairs_KK: Floats, counts_DK: Floats) -> Floats:
    """Return the share of pairs of rows in order in each of D samples of K clusters, (D,).

    The counts of pairs are those of `ranking.ordered_by_cluster`. NaN in a sample without pairs.
    """
    right_D, pairs_D = (((counts_DK @ m) * counts_DK).sum(axis=1) for m in (right_KK, pairs_KK))
    return np.where(pairs_D > 0, right_D / np.maximum(1, pairs_D), np.nan)


def _spread_ratio(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    def score(counts_DR: Floats) -> Floats:
        deviations = [_deviation(values, counts_DR) for values in (predicted, pkd)]
        varies = _varies(pkd, counts_DR)
        return np.where(varies, deviations[0] / np.where(varies, deviations[1], 1), np.nan)

    return score


def _deviation(values: Floats, counts_DR: Floats) -> Floats:
    """Return the standard deviation in each sample, (D,); 0 in an empty one."""
    size_D1 = np.maximum(1, counts_DR.sum(axis=1, keepdims=True))
    centred_DR = values - (counts_DR @ values)[:, None] / size_D1
    return np.asarray(np.sqrt((counts_DR * centred_DR**2).sum(axis=1) / size_D1[:, 0]))


def _varies(values: Floats, counts_DR: Floats) -> NDArray[np.bool_]:
    """Tell in which samples the values are not all equal, (D,)."""
    seen_DR = counts_DR > 0
    first_D1 = values[seen_DR.argmax(axis=1)][:, None]
    return np.asarray((seen_DR & (values != first_D1)).any(axis=1))


def _top_enrichment(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    orders = np.argsort(-pkd), np.argsort(-predicted)

    def score(counts_DR: Floats) -> Floats:
        size_D = counts_DR.sum(axis=1)
        budget_D = np.maximum(1, np.round(BUDGET_SHARE * size_D))
        strongest_DR = counts_DR * (pkd >= _cut(pkd, orders[0], counts_DR, budget_D)[:, None])
        cut_D1 = _cut(predicted, orders[1], counts_DR, budget_D)[:, None]
        above_DR, tied_DR = predicted > cut_D1, predicted == cut_D1
        n_above, n_tied = ((counts_DR * rows).sum(axis=1) for rows in (above_DR, tied_DR))
        share_D = (budget_D - n_above) / np.maximum(1, n_tied)
        hits, tied_hits = ((strongest_DR * rows).sum(axis=1) for rows in (above_DR, tied_DR))
        chance_D = budget_D * strongest_DR.sum(axis=1) / np.maximum(1, size_D)
        found = (hits + share_D * tied_hits) / np.maximum(chance_D, TINY)
        return np.where(_varies(pkd, counts_DR), found, np.nan)

    return score


def _cut(values: Floats, order: Ints, counts_DR: Floats, budget_D: Floats) -> Floats:
    """Return the smallest of the ``budget`` largest values in each sample, (D,).

    `order` is of descending values.
    """
    enough_DR = counts_DR.take(order, axis=1).cumsum(axis=1) >= budget_D[:, None]
    return np.asarray(values[order[enough_DR.argmax(axis=1)]])


VECTORISED: dict[str, Callable[[Floats, Floats, Ints], ScoreOfSamples]] = {
    "spearman": _spearman,
    "spearman_within_antigen": _spearman_within_antigen,
    "spread_ratio": _spread_ratio,
    "top_enrichment": _top_enrichment,
}
"""By name: what makes of labels, predictions and antigens, (R,), a function of samples."""
OF_MEAN_ERROR: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "rmse": (np.square, np.sqrt),
    "mae": (np.abs, np.positive),
}
"""What is averaged of measured minus predicted pKd, and what turns its mean into the metric."""


class MeasuredPairs(Protocol):
    """What scoring needs of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antigen(self) -> Ints: ...
    @property
    def antigen_cluster(self) -> Ints | None: ...
    @property
    def antibody_cluster(self) -> Ints | None: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Difference of two models' scores, averaged over folds, with its bootstrap interval."""

    difference: float
    low: float | None
    high: float | None
    clusters: int
    rows: int
    unit: str = "clusters"
    """What was resampled: ``pairs``, ``clusters`` or ``antigen clusters``."""
    by_antigen: Interval | None = None
    """The same from clusters of antigens, if the groups of the split are not made of them."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def known(self) -> list[tuple[Interval, float, float]]:
        """The intervals that have limits: itself and `by_antigen`."""
        found = [one for one in (self, self.by_antigen) if one is not None]
        return [(i, i.low, i.high) for i in found if i.low is not None and i.high is not None]


@dataclass(frozen=True, slots=True)
class Resampled:
    """What is resampled of a fold."""

    cluster: Ints
    """Cluster of each row or of each antigen; clusters are resampled as a whole."""
    score: Callable[[Floats], Floats]
    """Scores, or differences of two, in D samples, of which (D, R) has the count of each entry."""


def tested_rows(pairs: MeasuredPairs, splits: Sequence[Split]) -> list[Ints]:
    """Return the exact test rows of each split, (R,)."""
    return [np.flatnonzero((split.part == TEST) & (pairs.censored == 0)) for split in splits]


def antigen_clusters(pairs: MeasuredPairs) -> Ints:
    """Return the cluster of each pair's antigen, (P,): the antigen if they were not clustered."""
    return pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster


def is_nested(inner: Ints, outer: Ints) -> bool:
    """Whether each value of `inner`, (R,), occurs with one value of `outer`, (R,), only."""
    values, dense = np.unique(inner, return_inverse=True)
    return len(distinct(outer * len(values) + dense)) == len(values)


def widening(clusters: int) -> float:
    """Return the factor by which a 95 % bootstrap interval over few clusters is too narrow.

    Student's t relative to the normal distribution, and the bootstrap's standard error relative
    to the unbiased one: 1.58 for 5 clusters, 1.04 for 30.
    """
    level = (1 + LEVEL) / 2
    return float(stdtrit(clusters - 1, level) / ndtri(level) * np.sqrt(clusters / (clusters - 1)))


def _bootstrap(folds: Sequence[Resampled], seed: int, rows: int, unit: str) -> Interval | None:
    joined = np.concatenate([fold.cluster for fold in folds])
    clusters, dense = np.unique(joined, return_inverse=True)
    index = np.split(dense, np.cumsum([len(fold.cluster) for fold in folds])[:-1])
    difference = float(_mean_score(folds, index, np.ones((1, len(clusters))))[0])
    if np.isnan(difference):
        return None
    known = np.zeros(0)
    if len(clusters) >= MIN_CLUSTERS and rows >= MIN_ROWS:
        kept = _count_draws if DRAWS * len(clusters) <= MOST_KEPT else _count_draws.__wrapped__
        parts = np.array_split(
            kept(seed, DRAWS, len(clusters)),
            min(DRAWS, max(1, DRAWS * max(map(len, index)) // SAMPLED_AT_ONCE)),
        )

        scores = [_mean_score(folds, index, part.astype(np.float64)) for part in parts]
        known = np.concatenate(scores)
        known = known[~np.isnan(known)]
    unit = "pairs" if len(clusters) == rows else unit
    if not len(known):
        return Interval(difference, None, None, len(clusters), rows, unit)
    ends = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = difference + widening(len(clusters)) * (ends - difference)
    return Interval(difference, float(low), float(high), len(clusters), rows, unit)


@lru_cache(maxsize=4)
def _count_draws(seed: int, draws: int, clusters: int) -> NDArray[np.uint8]:
    """Count how often each of C clusters is drawn in each of D samples; shape (D, C)."""
    rng, counts_DC = np.random.default_rng(seed), np.empty((draws, clusters), np.uint8)
    for counts_C in counts_DC:
        # Not even among very many clusters is one ever drawn more than 255 times.
        counts_C[:] = np.bincount(rng.integers(clusters, size=clusters), minlength=clusters)
    return counts_DC


def _mean_score(folds: Sequence[Resampled], index: Sequence[Ints], counts_DC: Floats) -> Floats:
    """Average over the folds where the difference is defined; NaN where it is in none; (D,)."""
    all_of_them = np.arange(counts_DC.shape[1])
    found = np.array(
        [
            fold.score(counts_DC if np.array_equal(i, all_of_them) else counts_DC[:, i])
            for fold, i in zip(folds, index, strict=True)
        ]
    )
    defined = ~np.isnan(found)
    n_D = defined.sum(axis=0)
    return np.where(n_D > 0, np.where(defined, found, 0).sum(axis=0) / np.maximum(1, n_D), np.nan)


class ScoreInterval(TypedDict):
    """A score with its interval."""

    value: float
    low: float | None
    high: float | None
    clusters: int


def compare(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    reference: Sequence[Floats],
    metric: str,
    seed: int = 0,
) -> Interval | None:
    """Compute the difference between two models on the test parts, with a bootstrap interval.

    Parameters
    ----------
    predicted, reference : sequence of NDArray, shape=(P,), dtype=float64
        pKd of every pair as predicted by the two models, for each split.
    metric : str
        A key of `abag.head.evaluation.metrics.METRICS`.

    Returns
    -------
    Interval or None
        Score of `predicted` minus score of `reference`; None if the metric is undefined for
        either. ``low`` and ``high`` are None with fewer than `MIN_CLUSTERS` clusters or `MIN_ROWS`
        test rows.
    """
    return _resample(pairs, splits, [*zip(predicted, reference, strict=True)], metric, seed)


def score_interval(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    metric: str,
    value: float | None = None,
) -> ScoreInterval | None:
    """Compute the score of one model on the test parts, with its bootstrap interval.

    The other arguments and None are as in `compare`. The interval is the smallest that includes
    those over groups of the split and over clusters of antigens.

    Parameters
    ----------
    value : float, optional
        The score if it is known, with which intervals that were found on some rows are centred.
    """
    found = _resample(pairs, splits, [(one,) for one in predicted], metric)
    if found is None:
        return None
    value = found.difference if value is None else value
    shift = value - found.difference
    return {
        "value": value,
        "low": _passed(min, metric, [low + shift for _, low, _ in found.known]),
        "high": _passed(max, metric, [high + shift for *_, high in found.known]),
        "clusters": found.clusters,
    }


def score_intervals(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    scores: Scores,
) -> dict[str, ScoreInterval]:
    """Compute `score_interval` of each metric that is reported with one, where it is defined.

    `scores` are those on the test parts, averaged over the splits.
    """
    tested = np.concatenate(tested_rows(pairs, splits))
    names = [name for name, one in METRICS.items() if one.headline or one.with_interval]
    if len(distinct(antigen_clusters(pairs)[tested])) <= 1:
        # nearly the same as the Spearman correlation
        names.remove("spearman_within_antigen")
    known = {name: value for name in names if (value := scores.get(name)) is not None}
    found = {
        name: score_interval(pairs, splits, predicted, name, value) for name, value in known.items()
    }
    return {name: one for name, one in found.items() if one is not None}


def _passed(outer: Callable[..., float], metric: str, ends: Sequence[float]) -> float | None:
    """Return the outermost end of intervals, if it is possible, or else the possible end."""
    if not ends:
        return None
    end, best, least = outer(ends), METRICS[metric].best, METRICS[metric].least
    if least is not None:
        end = max(end, least)
    if best is None:
        return end
    return max(end, best) if METRICS[metric].lower_is_better else min(end, best)


def _resample(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    models: Sequence[Sequence[Floats]],
    metric: str,
    seed: int = 0,
) -> Interval | None:
    """Average a score over the test parts of the splits, with its bootstrap interval.

    None if the score is undefined. `models` are the predictions of one or two models for each
    split, see `_TestRows`.
    """
    tests, clusters = tested_rows(pairs, splits), antigen_clusters(pairs)
    folds = [_TestRows.of(pairs, rows, one) for rows, one in zip(tests, models, strict=True)]
    n_rows = len(distinct(np.concatenate(tests)))
    of_split = [split.group[rows] for split, rows in zip(splits, tests, strict=True)]
    of_antigen = [clusters[rows] for rows in tests]
    nested = is_nested(np.concatenate(of_antigen), np.concatenate(of_split))
    several = len(distinct(np.concatenate(of_antigen))) > 1

    def interval(cluster: Sequence[Ints], unit: str) -> Interval | None:
        drawn = [one.resampled_by(rows, metric) for one, rows in zip(folds, cluster, strict=True)]
        return _bootstrap(drawn, seed, n_rows, unit)

    if metric == "spearman_within_antigen" and several and not nested:
        return interval(of_antigen, "antigen clusters")
    found = interval(of_split, "clusters")
    if found is None or nested or not several:
        return found
    return replace(found, by_antigen=interval(of_antigen, "antigen clusters"))


def antigen_groups(pairs: MeasuredPairs, rows: Ints) -> Ints:
    """Group rows, (R,), for the metrics within antigen; the result has shape (R,).

    A group is an antigen. The antigens of one cluster that have too few exact rows for a
    correlation form one group, so that their rows count too.
    """
    antigen = np.unique(pairs.antigen[rows], return_inverse=True)[1]
    exact = np.bincount(antigen, pairs.censored[rows] == 0)
    few = exact[antigen] < MIN_ROWS_PER_ANTIGEN
    cluster = antigen_clusters(pairs)[rows]
    return np.where(few, len(antigen) + cluster, antigen)


@dataclass(frozen=True, slots=True)
class _TestRows:
    """The exact test rows of a fold, each of shape (R,), and the predictions of one or two models.

    What is resampled is the score of the model, or that of the first minus that of the second.
    """

    pkd: Floats
    models: Sequence[Floats]
    antigen: Ints
    """See `antigen_groups`."""
    clusters: ClusterPairs | None

    @classmethod
    def of(cls, pairs: MeasuredPairs, rows: Ints, models: Sequence[Floats]) -> _TestRows:
        """Select rows of predictions of all pairs, (P,)."""
        predicted = [one[rows] for one in models]
        groups = antigen_groups(pairs, rows)
        return cls(pairs.pkd[rows], predicted, groups, cluster_pairs(pairs, rows))

    def resampled_by(self, cluster: Ints, metric: str) -> Resampled:
        """Resample clusters, (R,); whole antigens if no antigen is in two of them."""
        if metric == "spearman_within_antigen" and is_nested(self.antigen, cluster):
            return self._of_antigens(cluster)
        if metric in OF_MEAN_ERROR:
            return self._of_sums(cluster, *OF_MEAN_ERROR[metric])
        if metric in SCOPES:
            return self._of_pairs(cluster, metric)
        scores = [scorer(metric, self.pkd, one, self.antigen) for one in self.models]
        return Resampled(
            cluster, lambda counts_DR: _difference(score(counts_DR) for score in scores)
        )

    def _of_sums(
        self,
        cluster: Ints,
        error: Callable[[Floats], Floats],
        finish: Callable[[Floats], Floats],
    ) -> Resampled:
        """Resample clusters, (R,), by the sums of their rows' errors."""
        clusters, dense = np.unique(cluster, return_inverse=True)
        size_K = np.bincount(dense).astype(np.float64)
        sums = [np.bincount(dense, error(self.pkd - p)).astype(np.float64) for p in self.models]

        def score(counts_DK: Floats) -> Floats:
            return _difference(finish(mean_errors(one, size_K, counts_DK)) for one in sums)

        return Resampled(clusters, score)

    def _of_pairs(self, cluster: Ints, metric: str) -> Resampled:
        """Resample clusters, (R,), joined into `MOST_CLUSTERS`, of at most `PAIRED_ROWS` rows.

        Clusters without a pair that counts are left out: the others may be too few for an interval.
        """
        rows = np.random.default_rng(0).permutation(len(self.pkd))[:PAIRED_ROWS]
        clusters, dense = np.unique(cluster[rows] % MOST_CLUSTERS, return_inverse=True)
        shown = None if self.clusters is None else self.clusters.of(rows)
        counts = [
            ordered_by_cluster(metric, self.pkd[rows], p[rows], self.antigen[rows], shown, dense)
            for p in self.models
        ]
        _, pairs_KK = counts[0]
        kept = np.flatnonzero(pairs_KK.any(axis=0) | pairs_KK.any(axis=1))
        counts = [(right[np.ix_(kept, kept)], every[np.ix_(kept, kept)]) for right, every in counts]
        defined = all(np.isfinite(p).all() for p in self.models)

        def score(counts_DK: Floats) -> Floats:
            found = _difference(accuracies(*one, counts_DK) for one in counts)
            return found if defined else np.full_like(found, np.nan)

        return Resampled(clusters[kept], score)

    def _of_antigens(self, cluster: Ints) -> Resampled:
        """Resample whole antigens, each with the correlation within it, which stays the same."""
        _, first = np.unique(self.antigen, return_index=True)
        values = np.array([spearman_by_group(self.pkd, p, self.antigen) for p in self.models])
        defined = np.isfinite(values).all(axis=0)
        return Resampled(
            cluster[first][defined],
            lambda counts_DR: _difference(
                median_of_samples(one, counts_DR) for one in values[:, defined]
            ),
        )


def _difference(scores: Iterable[Floats]) -> Floats:
    """Subtract the second of two scores, if there are two, from the first."""
    first, *others = scores
    return first - others[0] if others else first


def score_rows(pairs: MeasuredPairs, predicted: Floats, rows: Ints) -> Scores:
    """Score the predictions of some rows; `predicted`, (P,), has one for every pair."""
    return rows_to_score(pairs, rows).score(predicted[rows])


def rows_to_score(pairs: MeasuredPairs, rows: Ints) -> MeasuredRows:
    """Return rows of pairs that several models predict."""
    return MeasuredRows.of(
        pairs.pkd[rows],
        antigen_groups(pairs, rows),
        pairs.censored[rows],
        cluster_pairs(pairs, rows),
    )


def cluster_pairs(pairs: MeasuredPairs, rows: Ints) -> ClusterPairs | None:
    """Return the clusters of the sequences of some rows, if antibodies were clustered."""
    if pairs.antibody_cluster is None:
        return None
    return ClusterPairs(pairs.antibody_cluster[rows], antigen_clusters(pairs)[rows])
