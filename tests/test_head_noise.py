"""Noise of single sequences, and sigma of variants, on planted errors with a known truth."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm, t

from abag.head.predictor.parts import Growth, Mixture, SigmaLevels
from abag.head.predictor.weigh import (
    Errors,
    calibrate,
    fit_noise,
    fit_sequence_noise,
    tail_factor,
)
from abag.head.regimes.splits import KNOWN


def draw_errors(scales, pairs, seed=0):
    """Draw errors of as many pairs per sequence, with a standard deviation each."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(len(scales)), pairs)
    return rng.normal(size=len(sequence)) * np.asarray(scales)[sequence], sequence


def test_sequences_with_noise_of_their_own_are_covered_each():
    scales = [0.3, 0.6, 1.0, 2.0]
    error, sequence = draw_errors(scales, 300)
    noise = fit_sequence_noise(error**2, sequence, np.arange(len(error)), 5)
    assert np.sqrt(noise.factor_N[:4]) == pytest.approx(scales, rel=0.1)
    assert noise.factor_N[4] == 1  # never held out
    inside = abs(error) <= norm.ppf(0.95) * np.sqrt(noise.left_out_R)
    for number in range(4):
        assert inside[sequence == number].mean() == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_equal_noise_is_left_alone(seed):
    error, sequence = draw_errors(np.ones(40), 12, seed)
    noise = fit_sequence_noise(error**2, sequence, np.arange(len(error)), 40)
    assert (noise.factor_N == 1).all()
    assert (noise.left_out_R == 1).all()


def test_few_pairs_are_shrunk_toward_the_others():
    scales = np.repeat([0.4, 2.0], 30)
    error, sequence = draw_errors(scales, 4, seed=3)
    noise = fit_sequence_noise(error**2, sequence, np.arange(len(error)), 60)
    raw = np.array([np.mean(error[sequence == number] ** 2) for number in range(60)])
    assert np.ptp(np.log(noise.factor_N)) < np.ptp(np.log(raw))
    assert noise.factor_N[30:].mean() > 5 * noise.factor_N[:30].mean()


def test_the_factor_of_a_pair_does_not_know_its_own_error():
    error, sequence = draw_errors([0.3, 1.0, 2.0], 40)
    pair = np.arange(len(error)) // 2  # each pair was held out twice
    changed = error.copy()
    changed[:2] = 1.2
    before = fit_sequence_noise(error**2, sequence, pair, 3)
    after = fit_sequence_noise(changed**2, sequence, pair, 3)
    assert after.factor_N[0] > 1.3 * before.factor_N[0]
    assert after.left_out_R[0] < after.factor_N[0] / 1.2
    others = sequence == 0
    others[:2] = False
    assert after.left_out_R[others].min() > after.left_out_R[0]


@pytest.mark.parametrize(("pairs", "spread", "most"), [(20, 0.0, 1.0), (20, 1.3, 1.3), (200, 0, 2)])
def test_few_bad_predictions_make_no_larger_sigma_than_the_mean_has(pairs, spread, most):
    error, sequence = draw_errors([0.2, 0.2, 0.2, 2.0], pairs, seed=1)
    rows = np.arange(len(error))
    pkd = 7 + np.where(sequence == 3, spread, 0.0) * (-1.0) ** rows  # of one, labels vary so
    held_out = SimpleNamespace(
        measured=SimpleNamespace(regime=SimpleNamespace(levels=(KNOWN, ""))),
        tested=SimpleNamespace(rows=rows),
        predicted=pkd - error,
        sigma=np.full(len(error), 0.5),
        tells_sigma=np.ones(len(error), bool),
    )
    table = SimpleNamespace(pkd=pkd, label_sd=1.0, index=lambda _: sequence, features=None)
    factor_N = fit_noise(table, [held_out])["antibody"]
    largest = 0.5 * np.sqrt(factor_N[3])
    assert largest == pytest.approx(most, rel=1e-6 if pairs == 20 else 0.1)
    assert held_out.sigma[sequence == 3].max() <= largest * 1.05
    assert (held_out.sigma[sequence < 3] < 0.4).all()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_sigma_grows_with_distance_where_errors_do(power):
    rng = np.random.default_rng(0)
    distance = rng.integers(1, 7, 2000)
    square = 0.3 * (1 + 0.8 * (distance - 1) ** power)
    growing = rng.normal(size=2000) * np.sqrt(square)
    mixture = calibrate({"ridge": 1.0}, errors(growing, distance))
    sigma = mixture.sigma(np.zeros(2000), np.full(2000, 0.2), distance)
    assert sigma == pytest.approx(np.sqrt(square), rel=0.2)
    further = mixture.sigma(np.zeros(8), np.full(8, 0.2), np.arange(8))
    assert (np.diff(further) >= 0).all()
    assert further[0] == further[1]
    assert further[-1] == further[-2]  # no errors were measured there


def test_pairs_apart_from_training_tell_the_growth_of_sigma_and_not_its_size_nearby():
    rng = np.random.default_rng(1)
    near = errors(0.5 * rng.normal(size=1000), np.ones(1000, np.int64))
    distance = rng.integers(2, 6, 300)
    apart = errors(0.5 * distance * rng.normal(size=300), distance)
    mixture = calibrate({"ridge": 1.0}, near, apart)
    sigma = mixture.sigma(np.zeros(2), np.full(2, 0.2), np.array([1, 5]))
    assert sigma == pytest.approx([0.5, 2.5], rel=0.15)


def test_sigma_is_small_where_predictions_are_near_the_floor_of_an_assay():
    rng = np.random.default_rng(3)
    predicted = rng.uniform(5, 9, 800)
    truth = np.where(predicted < 6, 0.1, 0.6)
    near = errors(truth * rng.normal(size=800), 1)._replace(predicted=predicted)
    mixture = calibrate({"ridge": 1.0}, near)
    at = np.array([5.2, 8.0])
    assert mixture.sigma(at, np.full(2, 0.2)) == pytest.approx([0.1, 0.6], rel=0.4)
    # nothing is known beyond the predictions of the tested pairs
    beyond = mixture.sigma(np.array([2.0, 30.0]), np.full(2, 0.2))
    assert beyond == pytest.approx(mixture.sigma(np.array([5.0, 9.0]), np.full(2, 0.2)), rel=0.1)


@pytest.mark.parametrize("seed", range(12))
def test_sigma_does_not_depend_on_the_prediction_where_errors_do_not(seed):
    rng = np.random.default_rng(seed)
    near = errors(rng.normal(size=500), 1)._replace(predicted=rng.normal(size=500))
    assert calibrate({"ridge": 1.0}, near).levels == SigmaLevels()


@pytest.mark.parametrize("seed", range(12))
def test_sigma_does_not_grow_where_errors_do_not(seed):
    rng = np.random.default_rng(seed)
    near = errors(rng.normal(size=500), rng.integers(1, 4, 500))
    apart = errors(rng.normal(size=150), rng.integers(2, 7, 150))
    apart = apart._replace(pair=apart.pair + 500)
    mixture = calibrate({"ridge": 1.0}, near, apart)
    sigma = mixture.sigma(np.zeros(2), np.full(2, 0.2), np.array([1, 6]))
    assert sigma[1] < 1.3 * sigma[0]


@pytest.mark.parametrize("seed", range(6))
def test_pairs_that_are_held_out_again_are_no_further_measurements(seed):
    rng = np.random.default_rng(seed)
    once = errors(rng.normal(size=120), rng.integers(1, 7, 120))
    once = once._replace(predicted=rng.normal(size=120))
    again = []
    for _ in range(5):
        error = once.error + 0.1 * rng.normal(size=120)
        predicted = once.predicted + 0.1 * rng.normal(size=120)
        away = once.distance + rng.integers(0, 2, 120)
        again.append(once._replace(error=error, predicted=predicted, distance=away))
    mixture = calibrate({"ridge": 1.0}, Errors.joined(again))
    assert (mixture.levels, mixture.growth) == (SigmaLevels(), Growth())
    sequence = np.repeat(np.arange(10), 12)
    square = np.square(once.error * np.where(sequence % 2, 0.2, 2.0))
    noise = fit_sequence_noise(square, sequence, once.pair, 10)
    assert (noise.factor_N != 1).any()
    repeated = (np.tile(values, 3) for values in (square, sequence, once.pair))
    assert fit_sequence_noise(*repeated, 10).factor_N == pytest.approx(noise.factor_N)


def test_errors_of_zero_next_to_training_leave_sigma_above_zero():
    rng = np.random.default_rng(2)
    distance = np.repeat([1, 2, 4], 30)
    error = np.where(distance < 4, 0.0, rng.normal(size=90))
    mixture = calibrate({"ridge": 1.0}, errors(error, distance, variance=0.0))
    assert mixture.sigma(np.zeros(3), np.zeros(3), np.array([1, 2, 4])).min() > 0


def test_a_mixture_of_a_part_that_is_not_there_is_an_error():
    with pytest.raises(KeyError):
        Mixture({"kernel": 0.7, "ridge": 0.3}, 1.0, 0.5).pkd({"ridge": np.ones(3)})


def test_heavy_tails_get_intervals_that_hold_nine_of_ten():
    error = t(3).rvs(2000, random_state=np.random.default_rng(0))
    mixture = calibrate({"ridge": 1.0}, errors(error, 0, variance=0.0))
    exact_width = t(3).ppf(0.95)  # of the curve that the errors were drawn from
    assert norm.ppf(0.95) * mixture.noise > 1.08 * exact_width
    narrower = mixture.scaled(tail_factor(abs(error) / mixture.noise, np.arange(2000)))
    assert norm.ppf(0.95) * narrower.noise == pytest.approx(exact_width, rel=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_tails_of_normal_errors_change_little(seed):
    error = np.random.default_rng(seed).normal(size=500)
    assert tail_factor(abs(error), np.arange(500)) == pytest.approx(1, abs=0.09)


def test_few_errors_have_no_tail():
    assert tail_factor(np.full(49, 0.01), np.arange(49)) == 1
    assert tail_factor(np.zeros(50), np.arange(50)) == 0.5  # sigma is never 0


def test_a_sequence_with_heavy_tails_is_covered_like_the_others():
    sequence = np.repeat([0, 1, 2], 1000)
    error, _ = draw_errors([0.5, 1.0, 2.0], 1000)
    error[:1000] = 0.5 * t(2).rvs(1000, random_state=np.random.default_rng(1))
    noise = fit_sequence_noise(error**2, sequence, np.arange(3000), 3)
    scaled = abs(error) / np.sqrt(noise.left_out_R)
    inside = scaled <= norm.ppf(0.95) * tail_factor(scaled, np.arange(3000))
    for number in range(3):
        assert inside[sequence == number].mean() == pytest.approx(0.9, abs=0.025)


def errors(error, distance, variance=0.2):
    """Return exact errors of pairs at the same, or their own, distance."""
    exact = np.zeros(len(error), np.int8)
    at_distance = np.broadcast_to(np.asarray(distance, np.int64), len(error))
    predicted = np.zeros(len(error))
    of_models = np.full(len(error), variance)
    return Errors(error, predicted, of_models, at_distance, exact, np.arange(len(error)))
