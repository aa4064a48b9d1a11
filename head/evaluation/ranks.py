"""Ranks, rank correlations, and the pairs of rows that predictions have in their measured order.

N rows in G groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints

MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows are left out of the correlation within antigens."""
LISTED_PAIRS = 1 << 20
"""Pairs of rows that are compared; of more pairs a quarter as many are drawn."""


def finite(value: float | np.floating) -> float | None:
    """Return a number, or None for infinity and NaN."""
    return float(value) if np.isfinite(value) else None


def pearson(pkd: Floats, predicted: Floats) -> float | None:
    """Compute the linear correlation, shape (N,) each; None below two rows or for constants."""
    if len(pkd) < 2 or np.ptp(pkd) == 0 or np.ptp(predicted) == 0:
        return None
    y = pkd - pkd.mean()
    p = predicted - predicted.mean()
    correlation = y @ p / (np.linalg.norm(y) * np.linalg.norm(p))
    return finite(np.clip(correlation, -1, 1))  # rounding may exceed 1


def spearman(pkd: Floats, predicted: Floats) -> float | None:
    """Compute the rank correlation, (N,) each, mean ranks for ties; None for constants."""
    return pearson(ranks(pkd), ranks(predicted))


def ranks(values: NDArray[np.generic]) -> Floats:
    """Rank like ``scipy.stats.rankdata`` in half the time; the rank of NaN is NaN."""
    _, run, size = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(size) - (size - 1) / 2  # of each run of equal values
    return np.where(np.isnan(values), np.nan, mean_rank[run])


def spearman_by_group(pkd: Floats, predicted: Floats, group: Ints) -> Floats:
    """Compute `spearman` within each of G groups, (G,), in ascending order of their numbers.

    Constant predictions have 0, not NaN, as too few rows and constant labels have: else a model
    that is constant for most antigens would be scored on the others only.
    """
    return RanksByGroup(pkd, group).spearman(predicted)


class RanksByGroup:
    """Rank N labels within G groups, for `spearman_by_group` of several predictions."""

    def __init__(self, pkd: Floats, group: Ints) -> None:
        _, self._group, self._size = np.unique(group, return_inverse=True, return_counts=True)
        self._pkd = self._centred_ranks(pkd)

    def spearman(self, predicted: Floats) -> Floats:
        """Correlate predictions, (N,), with the labels in each group, (G,)."""
        y = self._pkd
        p = self._centred_ranks(predicted)
        covariance = self._sum_groups(y * p)
        label_variance = self._sum_groups(y * y)
        scale = np.sqrt(label_variance * self._sum_groups(p * p))
        correlation = np.clip(covariance / np.where(scale > 0, scale, 1.0), -1, 1)
        defined = (self._size >= MIN_ROWS_PER_ANTIGEN) & (label_variance > 0) & np.isfinite(scale)
        return np.where(defined, correlation, np.nan)

    def _sum_groups(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self._group, values, len(self._size)), np.float64)

    def _centred_ranks(self, values: Floats) -> Floats:
        """Rank each value within its group, with mean ranks for ties, minus the mean rank."""
        _, place = np.unique(values, return_inverse=True)
        before = np.cumsum(self._size) - self._size
        # the rank among all rows, sorted by group first, less the rows of the groups before
        within = ranks(self._group * len(values) + place) - before[self._group]
        mean_rank = (self._size[self._group] + 1) / 2
        return np.where(np.isnan(values), np.nan, within - mean_rank)


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
    place = 3 * rank + np.sign(censored) + 1
    upper = np.where(censored > 0, np.iinfo(np.int64).max, place)
    lower = np.where(censored < 0, 0, place)
    return KnownOrder(upper, lower - 1)
