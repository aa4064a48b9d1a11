"""Correlation of predictions with labels, over all rows and within groups of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints

MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows are left out of the correlation within antigens."""


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
