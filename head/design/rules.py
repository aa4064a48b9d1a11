"""Rules that score predicted pairs for a batch, and what measuring the batch is expected to give.

The pair with the largest score is ordered first. The best pKd of a batch and the number of its
pairs above a threshold are simulated: the measurement of a pair is normally distributed about its
prediction, with standard deviation sigma, and the errors of any two pairs of a batch have the same
correlation, because they come from one model.

B pairs with a predicted pKd and its standard error sigma.

References
----------
Jones, Schonlau, Welch: Efficient global optimization of expensive black-box functions, J. Global
Optim. 13:455 (1998): expected improvement. Srinivas et al.: Gaussian process optimization in the
bandit setting, ICML 2010: upper confidence bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from abag.core.arrays import Floats
from abag.head.design.options import RuleName


class Aim(NamedTuple):
    """What rules compare predictions with."""

    explore: float = 1.0
    """Sigmas that an upper confidence bound adds to the mean."""
    best: float = np.nan
    """Best pKd measured so far."""
    above: float = np.nan
    """pKd that a pair should exceed."""


class Rule(NamedTuple):
    """How pairs are scored, and what that needs."""

    score: Callable[[Floats, Floats, Aim], Floats]
    """Scores pairs with these means and sigmas, (B,) each in pKd."""
    needs_sigma: bool = True
    needs: str = ""
    """Field of `Aim` that has no default."""


def _mean(mean: Floats, _sigma: Floats, _aim: Aim) -> Floats:
    return mean


def _upper_confidence_bound(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    return mean + aim.explore * sigma


def _expected_improvement(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    """Return by how much a pair is expected to exceed the best, in pKd; 0 for one that does not."""
    gain, z = mean - aim.best, _standardised(mean - aim.best, sigma)
    density = np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)
    # Far below the best, both terms cancel but for rounding.
    return np.where(sigma > 0, np.maximum(gain * ndtr(z) + sigma * density, 0), np.maximum(gain, 0))


def probability_above(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    """Return the probability that the pKd of a pair exceeds ``aim.above``."""
    return np.asarray(ndtr(_standardised(mean - aim.above, sigma)))


def _standardised(gain: Floats, sigma: Floats) -> Floats:
    """Divide by sigma; without error, a gain is certain and anything else impossible."""
    certain = np.where(gain > 0, np.inf, -np.inf)
    return np.divide(gain, sigma, out=certain, where=sigma > 0)


RULES: Mapping[RuleName, Rule] = {
    "mean": Rule(_mean, needs_sigma=False),
    "ucb": Rule(_upper_confidence_bound),
    "improvement": Rule(_expected_improvement, needs="best"),
    "probability": Rule(probability_above, needs="above"),
}
"""By the names that ``--rule`` takes."""


def best_first(score: Floats, mean: Floats) -> NDArray[np.int64]:
    """Order pairs by score, shape (B,); of equal scores by mean, and then as they come."""
    return np.lexsort((-mean, -score))


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
