"""Rules that score predicted pairs for a batch: the pair with the largest score is ordered first.

B pairs with a predicted pKd and its standard error sigma.

References
----------
Jones, Schonlau, Welch: Efficient global optimization of expensive black-box functions, J. Global
Optim. 13:455 (1998): expected improvement. Srinivas et al.: Gaussian process optimization in the
bandit setting, ICML 2010: upper confidence bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from abag.core.arrays import Floats
from abag.head.design.rank_options import RuleName


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
