"""Bootstrap intervals over clusters of pairs.

Whole groups of the split are resampled, identically for all folds, and each fold is scored
separately. Where antigens occur in several groups (random, mutations, antibody ...), clusters of
antigens are resampled as well. Intervals are widened for few clusters, see `widening`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from abag.core.arrays import Floats, Ints, distinct
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
