"""Scores of models on the test part, and differences of two models, with bootstrap intervals.

Intervals come from a bootstrap over clusters of pairs, identical for both models. Whole groups of
the split are resampled, identically for all folds, and each fold is scored separately. Where
antigens occur in several groups (random, mutations, antibody ...), clusters of antigens are
resampled as well. Intervals are widened for few clusters, see `widening`. `verdicts` says what the
differences mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from abag.core.arrays import Floats, Ints, distinct
from abag.head.evaluation.metrics import METRICS, MeasuredRows, Scores
from abag.head.evaluation.ranking import (
    MIN_ROWS_PER_ANTIGEN,
    SCOPES,
    ClusterPairs,
    ordered_by_cluster,
    spearman_by_group,
)
from abag.head.evaluation.resampling import (
    OF_MEAN_ERROR,
    accuracies,
    mean_errors,
    median_of_samples,
    scorer,
)
from abag.head.splits.splits import TEST, Split

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


def resample(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    draw: Callable[[int, Ints], Resampled],
    *,
    antigens_only: bool = False,
    seed: int = 0,
) -> Interval | None:
    """Average a score over the test parts of the splits, with its bootstrap interval.

    Parameters
    ----------
    draw : callable
        Returns what is resampled of a fold, given its number and the cluster of each of its test
        rows, (R,); see `tested_rows`.
    antigens_only : bool
        If both intervals are possible, compute only that of clusters of antigens.

    Returns
    -------
    Interval or None
        None if the score is undefined.
    """
    tests, clusters = tested_rows(pairs, splits), antigen_clusters(pairs)
    n_rows = len(distinct(np.concatenate(tests)))
    of_split = [split.group[rows] for split, rows in zip(splits, tests, strict=True)]
    of_antigen = [clusters[rows] for rows in tests]
    nested = is_nested(np.concatenate(of_antigen), np.concatenate(of_split))
    several = len(distinct(np.concatenate(of_antigen))) > 1

    def interval(cluster: Sequence[Ints], unit: str) -> Interval | None:
        return _bootstrap([draw(k, one) for k, one in enumerate(cluster)], seed, n_rows, unit)

    if antigens_only and several and not nested:
        return interval(of_antigen, "antigen clusters")
    found = interval(of_split, "clusters")
    if found is None or nested or not several:
        return found
    return replace(found, by_antigen=interval(of_antigen, "antigen clusters"))


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


PAIRED_ROWS, MOST_CLUSTERS = 1500, 300
"""Of a fold, for intervals of scores of pairs of rows, whose number grows with the square. Fewer
rows make the interval wider; 300 clusters give nearly the same as more."""


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
    tests = tested_rows(pairs, splits)
    folds = [_TestRows.of(pairs, rows, one) for rows, one in zip(tests, models, strict=True)]
    return resample(
        pairs,
        splits,
        lambda k, cluster: folds[k].resampled_by(cluster, metric),
        antigens_only=metric == "spearman_within_antigen",
        seed=seed,
    )


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
