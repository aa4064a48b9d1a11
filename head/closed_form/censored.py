"""Expected labels in place of the bounds of censored training pairs.

Models in closed form minimise squared errors, which a bound does not have. Expectation maximisation
alternates between a ridge on both vectors and the mean of a normal distribution that is cut off at
the bound, around the ridge's prediction from the other inner folds. All models and baselines of a
split then learn from these labels as from exact ones.

F training pairs, R pairs.

References
----------
Tobin: Estimation of relationships for limited dependent variables, Econometrica 26, 1958.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from abag.core.arrays import Floats
from abag.head.closed_form.linear import fit_linear
from abag.head.closed_form.pair_model import TrainingRows

ROUNDS, CLOSE = 20, 0.01
"""Most ridges that are fitted, and the change of all labels in pKd at which no more are."""
LEAST_SIGMA = 1e-6


def expected_labels(
    label: Floats, censored: NDArray[np.int8], mean: Floats, sigma: Floats | float
) -> tuple[Floats, Floats]:
    """Return mean and variance of the hidden labels, (R,) each; exact ones have no variance.

    Parameters
    ----------
    label : NDArray, shape=(R,), dtype=float64
        Label, or the bound of a censored one.
    censored : NDArray, shape=(R,), dtype=int8
        -1: the hidden label is below the bound; +1: above; 0: exact.
    mean, sigma : NDArray, shape=(R,), dtype=float64
        Normal distribution of the hidden label if no bound were known.
    """
    allowed = censored * (mean - label) / sigma  # sigmas from the bound, above 0 if it is satisfied
    ratio = np.sqrt(2 / np.pi) / erfcx(-allowed / np.sqrt(2))  # normal density / probability
    expected = np.where(censored == 0, label, mean + censored * sigma * ratio)
    left = np.clip(1 - ratio * (allowed + ratio), 0, 1)  # share of the variance
    return expected, np.where(censored == 0, 0.0, np.square(sigma) * left)


def impute_censored(training: TrainingRows) -> TrainingRows:
    """Replace the bounds of censored training pairs by expected labels, and mark these as exact."""
    pairs, rows, bound = training.pairs, training.rows, training.pkd
    censored = pairs.censored[rows]
    if not censored.any():
        return training
    pkd, side = pairs.pkd.copy(), pairs.censored.copy()
    side[rows] = 0
    training = replace(training, pairs=replace(pairs, pkd=pkd, censored=side))
    sigma = float(bound.std())
    for _ in range(ROUNDS):
        mean = fit_linear(training).inner
        label, variance = expected_labels(bound, censored, mean, max(sigma, LEAST_SIGMA))
        sigma = float(np.sqrt(np.mean(np.square(label - mean) + variance)))
        moved = np.abs(label - pkd[rows]).max()
        pkd[rows] = label
        if moved < CLOSE:
            break
    return training
