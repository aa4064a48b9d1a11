"""Noise by sequence: antibodies and antigens whose errors are smaller or larger than others'.

Errors of held-out pairs in units of their sigma are normal with a variance of their own for each
sequence. These variances are drawn from a scaled inverse chi-square distribution, whose strength
and scale the table tells; each is shrunk toward the scale as the strength asks for. See Gelman et
al., Bayesian Data Analysis, 3rd edition, 2.6. Sequences without held-out pairs have 1.
N sequences, R held-out pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import gammaln, ndtri, stdtrit

from abag.core.arrays import Floats, Ints

STRENGTHS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Degrees of freedom that are tried."""
SCALES = np.exp(np.linspace(np.log(0.2), np.log(2.0), 47))
"""Scales that are tried, in units of the mean squared error."""
CLEARLY = 4.0
"""Gain in log-likelihood, of all pairs and of pairs left out, from which sequences have noise of
their own."""
MANY_PAIRS = 50
"""Held-out pairs from which the errors of a sequence are told by the width that holds 90 % of them,
which a few large ones do not change."""
LEAST_PAIRS = 3
"""Held-out pairs without which a sequence counts for nothing."""


@dataclass(frozen=True, slots=True)
class SequenceNoise:
    """Factors of the variance of errors."""

    factor_N: Floats
    """By sequence, (N,); 1 where it is that of the regime."""
    left_out_R: Floats
    """The factor of each held-out pair's sequence without this pair, (R,)."""


def fit_sequence_noise(square: Floats, sequence: Ints, pair: Ints, number: int) -> SequenceNoise:
    """Fit the factors of N sequences.

    Parameters
    ----------
    square : ndarray, shape=(R,)
        Squared errors of held-out pairs, in units of sigma squared.
    sequence : ndarray, shape=(R,)
        Sequence of each.
    pair : ndarray, shape=(R,)
        Pair of each: one that was held out several times is left out as a whole.
    number : int
        N.
    """
    none = SequenceNoise(np.ones(number), np.ones(len(square)))
    count_N: Floats = np.asarray(np.bincount(sequence, minlength=number), np.float64)
    square = _without_tails(square, sequence, count_N)
    total_N: Floats = np.asarray(np.bincount(sequence, square, minlength=number), np.float64)
    used = count_N >= LEAST_PAIRS
    if used.sum() < 2 or not square.any():
        return none
    unit = float(total_N[used].sum() / count_N[used].sum())
    tried = []
    for strength, in_units in product(STRENGTHS, SCALES.tolist()):
        scale = in_units * unit
        likelihood = _likelihood(total_N[used], count_N[used], strength, scale)
        tried.append((likelihood, strength, scale))
    likelihood, strength, scale = max(tried)
    alike = -0.5 * float((count_N[used] * np.log(2 * np.pi * unit) + total_N[used] / unit).sum())
    if likelihood - alike < CLEARLY:
        return none

    def shrunk(total: Floats, count: Floats) -> Floats:
        # the factor is not known for sure: a 90 % interval is one of Student's t
        degrees = strength + count
        wider = np.square(stdtrit(degrees, 0.95) / ndtri(0.95))
        return np.asarray((strength * scale + total) / degrees * wider)

    factor_N = np.where(used, shrunk(total_N, count_N), 1.0)
    _, pair_of_row = np.unique(pair, return_inverse=True)
    square_of_pair = np.bincount(pair_of_row, square)[pair_of_row]
    times = np.bincount(pair_of_row)[pair_of_row]
    left_out = shrunk(total_N[sequence] - square_of_pair, count_N[sequence] - times)
    left_out_R = np.where(used[sequence], left_out, 1.0)
    gain = (square - np.log(left_out_R) - square / left_out_R).sum() / 2
    if gain < CLEARLY:  # it does not foretell errors of other pairs
        return none
    return SequenceNoise(factor_N, left_out_R)


def _without_tails(square: Floats, sequence: Ints, count_N: Floats) -> Floats:
    """Replace the squares of sequences with many pairs, (R,), by their 90 % quantile, rescaled."""
    if not (count_N >= MANY_PAIRS).any():
        return square
    quantile = np.quantile(square, 0.9)
    unit = square.mean() / quantile if quantile else 0.0
    rescaled = square.copy()
    for sequence_of_many in np.flatnonzero(count_N >= MANY_PAIRS):
        inside = sequence == sequence_of_many
        rescaled[inside] = unit * np.quantile(square[inside], 0.9)
    return rescaled


def _likelihood(total: Floats, count: Floats, strength: float, scale: float) -> float:
    """Return the log-likelihood of sums of squares with inverse chi-square variances."""
    half = strength / 2
    prior = half * np.log(strength * scale / 2) - gammaln(half)
    posterior = gammaln(half + count / 2) - (half + count / 2) * np.log(
        (strength * scale + total) / 2
    )
    return float((prior + posterior - count / 2 * np.log(2 * np.pi)).sum())
