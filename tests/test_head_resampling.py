"""Scores of bootstrap samples equal those of the repeated rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from abag.head.evaluation.comparison import (
    OF_MEAN_ERROR,
    VECTORISED,
    mean_errors,
    median_of_samples,
    score_repeated,
    scorer,
)

ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.lists(st.integers(0, 3), min_size=3,
                                                             max_size=3)),
    min_size=1, max_size=16,
)  # fmt: skip


@pytest.mark.parametrize("metric", VECTORISED)
@given(rows=ROWS, scale=st.sampled_from([1.0, 0.1, 1 / 3]), antigens=st.integers(1, 3))
def test_scores_of_samples_equal_those_of_the_repeated_rows(metric, rows, scale, antigens):
    pkd, predicted, counts_RD = (np.array(column) for column in zip(*rows, strict=True))
    antigen = np.arange(len(rows)) % antigens
    inputs, counts_DR = (metric, scale * pkd, scale * predicted, antigen), counts_RD.T
    expected = score_repeated(*inputs, counts_DR)
    assert_allclose(scorer(*inputs)(counts_DR), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", OF_MEAN_ERROR)
@given(rows=ROWS, draws=st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), max_size=3))
def test_errors_summed_by_cluster_score_samples_of_clusters_like_the_repeated_rows(
    metric, rows, draws
):
    pkd, predicted, _ = (np.array(column) for column in zip(*rows, strict=True))
    cluster, counts_DK = np.arange(len(rows)) % 5, np.array(draws, np.float64).reshape(-1, 5)
    error, finish = OF_MEAN_ERROR[metric]
    error_K = np.bincount(cluster, error(pkd - predicted), minlength=5)
    found = finish(mean_errors(error_K, np.bincount(cluster, minlength=5), counts_DK))
    expected = score_repeated(metric, pkd, predicted, cluster, counts_DK[:, cluster])
    assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(rows=ROWS)
def test_medians_of_samples_equal_those_of_the_repeated_values(rows):
    values, _, counts_RD = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    counts_DR = counts_RD.T.astype(np.int64)
    expected = [np.median(np.repeat(values, c)) if c.any() else np.nan for c in counts_DR]
    assert_allclose(median_of_samples(values, counts_DR), expected)


def test_a_metric_without_a_vectorised_form_is_computed_on_repeated_rows():
    antigen, counts_DR = np.zeros(12, np.int64), np.ones((2, 12), np.int64)
    pkd = np.arange(12.0)
    found = scorer("pearson", pkd, pkd, antigen)(counts_DR)
    assert found.tolist() == [1.0, 1.0]


def test_predictions_that_are_not_finite_make_every_sample_undefined():
    pkd, predicted = np.arange(3.0), np.array([1, np.nan, 3])
    counts_DR = np.array([[1, 0, 1]])  # also where the sample leaves the row out
    assert np.isnan(scorer("rmse", pkd, predicted, np.zeros(3, np.int64))(counts_DR)).all()


@pytest.mark.parametrize("metric", VECTORISED)
def test_a_fold_without_rows_has_undefined_scores(metric):
    nothing = np.zeros(0)
    counts_DR = np.zeros((3, 0), np.int64)
    found = scorer(metric, nothing, nothing, np.zeros(0, np.int64))(counts_DR)
    assert np.isnan(found).all()
    assert np.isnan(median_of_samples(nothing, counts_DR)).all()
