"""The uncertainty of predictions in pKd, and the labels to expect of censored pairs.

sigma^2 = (spread x the standard deviation of the prediction)^2 + noise^2. Spread and noise are
fitted to errors on pairs that no model had seen. R rows with errors, K ratios that are tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from abag.core.arrays import Floats

RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""Values of (spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
LARGEST_RATIO = 8.0
"""Largest ratio of the two parts of sigma^2 at the median deviation: the noise is at least a third
of sigma, or sigma of a pair that was trained on could be a tenth of its error."""
CENSORED_ROUNDS = 20
"""Rounds of expectation maximisation if there are censored pairs."""
SMALLEST = 1e-6
"""Least noise in pKd: errors of 0 would have sigma 0."""


def expected_labels(
    label: Floats, censored: NDArray[np.int8], mean: Floats, sigma: Floats | float
) -> tuple[Floats, Floats]:
    """Return mean and variance of the labels behind bounds, (R,) each, in pKd and pKd^2.

    A label is normal around `mean` with `sigma`, cut off at the bound `label` where `censored` is
    -1 (below it) or 1 (above). Where it is 0, the label is exact and its variance 0.
    """
    allowed = censored * (mean - label) / sigma  # sigmas from the bound, above 0 if it is satisfied
    # erfcx: far beyond the bound, density and probability are both 0 in floating point
    ratio = np.sqrt(2 / np.pi) / erfcx(-allowed / np.sqrt(2))  # normal density / probability
    expected = np.where(censored == 0, label, mean + censored * sigma * ratio)
    left = np.clip(1 - ratio * (allowed + ratio), 0, 1)  # share of the variance
    return expected, np.where(censored == 0, 0.0, np.square(sigma) * left)


def fit_sigma(
    error: Floats, deviation: Floats, censored: NDArray[np.int8] | None = None
) -> tuple[float, float]:
    """Fit spread and noise to errors by maximum likelihood.

    Parameters
    ----------
    error : Floats, shape=(R,)
        Label or bound minus prediction, in pKd.
    deviation : Floats, shape=(R,)
        Standard deviation of each prediction, in pKd.
    censored : NDArray, shape=(R,), dtype=int8, optional
        -1 if the label is below its bound, 1 if above, 0 if exact; None: all are exact.

    Returns
    -------
    tuple of float
        Spread, a factor of the deviation, and noise in pKd.
    """
    square = error**2
    spread, noise = _fit_squares(square, deviation)
    if censored is None or not censored.any():
        return spread, noise
    for _ in range(CENSORED_ROUNDS):
        sigma = np.sqrt(spread**2 * deviation**2 + noise**2)
        mean, variance = expected_labels(error, censored, np.zeros_like(error), sigma)
        spread, noise = _fit_squares(mean**2 + variance, deviation)
    return spread, noise


def _fit_squares(square: Floats, deviation: Floats) -> tuple[float, float]:
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(square / factor_KR, axis=1), SMALLEST**2)
    loss_K = np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)
    loss_K[RATIOS * np.median(deviation**2) > LARGEST_RATIO] = np.inf
    best = int(np.argmin(loss_K))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)
