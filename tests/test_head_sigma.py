"""Sigma: a spread and a noise that are fitted to errors on pairs that no model had seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from abag.head.models.pair_model import fit_sigma


@pytest.mark.parametrize(("level", "seed"), [(0.68, 0), (0.9, 1), (0.95, 2)])
def test_intervals_of_the_fitted_sigma_hold_their_share_of_new_errors(level, seed):
    rng = np.random.default_rng(seed)
    deviation = rng.uniform(0.1, 1.2, 8000)
    error = rng.normal(size=8000) * np.hypot(1.5 * deviation, 0.5)
    spread, noise = fit_sigma(error[:4000], deviation[:4000])
    sigma = np.hypot(spread * deviation, noise)[4000:]
    inside = np.abs(error[4000:]) <= ndtri((1 + level) / 2) * sigma
    assert inside.mean() == pytest.approx(level, abs=0.02)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), a=st.floats(0.3, 3), share=st.floats(0.45, 4))
def test_fit_sigma_recovers_simulated_spread_and_noise(seed, a, share):
    b = share * a  # within the bound of the noise
    rng = np.random.default_rng(seed)
    deviation = rng.uniform(0, 2, 4000)
    error = rng.normal(size=4000) * np.sqrt((a * deviation) ** 2 + b**2)
    spread, noise = fit_sigma(error, deviation)
    sigma = np.sqrt((spread * deviation) ** 2 + noise**2)
    assert sigma == pytest.approx(np.sqrt((a * deviation) ** 2 + b**2), rel=0.25)


def test_the_noise_is_at_least_a_third_of_sigma_at_the_median_deviation():
    rng = np.random.default_rng(0)
    deviation = rng.uniform(0, 2, 4000)
    spread, noise = fit_sigma(rng.normal(size=4000) * deviation, deviation)
    at_median = np.hypot(spread * np.median(deviation), noise)
    assert noise == pytest.approx(at_median / 3, rel=0.04)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_fit_sigma_maximizes_the_likelihood(seed):
    rng = np.random.default_rng(seed)
    deviation, error = rng.uniform(0.1, 1, 60), rng.normal(size=60)

    def nll(spread, noise):
        sigma2 = (spread * deviation) ** 2 + noise**2
        return np.mean(np.log(sigma2) + error**2 / sigma2)

    best = nll(*fit_sigma(error, deviation))
    grid = [nll(a, b) for a in np.linspace(0, 3, 40) for b in np.linspace(0.05, 3, 40)]
    assert best <= min(grid) + 1e-3


def test_heads_without_errors_have_a_positive_sigma():
    assert fit_sigma(np.zeros(10), np.zeros(10))[1] > 0
