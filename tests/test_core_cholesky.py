"""Factors and inverses in place, against scipy, and beside other threads."""

import threading
import time

import numpy as np
import pytest
from scipy import linalg
from threadpoolctl import threadpool_limits

from abag.core import cholesky


def positive_definite(size, seed=0):
    root = np.random.default_rng(seed).normal(size=(size, size))
    return np.asfortranarray(root @ root.T + size * np.eye(size))


@pytest.mark.parametrize("size", [1, 7, 200])
def test_factors_inverses_and_solutions_equal_those_of_scipy(size):
    matrix, targets = positive_definite(size), np.random.default_rng(1).normal(size=(size, 3))
    expected = linalg.cholesky(matrix, lower=True)
    lower = matrix.copy(order="F")
    cholesky.factorise(lower)
    np.testing.assert_allclose(np.tril(lower), expected, rtol=1e-12)
    for one in (targets, targets[:, 0]):
        found = cholesky.solve(lower, one)
        np.testing.assert_allclose(found, np.linalg.solve(matrix, one), rtol=1e-9)
    for transposed in (False, True):
        found = cholesky.solve_triangle(lower, targets, transposed=transposed)
        expected_found = linalg.solve_triangular(expected, targets, trans=transposed, lower=True)
        np.testing.assert_allclose(found, expected_found, rtol=1e-9)
    triangle, inverse = lower.copy(order="F"), lower
    cholesky.invert_triangle(triangle)
    np.testing.assert_allclose(np.tril(triangle) @ expected, np.eye(size), atol=1e-12)
    cholesky.invert(inverse)
    np.testing.assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(matrix)), atol=1e-12)


def test_targets_are_not_overwritten():
    lower, target = positive_definite(5), np.ones(5)
    cholesky.factorise(lower)
    cholesky.solve(lower, target)
    np.testing.assert_array_equal(target, 1)


def test_a_matrix_that_is_not_positive_definite_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        cholesky.factorise(-positive_definite(4))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 2)).T[:, ::2], "order of Fortran"),
        (np.arange(9.0).reshape(3, 3), "order of Fortran"),
        (np.eye(3, dtype=np.float32, order="F"), "float64"),
    ],
)
def test_a_matrix_that_lapack_would_misread_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        cholesky.factorise(matrix)


def test_other_threads_run_during_a_factorisation():
    matrix, ticks, done = positive_definite(1500), [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    other = threading.Thread(target=tick)
    other.start()
    with threadpool_limits(1, user_api="blas"):
        begun = time.perf_counter()
        cholesky.factorise(matrix)
        cholesky.invert(matrix)
        ended = time.perf_counter()
    done.set()
    other.join()
    # a call that held the lock would leave at most one tick, between both calls
    assert sum(begun < at < ended for at in ticks) > 10
