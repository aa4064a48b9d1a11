"""What a batch promises: the best pKd in it, and how many of its pairs exceed a threshold.

Both are simulated: the measurement of a pair is normally distributed about its prediction, with
standard deviation sigma, and the errors of any two pairs of a batch have the same correlation,
because they come from one model. B pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abag.core.arrays import Floats

DRAWS = 10_000
"""Simulated batches: the error of an expected pKd is about 0.01 sigma."""
BLOCK_VALUES = 1 << 22
"""Simulated measurements in memory at a time."""
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected results of measuring a batch."""

    best_of_first: Floats
    """Expected best pKd of the first 1, 2, ... B pairs, (B,)."""
    best_interval: tuple[float, float]
    """Central 90 % of the best pKd of the batch."""
    above: float
    """Expected number of pairs above the threshold; NaN without one."""
    above_interval: tuple[float, float]


def expect(
    mean: Floats, sigma: Floats, *, correlation: float, above: float = np.nan
) -> Expectation:
    """Simulate the measurement of a batch; equal arguments give equal results.

    Parameters
    ----------
    mean, sigma : NDArray, shape=(B,), dtype=float64
        Predicted pKd, best candidate first, and its standard error.
    correlation : float
        Of the errors of any two pairs, 0 to 1.
    above : float, optional
        Threshold in pKd.
    """
    rng, sums = np.random.default_rng(0), np.zeros(len(mean))
    best, counts = np.empty(DRAWS), np.empty(DRAWS)
    step = max(1, BLOCK_VALUES // len(mean))
    for at in range(0, DRAWS, step):
        block = slice(at, min(at + step, DRAWS))
        draws = block.stop - at
        common = rng.standard_normal((draws, 1))
        own = rng.standard_normal((draws, len(mean)))
        error = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        measured = mean + sigma * error
        counts[block] = (measured > above).sum(axis=1)
        best_so_far = np.maximum.accumulate(measured, axis=1)
        sums += best_so_far.sum(axis=0)
        best[block] = best_so_far[:, -1]
    low, high = np.quantile(best, INTERVAL).tolist()
    few, many = np.quantile(counts, INTERVAL).tolist()
    number = float(counts.mean()) if np.isfinite(above) else np.nan
    return Expectation(sums / DRAWS, (low, high), number, (few, many))
