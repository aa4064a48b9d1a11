"""How well predictions rank rows: correlations, and pairs of rows in their measured order.

Many pairs of rows are counted without listing them, so that a million rows take seconds. What
follows from the labels alone is computed once for any number of predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints

MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows are left out of the correlation within antigens."""
CONFIDENT_PKD = 1.0
"""Labels at least this far apart are in a known order, whatever the error of the assay."""
ROUNDING = 1e-9
"""8.1 is at least 1 above 7.1 in floating point too."""
LISTED_PAIRS = 1 << 20
"""Pairs of rows up to which they are listed."""


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
    """Compute `spearman` within each group, vectorised over groups; 0 for constant predictions.

    Constant predictions rank nothing. If they were left out, a model that is constant for most
    antigens would be scored on the others only.

    Parameters
    ----------
    pkd, predicted : NDArray, shape=(N,), dtype=float64
    group : NDArray, shape=(N,), dtype=int64

    Returns
    -------
    NDArray, shape=(groups,), dtype=float64
        In ascending order of the group numbers. NaN below `MIN_ROWS_PER_ANTIGEN` rows and where
        labels are constant.
    """
    return RanksByGroup.of(pkd, group).spearman(predicted)


@dataclass(frozen=True, slots=True)
class RanksByGroup:
    """Ranks of N labels within G groups, for `spearman_by_group` of several predictions."""

    group: Ints
    """Shape (N,), numbered from 0."""
    size: Ints
    """Shape (G,)."""
    pkd: Floats
    """Rank of each label within its group, minus the mean rank, shape (N,)."""
    squares: Floats
    """Their sum of squares in each group, shape (G,)."""

    @classmethod
    def of(cls, pkd: Floats, group: Ints) -> RanksByGroup:
        """Rank labels within groups, each of shape (N,)."""
        _, dense, size = np.unique(group, return_inverse=True, return_counts=True)
        y = _ranks_by_group(pkd, dense) - (size[dense] + 1) / 2
        return cls(dense, size, y, _sum_by_group(y * y, dense, len(size)))

    def spearman(self, predicted: Floats) -> Floats:
        """Correlate predictions, (N,), with the labels in each group, (G,)."""
        p = _ranks_by_group(predicted, self.group) - (self.size[self.group] + 1) / 2
        covariance, squares = (
            _sum_by_group(products, self.group, len(self.size))
            for products in (self.pkd * p, p * p)
        )
        scale = np.sqrt(self.squares * squares)
        found = np.clip(covariance / np.where(scale > 0, scale, 1.0), -1, 1)
        defined = (self.size >= MIN_ROWS_PER_ANTIGEN) & (self.squares > 0) & np.isfinite(scale)
        return np.where(defined, found, np.nan)


def _sum_by_group(values: Floats, group: Ints, groups: int) -> Floats:
    return np.bincount(group, values, minlength=groups).astype(np.float64)


def _ranks_by_group(values: Floats, group: Ints) -> Floats:
    """Rank each value within its group, starting at 1, with mean ranks for ties."""
    _, place = np.unique(values, return_inverse=True)
    size = np.bincount(group)
    within = ranks(group * len(values) + place) - (np.cumsum(size) - size)[group]
    return np.where(np.isnan(values), np.nan, within)


def finite(value: float | np.floating) -> float | None:
    """Return a number, or None for infinity and NaN."""
    return float(value) if np.isfinite(value) else None


class KnownOrder:
    """Pairs of N rows whose labels have a known order, counted for any number of predictions.

    Parameters
    ----------
    below, above : NDArray, shape=(N,), dtype=float64 or int64
        Row i is known to be below row j of its group if ``below[i] <= above[j]``.
    group : NDArray, shape=(N,), dtype=int64, optional
        By default all rows form one group.
    """

    def __init__(
        self, below: Floats | Ints, above: Floats | Ints, group: Ints | None = None
    ) -> None:
        n, is_low = len(below), np.repeat([True, False], len(below))
        dense = np.zeros(n, np.int64)
        if group is not None:
            dense = np.unique(group, return_inverse=True)[1]
        order = np.lexsort((~is_low, np.concatenate([below, above]), np.tile(dense, 2)))
        is_low, row = is_low[order], order % max(1, n)
        self._low, self._high = row[is_low], row[~is_low]
        # Row high[k] is above the rows low[start[k]:end[k]].
        self._end = np.cumsum(is_low)[~is_low]
        size = np.bincount(dense)
        self._start = (np.cumsum(size) - size)[dense[self._high]]
        self.pairs = int((self._end - self._start).sum())

    def count_right(self, predicted: Floats) -> float:
        """Count the pairs that predictions, (N,), have in this order; predicted ties count half."""
        if not self.pairs:
            return 0.0
        if self.pairs <= LISTED_PAIRS:
            high, low = self._listed
            difference = predicted[high] - predicted[low]
            greater, equal = np.count_nonzero(difference > 0), np.count_nonzero(difference == 0)
            return greater + equal / 2
        _, rank = np.unique(predicted, return_inverse=True)
        return _count_smaller(rank[self._low], rank[self._high], self._start, self._end)

    @cached_property
    def _listed(self) -> tuple[Ints, Ints]:
        """The rows of each pair: above and below."""
        size = self._end - self._start
        first = np.repeat(self._start - (np.cumsum(size) - size), size)
        return np.repeat(self._high, size), self._low[first + np.arange(len(first))]


def decidable_pairs(pkd: Floats, censored: NDArray[np.int8]) -> KnownOrder:
    """Return the pairs of rows with a known order.

    That of two exact rows is known if their labels differ. The order of a censored row and another
    row is known if the bound excludes the other's values. Arrays are of shape (N,).
    """
    _, rank = np.unique(pkd, return_inverse=True)
    # Row i is below row j if upper[i] < lower[j]; a bound lies just beside its label.
    upper = np.where(censored > 0, np.iinfo(np.int64).max, 3 * rank + np.where(censored < 0, 0, 1))
    lower = np.where(censored < 0, 0, 3 * rank + np.where(censored > 0, 2, 1))
    return KnownOrder(upper, lower - 1)


def concordance(order: KnownOrder, predicted: Floats) -> dict[str, float | int | None]:
    """Share of the `decidable_pairs` that are predicted in their order; None without any."""
    right, pairs = order.count_right(predicted), order.pairs
    return {"concordance": right / pairs if pairs else None, "decidable_pairs": pairs}


class ConfidentPairs:
    """The pairs of N rows with labels at least `CONFIDENT_PKD` apart, also within antigens.

    `pkd` and `antigen` have shape (N,).

    References
    ----------
    AbRank, arXiv 2506.17857: affinities compared in pairs that differ by more than a margin.
    """

    def __init__(self, pkd: Floats, antigen: Ints) -> None:
        below = pkd + CONFIDENT_PKD - ROUNDING
        self._orders = {
            "": KnownOrder(below, pkd),
            "_within_antigen": KnownOrder(below, pkd, antigen),
        }

    def score(self, predicted: Floats) -> dict[str, float | int | None]:
        """Share of the pairs that are predicted in the right order; predicted ties count half."""
        shares = {
            f"pair_accuracy{name}": one.count_right(predicted) / one.pairs if one.pairs else None
            for name, one in self._orders.items()
        }
        return shares | {"confident_pairs": self._orders[""].pairs}


def _count_smaller(low: Ints, high: Ints, start: Ints, end: Ints) -> float:
    """Count the pairs of k and ``start[k] <= i < end[k]`` with ``low[i] < high[k]``.

    Equal ones count half. All have shape (N,); the values are not negative.

    References
    ----------
    Claude, Navarro and Ordóñez, The wavelet matrix, Information Systems 47 (2015).
    """
    smaller = 0
    for bit in reversed(range(int(low.max()).bit_length())):
        is_zero, one = low >> bit & 1 == 0, high >> bit & 1
        zeros = np.concatenate([[0], np.cumsum(is_zero)])
        from_zeros, to_zeros = zeros[start], zeros[end]
        smaller += int(one @ (to_zeros - from_zeros))
        # Those with a 0 come first, in their order; each range is now of equal leading bits.
        low = low[np.concatenate([np.flatnonzero(is_zero), np.flatnonzero(~is_zero)])]
        start = np.where(one, zeros[-1] + start - from_zeros, from_zeros)
        end = np.where(one, zeros[-1] + end - to_zeros, to_zeros)
    return smaller + int((end - start).sum()) / 2
