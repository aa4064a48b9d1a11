"""Pairs with the same prediction, among which a model ranks nothing.

Where no model is better than the mean, the mean has all the weight: every pair of such a regime has
the same prediction but for rounding, and an order of them follows from sigma or from the order of
the rows alone. R pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, Ints
from abag.core.messages import counted
from abag.head.data.quantity import PKD, Quantity
from abag.head.regimes.regimes import words_of

NEGLIGIBLE = 0.01
"""Share of sigma below which a range of predictions tells nothing."""
ROUNDED = 2e-5
"""Share of a pKd of 5 or more that its rounding to 4 digits after the point changes at most."""
LEAST_EQUAL = 10
"""Pairs of a regime that must have the same prediction: of fewer this may be chance."""
LARGE_SHARE = 0.25
"""Share of all pairs that must have the same prediction, whatever their regimes."""
UNRANKED = "the run cannot rank them"
"""End of a sentence about pairs with the same prediction."""


def is_negligible(low: float, high: float, sigma: float) -> bool:
    """Return whether predictions between two values are the same; `sigma` is typical of them."""
    return high - low <= max(NEGLIGIBLE * sigma, ROUNDED * max(abs(low), abs(high)))


def equal_groups(mean: Floats, sigma: Floats, groupings: Sequence[Ints] = ()) -> Ints:
    """Number the groups of pairs that have the same prediction, (R,); -1 is in none.

    All pairs are one group, or else those of a group of a grouping, (R,) each, or else a large
    share of the pairs.
    """
    if not len(mean) or is_negligible(mean.min(), mean.max(), float(np.median(sigma))):
        return np.zeros(len(mean), np.int64)
    number = np.full(len(mean), -1)
    values = pd.DataFrame({"mean": mean, "sigma": sigma})
    for grouping in groupings:
        grouped = values.groupby(grouping)
        size = grouped.size()
        sigmas = grouped["sigma"].median()
        low = grouped["mean"].min()
        high = grouped["mean"].max()
        limit = np.maximum(NEGLIGIBLE * sigmas, ROUNDED * np.maximum(low.abs(), high.abs()))
        same = size.index[(size >= LEAST_EQUAL) & (high - low <= limit)]
        _extend(number, np.asarray(grouping), same.to_numpy())
    place = np.round(mean / (ROUNDED * np.abs(mean).max()))
    of_place, count = np.unique(place[number < 0], return_counts=True)
    _extend(number, place, of_place[count > max(2, LARGE_SHARE * len(mean))])
    return number


def _extend(number: Ints, group: Floats | Ints, same: Floats | Ints) -> None:
    """Number the rows of the groups `same` that have no number yet, in place."""
    rows = np.flatnonzero((number < 0) & np.isin(group, same))
    _, number_of_same = np.unique(group[rows], return_inverse=True)
    number[rows] = number.max(initial=-1) + 1 + number_of_same


class _Range(NamedTuple):
    rows: int
    low: float
    high: float
    sum_of_sigmas: float

    def join(self, other: _Range) -> _Range:
        """Return the range of the rows of both."""
        return _Range(
            rows=self.rows + other.rows,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            sum_of_sigmas=self.sum_of_sigmas + other.sum_of_sigmas,
        )

    @property
    def is_one_value(self) -> bool:
        """Return whether all rows have the same prediction."""
        return is_negligible(self.low, self.high, self.sum_of_sigmas / self.rows)


class SamePredictions:
    """Find the regimes whose rows all have the same prediction; scores come in parts."""

    def __init__(self, quantity: Quantity = PKD, *, no_antigen: bool = False) -> None:
        self._quantity = quantity
        self._no_antigen = no_antigen
        self._ranges: dict[str, _Range] = {}

    def add(self, scores: pd.DataFrame) -> None:
        """Add rows with ``regime``, ``pkd_predicted`` and ``sigma``."""
        for name, rows in scores.groupby("regime", observed=True):
            pkd = rows["pkd_predicted"]
            added = _Range(len(rows), pkd.min(), pkd.max(), rows["sigma"].sum())
            before = self._ranges.get(str(name))
            self._ranges[str(name)] = added if before is None else before.join(added)

    def _whole(self) -> _Range | None:
        whole: _Range | None = None
        for part in self._ranges.values():
            whole = part if whole is None else whole.join(part)
        return whole

    @property
    def can_rank(self) -> bool:
        """Return whether any two rows have different predictions, or there is only one."""
        whole = self._whole()
        return whole is None or whole.rows < 2 or not whole.is_one_value

    @property
    def regimes(self) -> dict[str, int]:
        """Count the rows of the regimes in which no two rows have different predictions."""
        can_rank = self.can_rank
        rows = {}
        for name, part in self._ranges.items():
            if not can_rank or (part.rows >= LEAST_EQUAL and part.is_one_value):
                rows[name] = part.rows
        return rows

    def describe(self, noun: str) -> list[str]:
        """Say of which rows, called `noun`, the predictions are the same."""
        whole = self._whole()
        if whole is not None and not self.can_rank:
            rows = counted(whole.rows, noun)
            value = self._shown(whole.low)
            return [f"all {rows} have the same prediction, {value}: {UNRANKED}"]
        lines = []
        for name, n_rows in self.regimes.items():
            rows = f"{counted(n_rows, noun)} ({words_of(name, no_antigen=self._no_antigen)})"
            value = self._shown(self._ranges[name].low)
            lines.append(f"{rows} have the same prediction, {value}: {UNRANKED}")
        return lines

    def _shown(self, value: float) -> str:
        name = "pKd" if self._quantity.affinity else self._quantity
        return f"{name} {self._quantity.show(value)}"
