"""Rules, caps and expectations of `rank`, against integrals, and plain loops."""

import numpy as np
import pytest
from chunks import set_sizes
from heads import choices_of
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate, stats

from abag import RankOptions
from abag.head.design import batches
from abag.head.design.batches import (
    LEAST_SKEW,
    LESS_SURE,
    RULES,
    USUAL_SHARE,
    Aim,
    KnownErrors,
    SharedErrors,
    best_first,
    choose_capped,
    degrees_of_sigma,
    estimate_shares,
    unsure_of_best,
)

PKD = st.floats(4, 12)
SIGMA = st.floats(0.05, 3)


def score(rule, mean, sigma, **aim):
    return RULES[rule](np.array([mean]), np.array([sigma]), Aim(**aim))[0]


def integral(of_gain, mean, sigma, limit):
    """Integrate a function of the excess over `limit`, times the density, within 12 sigma."""
    low = np.clip((limit - mean) / sigma, -12, 12)  # the rest of the distribution is below 1e-31
    whole, _ = integrate.quad(
        lambda z: of_gain(mean + z * sigma - limit) * stats.norm.pdf(z), low, 12, limit=200
    )
    return whole


@example(mean=8.000000000000002, sigma=0.05, best=8.0)
@given(PKD, SIGMA, PKD)
def test_expected_improvement_is_the_integral_of_the_gain(mean, sigma, best):
    whole = integral(lambda gain: gain, mean, sigma, best)
    assert score("improvement", mean, sigma, best=best) == pytest.approx(whole, abs=1e-7)


@given(PKD, SIGMA, PKD)
def test_the_probability_is_the_integral_above_the_threshold(mean, sigma, above):
    whole = integral(lambda _gain: 1.0, mean, sigma, above)
    assert score("probability", mean, sigma, above=above) == pytest.approx(whole, abs=1e-7)


def test_the_upper_confidence_bound_adds_sigmas_to_the_mean():
    assert score("ucb", 8.0, 0.5, explore=2.0) == 9.0
    assert score("ucb", 8.0, 0.5) == 8.25
    assert score("mean", 8.0, 0.5, explore=2.0) == 8.0


@pytest.mark.parametrize(("mean", "gain", "probability"), [(9.0, 1.0, 1.0), (8.0, 0, 0), (7, 0, 0)])
def test_without_error_a_gain_is_certain_or_impossible(mean, gain, probability):
    assert score("improvement", mean, 0.0, best=8.0) == gain
    assert score("probability", mean, 0.0, above=8.0) == probability


def test_the_options_offer_every_rule():
    assert choices_of(RankOptions, "rule") == {*RULES}


def test_equal_scores_are_ordered_by_mean_and_then_as_they_come():
    assert best_first(np.array([0.0, 1, 0, 0]), np.array([5.0, 1, 7, 5])).tolist() == [1, 2, 0, 3]


@given(
    groups=st.lists(st.integers(0, 6), max_size=30),
    size=st.integers(1, 30),
    most=st.integers(1, 5),
)
def test_a_cap_takes_the_best_that_keep_to_it_as_a_plain_loop_does(groups, size, most):
    order = np.random.default_rng(len(groups)).permutation(len(groups))
    sites = [[site % 4, site % 3 + 4] for site in groups]  # as double mutants have
    taken = []
    for candidate in order.tolist():
        taken_at = [sum(site in sites[i] for i in taken) for site in sites[candidate]]
        if max(taken_at) < most and len(taken) < size:
            taken.append(candidate)
    assert choose_capped(order, size, sites, most).tolist() == taken


MEAN = np.array([8.4, 8.0, 7.9, 7.0, 6.0])
WIDTH = np.array([0.3, 0.6, 0.2, 1.5, 1.0])


def exact_best(correlation, first):
    """Mean of the largest of the first pairs, by integrals over its distribution function."""
    mean = MEAN[:first]
    sigma = WIDTH[:first]
    grid = np.linspace(-2, 18, 4001)
    common = stats.norm.ppf((np.arange(200) + 0.5) / 200)
    spread = np.sqrt(1 - correlation) * sigma
    shifted = mean + np.sqrt(correlation) * sigma * common[:, None]
    below = stats.norm.cdf((grid[:, None, None] - shifted) / spread).prod(axis=-1).mean(axis=-1)
    return grid[-1] - integrate.trapezoid(below, grid), grid, below


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_expected_best_of_a_batch_is_that_of_the_exact_distribution(correlation):
    expected = KnownErrors(SharedErrors(correlation)).expect(MEAN, WIDTH)
    exact = [exact_best(correlation, first)[0] for first in range(1, 6)]
    np.testing.assert_allclose(expected.best_of_first, exact, atol=0.03)
    _, grid, below = exact_best(correlation, 5)
    low, high = np.interp([0.05, 0.95], below, grid)
    assert expected.best_interval == pytest.approx((low, high), abs=0.05)
    assert np.isnan(expected.above)


def test_with_fully_correlated_errors_the_best_is_as_uncertain_as_one_pair():
    expected = KnownErrors(SharedErrors(1.0)).expect(np.array([8.0, 7.5, 7.0]), np.full(3, 0.5))
    assert expected.best_of_first[-1] == pytest.approx(8.0, abs=0.02)
    assert expected.best_interval == pytest.approx((8 - 1.645 * 0.5, 8 + 1.645 * 0.5), abs=0.03)


def test_the_number_above_a_threshold_is_the_sum_of_probabilities_whatever_the_correlation():
    exact = stats.norm.sf((8 - MEAN) / WIDTH).sum()
    loose, tight = (KnownErrors(SharedErrors(c)).expect(MEAN, WIDTH, above=8.0) for c in (0.9, 0.0))
    assert loose.above == pytest.approx(exact, abs=0.03)
    assert tight.above == pytest.approx(exact, abs=0.03)
    assert loose.above_interval[1] - loose.above_interval[0] >= np.ptp(tight.above_interval)


def test_a_large_batch_is_simulated_in_blocks_and_the_same_every_time(monkeypatch):
    set_sizes(monkeypatch, simulated_values=1_000)
    mean = np.linspace(9, 6, 400)
    first, second = (
        KnownErrors(SharedErrors(0.3)).expect(mean, np.full(400, 0.5), above=8) for _ in range(2)
    )
    assert (np.diff(first.best_of_first) >= 0).all()
    assert first.best_of_first.tolist() == second.best_of_first.tolist()
    assert first.above == pytest.approx(stats.norm.sf((8 - mean) / 0.5).sum(), rel=0.02)


def test_the_best_of_independent_pairs_is_that_of_independent_errors():
    expected = KnownErrors().expect(np.full(100, 7.44), np.ones(100))
    largest = np.random.default_rng(1).standard_normal((50_000, 100)).max(axis=1)
    assert expected.best_of_first[-1] == pytest.approx(7.44 + largest.mean(), abs=0.03)  # 9.95
    low, high = 7.44 + np.quantile(largest, [0.05, 0.95])
    assert expected.best_interval == pytest.approx((low, high), abs=0.05)


def planted_errors(by_all, by_antigen, cells=200, antigens=12, pairs=36):
    """Return errors of folds with a share of their variance in common, cells and antigens."""
    rng = np.random.default_rng(3)
    cell = np.repeat(np.arange(cells), pairs)
    antigen = np.tile(np.arange(antigens), cells * pairs // antigens)
    common = rng.standard_normal(cells)[cell]
    of_antigen = rng.standard_normal((cells, antigens))[cell, antigen]
    own = rng.standard_normal(len(cell))
    error = np.sqrt(by_all) * common + np.sqrt(by_antigen) * of_antigen
    return error + np.sqrt(1 - by_all - by_antigen) * own, cell, antigen


@pytest.mark.parametrize(("by_all", "by_antigen"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.4, 0.4)])
def test_what_errors_have_in_common_is_estimated_and_shrunk_toward_what_is_usual(
    by_all, by_antigen
):
    error, cell, antigen = planted_errors(by_all, by_antigen)
    shares = estimate_shares(error, cell, antigen, np.arange(len(error)))
    assert shares.by_all == pytest.approx((200 * by_all + 20 * USUAL_SHARE) / 220, abs=0.1)
    assert shares.by_antigen == pytest.approx(12 / 32 * by_antigen, abs=0.08)
    assert shares.by_antibody == 0.0  # no antibody has two pairs
    few = np.flatnonzero(cell < 2)
    of_few = estimate_shares(error[few], cell[few], antigen[few], few)
    assert abs(of_few.by_all - USUAL_SHARE) < abs(shares.by_all - USUAL_SHARE) + 0.06
    assert sum(estimate_shares(np.ones(60), np.arange(60) // 2, few[:60] % 3, few[:60] % 2)) < 1


def test_pairs_of_one_antigen_are_as_uncertain_as_what_they_share():
    mean = np.full(24, 7.0)
    one, other = np.zeros(24, int), np.arange(24)
    of_one, of_many = (
        KnownErrors(SharedErrors(0.0, 0.8)).expect(mean, np.ones(24), other, antigen)
        for antigen in (one, other)
    )
    assert np.ptp(of_one.best_interval) > 1.5 * np.ptp(of_many.best_interval)
    assert of_one.best_of_first[-1] < of_many.best_of_first[-1] - 0.5


def test_labels_that_end_where_the_assay_does_say_how_far_measurements_reach():
    rng = np.random.default_rng(0)
    truth = rng.normal(6, 1, 4_000)
    mean, sigma = np.linspace(7.4, 7.0, 24), np.full(24, 0.6)
    normal = KnownErrors().expect(mean, sigma)
    open_ended = KnownErrors(labels=truth[:400]).expect(mean, sigma)
    assert open_ended.best_of_first[-1] == pytest.approx(normal.best_of_first[-1], abs=0.2)
    ended = KnownErrors(labels=np.minimum(truth[:400], 7.3 + rng.normal(0, 0.05, 400))).expect(
        mean, sigma
    )
    assert ended.best_interval[1] < 7.7 < normal.best_interval[0] + 0.1
    bare = [
        KnownErrors(labels=some).expect(mean, sigma).best_of_first
        for some in (truth[:9], np.ones(50))
    ]
    assert all(np.array_equal(best, normal.best_of_first) for best in bare)
    far = KnownErrors(labels=truth[:400]).expect(
        mean + 20, sigma
    )  # of another kind than the labels
    assert np.isfinite(far.best_interval).all()
    certain = KnownErrors(labels=truth[:400]).expect(mean, np.zeros(24))
    assert certain.best_interval == (7.4, 7.4)


def test_the_best_of_many_is_expected_beyond_the_few_labels_of_a_run():
    """Of normal labels and errors; a density that ended with 60 labels held 9 of 20."""
    inside, beyond = [], []
    for draw in range(20):
        rng = np.random.default_rng(draw)
        truth = rng.normal(7, 1, 3_060)
        mean = 7 + 0.64 * (truth - 7) + 0.48 * rng.normal(size=len(truth))  # errors of sd 0.6
        batch = 60 + np.argsort(-mean[60:])[:24]
        expected = KnownErrors(labels=truth[:60]).expect(mean[batch], np.full(24, 0.6))
        best = truth[batch].max()
        inside.append(expected.best_interval[0] <= best <= expected.best_interval[1])
        beyond.append(best - expected.best_of_first[-1])
    assert np.mean(inside) >= 0.85
    assert abs(np.mean(beyond)) < 0.2


def test_sigma_that_few_related_errors_tell_makes_the_best_of_a_batch_less_sure(monkeypatch):
    """Errors of one model, held-out and new, have a quarter of their variance in common."""
    monkeypatch.setattr(batches, "DRAWS", 500)
    mean = np.linspace(8, 7.6, 96)
    rng = np.random.default_rng(0)

    def errors(number):
        common = np.sqrt(0.25) * rng.standard_normal()
        return common + np.sqrt(0.75) * rng.standard_normal(number)

    inside = []
    for _ in range(600):
        sigma = np.full(96, np.sqrt(np.square(errors(20)).mean()))
        best = (mean + errors(96)).max()
        for degrees in (np.inf, degrees_of_sigma(20, 0.25)):
            known = KnownErrors(SharedErrors(0.25), degrees=degrees)
            low, high = known.expect(mean, sigma).best_interval
            inside.append(low <= best <= high)
    assert np.mean(inside[::2]) < 0.84  # as if sigma were known
    assert 0.87 < np.mean(inside[1::2]) < 0.94
    assert degrees_of_sigma(0, 0.3) == 2
    assert degrees_of_sigma(20, 0.0) == 22
    assert degrees_of_sigma(10**6, 0.25) == pytest.approx(18, abs=0.01)  # more tell nothing more


def test_a_few_labels_far_above_the_others_do_not_let_expect_more_than_is_predicted():
    rng = np.random.default_rng(0)
    selected = np.concatenate([rng.normal(8.5, 0.9, 120), [11.5, 11.9, 12.0, 12.3, 12.4, 13.4]])
    mean, sigma = np.linspace(11.1, 9.9, 16), np.full(16, 1.2)
    batch = KnownErrors(labels=selected).expect(mean, sigma)
    assert batch.best_of_first[0] == pytest.approx(mean[0], abs=0.05 * sigma[0])
    ended = KnownErrors(labels=np.minimum(selected, 10.5)).expect(mean, sigma)
    assert ended.best_of_first[0] < mean[0] - 0.2


def test_the_best_pairs_are_less_sure_where_labels_pile_up_at_their_worse_end():
    rng = np.random.default_rng(1)
    normal = rng.normal(7, 1, 300)
    floor = np.maximum(normal, 6.0)
    mean, sigma = np.linspace(8.4, 8.0, 24), np.full(24, 0.5)
    assert 0.5 < stats.skew(floor) < 1.2
    assert unsure_of_best(floor) == pytest.approx(LESS_SURE * (stats.skew(floor) - LEAST_SKEW))
    assert unsure_of_best(14 - floor) == unsure_of_best(normal) == unsure_of_best(np.ones(30)) == 0

    def expect():
        return KnownErrors(labels=floor).expect(mean, sigma, above=8.5)

    less_sure = expect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "LESS_SURE", 0.0)
        sure = expect()
    low, high = less_sure.best_interval
    assert low == pytest.approx(sure.best_interval[0], abs=0.2)
    assert high > sure.best_interval[1] + 0.3
    assert less_sure.above == pytest.approx(
        sure.above, rel=0.02
    )  # the sum of what `rank` writes of each
