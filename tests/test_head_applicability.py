import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abag.head.prediction import applicability
from abag.head.prediction.applicability import measure_applicability, nearest_distance


def by_hand(x_ND, others_RD, *, exclude_self=False):
    apart = np.linalg.norm(x_ND[:, None].astype(float) - others_RD[None].astype(float), axis=2)
    if exclude_self:
        np.fill_diagonal(apart, np.inf)
    return apart.min(axis=1)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_nearest_distance_equals_the_minimum_over_all_distances(n, r, seed):
    rng = np.random.default_rng(seed)
    x_ND, others_RD = (rng.normal(3, 1, size=(k, 5)).astype(np.float32) for k in (n, r))
    np.testing.assert_allclose(
        nearest_distance(x_ND, others_RD), by_hand(x_ND, others_RD), rtol=1e-4
    )
    np.testing.assert_allclose(
        nearest_distance(x_ND, x_ND, exclude_self=True),
        by_hand(x_ND, x_ND, exclude_self=True),
        rtol=1e-4,
        atol=1e-3,
    )


def test_the_block_size_does_not_change_distances(monkeypatch):
    x_ND = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    whole = nearest_distance(x_ND, x_ND, exclude_self=True)
    monkeypatch.setattr(applicability, "BLOCK", 7)
    np.testing.assert_allclose(nearest_distance(x_ND, x_ND, exclude_self=True), whole, rtol=1e-5)


def test_about_one_percent_of_similar_new_sequences_is_far(monkeypatch):
    monkeypatch.setattr(applicability, "MOST_REPRESENTATIVES", 500)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(24_000, 8)).astype(np.float32)
    found = measure_applicability(drawn[:4000])
    assert found.vectors_RD.shape == (500, 8)
    assert found.is_far(drawn[4000:]).mean() == pytest.approx(0.01, abs=0.008)
    assert found.is_far(drawn[:4000]).mean() < 0.02
    assert found.is_far(drawn[4000:] + 9).all()


def test_rows_of_a_table_are_measured_like_a_table_of_these_rows(monkeypatch):
    monkeypatch.setattr(applicability, "MOST_REPRESENTATIVES", 9)
    x_ND = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    for rows in (np.arange(3, 40, 2), np.array([2, 5])):
        found, expected = measure_applicability(x_ND, rows), measure_applicability(x_ND[rows])
        assert np.array_equal(found.vectors_RD, expected.vectors_RD)
        assert found.far_distance == expected.far_distance


def test_a_gap_between_two_families_is_far_though_near_the_mean():
    # two tight families on either side of the mean
    rng = np.random.default_rng(0)
    left, right = (rng.normal(at, 0.1, size=(50, 4)).astype(np.float32) for at in (-5, 5))
    found = measure_applicability(np.concatenate([left, right]))
    assert found.is_far(np.zeros((1, 4), np.float32)).all()
    assert not found.is_far(left).any()


def test_with_a_single_training_antigen_all_others_are_far():
    x_ND = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    found = measure_applicability(x_ND[:1])
    assert found.is_far(x_ND).tolist() == [False, True, True]


def test_vectors_that_overflow_float16_are_kept_in_float32():
    x_ND = np.array([[1e6, 0.0], [1e6, 9.0]], np.float32)
    found = measure_applicability(x_ND)
    assert found.vectors_RD.dtype == np.float32
    assert not found.is_far(x_ND).any()
