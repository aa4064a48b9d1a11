"""Uncertainty of a prediction: sigma, from the variance of a prediction and a residual noise.

sigma^2 = (spread x standard deviation of the prediction)^2 + noise^2, in pKd. Both numbers are
fitted by likelihood to errors on pairs that no model had seen. They are not widened for few groups:
the models that are fitted to all pairs err less than those of the folds, and intervals of planted
tables covered 87 to 93 % without it (benchmarks/bench_regimes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfcx

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.core.arrays import Floats

RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""Values of (spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
LARGEST_RATIO = 8.0
"""Of the two parts of sigma^2 at the median deviation: the noise is at least a third of sigma. No
tested pair is as close to the training pairs as these are to themselves, and without a bound sigma
of a pair that was trained on could be a tenth of its error."""
CENSORED_ROUNDS = 20
"""Rounds of expectation maximisation if there are censored pairs."""
SMALLEST = 1e-6
"""Smallest noise, in pKd."""


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


def fit_sigma(
    error: Floats, deviation: Floats, censored: NDArray[np.int8] | None = None
) -> tuple[float, float]:
    """Fit spread and noise by the likelihood of normally distributed errors.

    The spread is 0 if the deviation is uninformative; the noise is above 0.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,)
        Label or bound minus predicted, and the standard deviation of the heads, in pKd.
    censored : NDArray, shape=(R,), dtype=int8, optional
        -1: the error is below the bound minus predicted; +1: above; 0 or None: exact.
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
    """Fit spread and noise to squared errors, see `fit_sigma`."""
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(square / factor_KR, axis=1), SMALLEST**2)
    loss_K = np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)
    loss_K[RATIOS * np.median(deviation**2) > LARGEST_RATIO] = np.inf
    best = int(np.argmin(loss_K))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)
