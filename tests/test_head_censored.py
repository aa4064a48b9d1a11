"""Censored labels and sigma: what is learned from bounds and errors, and what scores say of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import labelled, linear_table
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import in_ci
from scipy.special import ndtri
from scipy.stats import norm, truncnorm

import abag
from abag.embed.tables.chains import KINDS
from abag.head.models.pair_vectors import PairVectors, SideVectors, TrainingRows
from abag.head.models.ridge import expected_labels, fit_linear, impute_censored
from abag.head.predictor.parts import inner_folds
from abag.head.predictor.weigh import fit_sigma

LIMIT = 8.0
"""Half of the labels lie below it."""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A table whose hidden labels are a linear function of the stored vectors, plus noise."""
    case = linear_table(tmp_path_factory.mktemp("censored"), 60, 3, noise=0.4)
    case.hidden = case.frame["pKd"].to_numpy() + LIMIT - case.frame["pKd"].median()
    case.floored = case.frame.assign(pKd=np.maximum(case.hidden, LIMIT))
    case.marked = case.floored.assign(censored=np.where(case.hidden < LIMIT, ">", ""))
    return case


def fit(case, frame, run, **options):
    quick = {"report": False, "split": "antibody", "device": "cpu", "folds": 3} | options
    summary = abag.fit(frame, case.store, run, **quick)
    predictions = pd.read_parquet(run / "predictions.parquet")
    return summary, predictions.sort_values("row")


@given(side=st.sampled_from([-1, 1]), mean=st.floats(-20, 20), sigma=st.floats(0.1, 5))
def test_the_expected_label_is_the_mean_of_the_truncated_normal(side, mean, sigma):
    moments = expected_labels(np.zeros(1), np.array([side], np.int8), np.array([mean]), sigma)
    ends = (-np.inf, -mean / sigma) if side < 0 else (-mean / sigma, np.inf)
    if abs(mean) < 5 * sigma:  # further out scipy's own numbers are wrong
        wanted = truncnorm.stats(*ends, mean, sigma)
        np.testing.assert_allclose(np.ravel(moments), wanted, rtol=1e-6, atol=1e-9)
    assert side * moments[0] >= -1e-9
    assert 0 <= moments[1] <= sigma**2


def training_rows(below):
    """Pairs of one antigen whose labels follow the first column; those below 7 may be censored."""
    rng = np.random.default_rng(0)
    x_ND = rng.normal(size=(300, 3)).astype(np.float32)
    rows = np.arange(300)
    hidden = 7 + x_ND[:, 0] + 0.3 * rng.normal(size=300)
    censored = np.where(below & (hidden < 7), -1, 0).astype(np.int8)
    labels = labelled(rows, 0 * rows, np.where(censored, 7, hidden), censored)
    vectors = PairVectors(
        {
            "antibody": SideVectors(x_ND, rows),
            "antigen": SideVectors(np.ones((1, 2), np.float32), 0 * rows),
        }
    )
    return TrainingRows(labels, vectors, rows, inner_folds(rows)), hidden


def test_bounds_are_replaced_by_labels_near_the_hidden_ones():
    training, hidden = training_rows(True)
    imputed = impute_censored(training)
    bound = training.labels.censored != 0
    assert not imputed.labels.censored.any()
    assert (imputed.pkd[bound] <= 7).all()
    np.testing.assert_array_equal(imputed.pkd[~bound], hidden[~bound])
    error = (imputed.pkd - hidden)[bound]
    assert abs(error.mean()) < 0.1
    assert np.sqrt(np.mean(error**2)) < 0.5 * np.sqrt(np.mean((7 - hidden[bound]) ** 2))
    np.testing.assert_array_equal(impute_censored(training).pkd, imputed.pkd)


def test_exact_training_pairs_stay_as_they_are():
    training, _ = training_rows(False)
    assert impute_censored(training) is training


def test_the_baseline_after_censored_labels_is_a_ridge_on_their_expected_ones():
    """The ridge that is known from the expected labels is used for these and no others."""
    training = impute_censored(training_rows(True)[0])
    assert "imputed" in training.shared  # which holds it
    others = replace(training, labels=replace(training.labels, pkd=training.labels.pkd[::-1]))
    for rows, kinds in ((training, KINDS), (others, KINDS), (training, ("antibody",))):
        alone = fit_linear(rows.with_vectors(rows.vectors), kinds)
        shared = fit_linear(rows, kinds)
        assert shared.settings.intercept == pytest.approx(alone.settings.intercept, rel=1e-9)
        for name, array in alone.arrays().items():
            np.testing.assert_allclose(shared.arrays()[name], array, atol=1e-9)


@pytest.mark.parametrize("head", ["ridge", *in_ci("kernel", "mlp", "stack")])
def test_marked_labels_are_predicted_better_than_the_limit_taken_as_exact(case, tmp_path, head):
    error = {}
    for name in ("floored", "marked"):
        _, predictions = fit(case, getattr(case, name), tmp_path / name, head=head)
        error[name] = predictions["pkd_predicted"].to_numpy() - case.hidden
    for rows in (slice(None), case.hidden < LIMIT):
        floored = error["floored"][rows]
        marked = error["marked"][rows]
        assert np.sqrt(np.mean(marked**2)) < 0.8 * np.sqrt(np.mean(floored**2))
        assert abs(marked.mean()) < 0.5 * abs(floored.mean())


def test_a_floor_that_is_censored_is_fitted_as_rows_that_are_marked(case, tmp_path):
    of_floor, of_marks = (
        fit(case, frame, tmp_path / name, head="ridge", floor=floor)
        for name, frame, floor in (("a", case.floored, "censor"), ("b", case.marked, "keep"))
    )
    pd.testing.assert_frame_equal(of_floor[1], of_marks[1])
    assert of_floor[0]["counts"]["floor_rows"] == of_floor[0]["counts"]["censored_pairs"]


def test_a_test_part_of_bounds_only_is_refused(case, tmp_path):
    part = np.resize(["train"] * 4 + ["validation"], len(case.marked))
    frame = case.marked.assign(part=np.where(case.marked["censored"] == ">", "test", part))
    with pytest.raises(abag.AbagError, match="the labels of all test pairs are bounds"):
        fit(case, frame, tmp_path / "run", split="column=part", folds=0)


def test_a_fit_warns_that_its_scores_describe_the_exact_rows_only(case, tmp_path):
    summary, predictions = fit(case, case.marked, tmp_path / "run", head="ridge")
    censored = predictions[predictions["censored"] != 0]
    beyond = np.mean(
        [(fold["pkd_predicted"] > fold["pkd"]).mean() for _, fold in censored.groupby("fold")]
    )
    (regime,) = summary["regimes"]
    assert regime["metrics"]["head"]["beyond_bound"] == pytest.approx(beyond)
    assert regime["metrics"]["head"]["n_censored"] == len(censored)
    assert regime["n"] == len(predictions) - len(censored)
    share = len(censored) / len(predictions)
    assert regime["bounds"] == pytest.approx(share)
    assert regime["concordance"]["low"] > 0.5
    assert "ranking of labels and bounds is better than chance" in regime["sentence"]
    assert f"cannot be judged, as {share:.0%} of the tested pairs are bounds" in regime["sentence"]
    own = case.marked[["heavy", "antigen"]].iloc[predictions["row"] - 1]
    own = own.assign(fold=predictions["fold"].array, prediction=predictions["pkd_predicted"].array)
    again = abag.evaluate(tmp_path / "run", predictions=own)["predictions"]["regimes"][0]
    assert again["concordance"] == regime["concordance"]
    (line,) = [line for line in summary["warnings"] if "are those of the other pairs" in line]
    assert f"{len(censored)} of {len(predictions)} labels are censored" in line


def test_the_reported_coverage_is_that_of_the_written_sigma_on_exact_rows(case, tmp_path):
    summary, predictions = fit(case, case.marked, tmp_path / "run", head="kernel", split="random")
    exact = predictions[predictions["censored"] == 0]
    inside = (exact["pkd"] - exact["pkd_predicted"]).abs() <= norm.ppf(0.95) * exact["sigma"]
    assert summary["regimes"][0]["coverage"] == pytest.approx(inside.mean())


def test_a_pair_that_several_folds_test_counts_once(case, tmp_path):
    summary, predictions = fit(case, case.floored, tmp_path / "run", head="ridge", repeats=2)
    (regime,) = summary["regimes"]
    assert (regime["n"], regime["folds"], len(predictions)) == (180, 6, 360)
    assert regime["groups"] == pytest.approx(60)


def test_sigma_is_fitted_to_exact_errors_and_to_bounds_of_errors():
    rng = np.random.default_rng(0)
    error = 0.7 * rng.normal(size=4000)
    side = np.where(error < 0.2, -1, 0).astype(np.int8)
    bounded = np.maximum(error, 0.2)
    assert fit_sigma(bounded, np.zeros(4000), side)[1] == pytest.approx(0.7, rel=0.05)
    assert fit_sigma(bounded, np.zeros(4000))[1] < 0.55


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
    deviation = rng.uniform(0.1, 1, 60)
    error = rng.normal(size=60)

    def nll(spread, noise):
        sigma2 = (spread * deviation) ** 2 + noise**2
        return np.mean(np.log(sigma2) + error**2 / sigma2)

    best = nll(*fit_sigma(error, deviation))
    grid = [nll(a, b) for a in np.linspace(0, 3, 40) for b in np.linspace(0.05, 3, 40)]
    assert best <= min(grid) + 1e-3


def test_heads_without_errors_have_a_positive_sigma():
    assert fit_sigma(np.zeros(10), np.zeros(10))[1] > 0
