"""Ridges from one reduction of their matrices: equal to a factorisation per strength."""

import numpy as np
import pytest
import torch
from chunks import set_sizes
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from abag.core.cores import limit_blas
from abag.head.models.ridge import STRENGTHS, Factorised, FeatureBlock, Ridge, Tridiagonal


@given(columns=st.integers(2, 40), rows=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_a_reduced_matrix_gives_what_a_factorisation_per_number_gives(columns, rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-3, 1, columns)
    matrix = torch.from_numpy(x.T @ x)
    shifts = STRENGTHS * float(matrix.trace()) / min(rows, columns)
    reduced = Tridiagonal(matrix)
    for _ in range(2):  # a reduction serves other labels, too
        target = torch.from_numpy(x.T @ rng.normal(size=rows))
        expected = Factorised(matrix).solve(target, shifts)
        size = np.abs(expected).max()
        np.testing.assert_allclose(reduced.solve(target, shifts), expected, atol=1e-9 * size)


def test_a_matrix_that_is_not_positive_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="3 columns: row 1 is not positive definite"):
        Tridiagonal(-torch.eye(3).double()).solve(torch.ones(3).double(), np.array([0.1]))


def drawn_blocks(rng, widths):
    """Blocks of 90 pairs, with more rows than columns or fewer."""
    tables = [rng.normal(size=(size, width)) for size, width in zip((25, 40), widths, strict=True)]
    return [
        FeatureBlock(table.astype(np.float32), rng.integers(len(table), size=90))
        for table in tables
    ]


@pytest.mark.parametrize("widths", [(1, 1), (7, 50), (60, 12)])
@pytest.mark.parametrize("folds", [1, 4])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_ridge_of_other_labels_equals_one_that_is_factorised_for_them(
    widths, folds, is_weighted, monkeypatch
):
    rng = np.random.default_rng(0)
    blocks = drawn_blocks(rng, widths)
    rows = rng.permutation(90)[:70]
    inputs = blocks, rows, np.arange(70) % folds, None
    weight = rng.uniform(0.3, 2, 70) if is_weighted else None
    ridge = Ridge(*inputs, weight)
    set_sizes(monkeypatch, reduced_columns=0)
    plain = Ridge(*inputs, weight)
    for pkd in rng.normal(8, 1, (3, 90)):
        refitted = ridge.fit(pkd)
        expected = plain.fit(pkd)
        assert refitted.intercept == pytest.approx(expected.intercept, rel=1e-9)
        np.testing.assert_allclose(refitted.inner, expected.inner, atol=1e-9)
        for weights, others in zip(refitted.weights, expected.weights, strict=True):
            np.testing.assert_allclose(weights, others, atol=1e-9)


def test_libraries_of_linear_algebra_are_searched_once(monkeypatch):
    with limit_blas(1):
        monkeypatch.setattr("abag.core.cores.ThreadpoolController", None)
        with limit_blas(2), limit_blas(None):
            assert {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"} == {2}
