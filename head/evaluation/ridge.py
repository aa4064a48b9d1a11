"""Ridge regression on the joined vectors of pairs, without building a vector per pair.

A ridge needs only sums over rows, which follow from the vectors of the unique sequences and from
the number of times that two of them are paired. The sums of the inner folds add up, so each
strength costs one factorisation. Ridges on a subset of the inputs use a part of the same sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Matrix: TypeAlias = NDArray[np.float32]

CHUNK = 8192
"""Unique sequences converted to float64 at a time."""
PARALLEL_COLUMNS = 1500
"""Columns from which a ridge uses all cores. A smaller one is faster on one core, and with several
it waits for threads wherever another process keeps a core busy: 57 s instead of 6."""
ROUNDING = 1e-10
"""Scatter, relative to the sums it is computed from, below which it may be rounding alone."""
STRENGTHS = np.logspace(-4, 3, 8)
"""Ridge strengths, in units of the mean eigenvalue of the training rows' scatter matrix."""


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """One input of a ridge."""

    table_ND: Matrix
    """One vector per unique sequence, (N, D) float32."""
    index: Ints
    """Row of the table for each pair, (P,)."""


def ridge(blocks: Sequence[FeatureBlock], pkd: Floats, fit_rows: Ints, fold: Ints) -> Floats:
    """Fit a ridge on the joined vectors of pairs; inner folds choose its strength.

    Parameters
    ----------
    blocks : sequence of FeatureBlock
        The inputs, standardised.
    pkd : NDArray, shape=(P,), dtype=float64
    fit_rows : NDArray, shape=(F,), dtype=int64
        Pairs to learn from.
    fold : NDArray, shape=(F,), dtype=int64
        Inner fold of each of these pairs.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
        Prediction for every pair.
    """
    return ridges(blocks, pkd, fit_rows, fold, [range(len(blocks))])[0]


def ridges(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    choices: Sequence[Sequence[int]],
) -> list[Floats]:
    """Fit a `ridge` on each subset of the blocks; predictions have shape (P,).

    `choices` has the indices of the blocks of each ridge.
    """
    fits = fit_ridges(blocks, pkd, fit_rows, fold, choices)
    every_pair = np.arange(len(pkd))
    return [
        _predict([blocks[i] for i in choice], fit.weight_D[:, None], fit.intercept, every_pair)[
            :, 0
        ]
        for choice, fit in zip(choices, fits, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class RidgeFit:
    """The ridge of the strength with the smallest error on the inner folds."""

    weight_D: Floats
    """Weights of the joined columns of its blocks, (D,)."""
    intercept: float
    inner: Floats
    """Prediction for each training pair from the other folds, (F,); the mean for a single fold."""


def fit_ridges(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    choices: Sequence[Sequence[int]],
) -> list[RidgeFit]:
    """Fit a ridge on each subset of the blocks; the arguments are those of `ridges`."""
    columns = sum(min(block.table_ND.shape) for block in blocks)
    with threadpool_limits(1 if columns < PARALLEL_COLUMNS else None, user_api="blas"):
        return _fit_ridges(blocks, pkd, fit_rows, fold, choices)


def _fit_ridges(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    choices: Sequence[Sequence[int]],
) -> list[RidgeFit]:
    bases = [_training_span(block, fit_rows) for block in blocks]
    blocks = [
        block if basis is None else FeatureBlock(block.table_ND @ basis, block.index)
        for block, basis in zip(blocks, bases, strict=True)
    ]
    parts = [_moments(blocks, pkd, fit_rows[fold == k]) for k in range(int(fold.max()) + 1)]
    ends = np.cumsum([0, *(block.table_ND.shape[1] for block in blocks)])
    found = []
    for choice in choices:
        columns = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in choice])
        own = [part.select(columns) for part in parts]
        fit = _best_ridge([blocks[i] for i in choice], own, pkd, fit_rows, fold)
        sizes = np.cumsum([blocks[i].table_ND.shape[1] for i in choice])[:-1]
        weights = [
            weight if (basis := bases[i]) is None else basis @ weight
            for i, weight in zip(choice, np.split(fit.weight_D, sizes), strict=True)
        ]
        found.append(replace(fit, weight_D=np.concatenate(weights)))
    return found


def _best_ridge(
    blocks: Sequence[FeatureBlock],
    parts: Sequence[_Moments],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
) -> RidgeFit:
    """Fit with the strength of the smallest error on the inner folds."""
    n_folds = len(parts)
    total = sum(parts[1:], parts[0])
    inner_FS = np.full((len(fit_rows), len(STRENGTHS)), total.y / total.n)
    for k in range(n_folds if n_folds > 1 else 0):
        solved = (total - parts[k]).solve(STRENGTHS)
        inner_FS[fold == k] = _predict(blocks, *solved, fit_rows[fold == k])
    error = ((inner_FS - pkd[fit_rows, None]) ** 2).sum(0)
    # Among equals the strongest, which gives the mean for a single fold or pure noise.
    best = len(STRENGTHS) - 1 - int(np.argmin(error[::-1]))
    weights, intercept = total.solve(STRENGTHS[[best]])
    return RidgeFit(weights[:, 0], float(intercept[0]), inner_FS[:, best])


@dataclass(frozen=True, slots=True)
class _Moments:
    """Sums over rows that determine a ridge of any strength; they add over folds."""

    n: int
    x_D: Floats
    y: float
    xx_DD: Floats
    xy_D: Floats
    square_D: Floats
    """Sum of squares before rows were subtracted, which rounding errors are relative to."""

    def _values(self) -> tuple[Any, ...]:
        return self.n, self.x_D, self.y, self.xx_DD, self.xy_D, self.square_D

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def __sub__(self, other: _Moments) -> _Moments:
        left = (a - b for a, b in zip(self._values(), other._values(), strict=True))
        return replace(_Moments(*left), square_D=self.square_D)

    def select(self, columns: Ints) -> _Moments:
        """Return the sums of some of the columns."""
        xx_DD = self.xx_DD[np.ix_(columns, columns)]
        of_columns = self.xy_D[columns], self.square_D[columns]
        return _Moments(self.n, self.x_D[columns], self.y, xx_DD, *of_columns)

    def solve(self, strengths: Floats) -> tuple[Floats, Floats]:
        """Return weights (D, S) and unpenalised intercepts (S,) for S strengths."""
        x_mean, y_mean = self.x_D / self.n, self.y / self.n
        scatter = self.xx_DD - self.n * np.outer(x_mean, x_mean)
        target = self.xy_D - self.n * x_mean * y_mean
        unit = np.trace(scatter) / min(self.n, len(target))
        if unit <= ROUNDING * self.square_D.sum():  # all rows are equal
            scatter, unit = np.zeros_like(scatter), 1.0
        diagonal = np.diag_indices_from(scatter)
        solved = []
        for strength in strengths:
            matrix = scatter.copy(order="F")  # the order of LAPACK, which would copy otherwise
            matrix[diagonal] += strength * unit
            factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
            solved.append(linalg.cho_solve(factor, target, check_finite=False))
        weights = np.stack(solved, axis=1)
        return weights, y_mean - x_mean @ weights


def _training_span(block: FeatureBlock, fit_rows: Ints) -> Matrix | None:
    """Return a basis, (D, R), of the training sequences' span; None if these span all columns.

    A ridge gives no weight to directions outside this span, so nothing is lost.
    """
    train_ND = block.table_ND[np.unique(block.index[fit_rows])]
    if len(train_ND) >= train_ND.shape[1]:
        return None
    basis_DN, _ = np.linalg.qr(train_ND.T)
    return basis_DN


def _moments(blocks: Sequence[FeatureBlock], pkd: Floats, rows: Ints) -> _Moments:
    """Compute the sums over rows from the vectors of the unique sequences."""
    y = pkd[rows]
    # With a constant column, plain sums are cross products too.
    ones = FeatureBlock(np.ones((1, 1), np.float32), np.zeros(len(pkd), np.int64))
    grid = [[np.zeros((0, 0))] * len(blocks) for _ in blocks]
    for i, a in enumerate(blocks):
        grid[i][i] = _square(a, rows)
        for j, b in enumerate(blocks[:i]):
            grid[i][j] = _cross(a, b, rows)
            grid[j][i] = grid[i][j].T
    x_D, xy_D = (
        np.concatenate([_cross(block, ones, rows, weight)[:, 0] for block in blocks])
        for weight in (None, y)
    )
    xx_DD = np.block(grid)
    return _Moments(len(rows), x_D, float(y.sum()), xx_DD, xy_D, xx_DD.diagonal())


def _square(block: FeatureBlock, rows: Ints) -> Floats:
    """Sum over rows of the outer product of their vectors with themselves, in float64."""
    seen, times = np.unique(block.index[rows], return_counts=True)
    total = np.zeros((block.table_ND.shape[1],) * 2)
    for at in range(0, len(seen), CHUNK):
        x_ND = block.table_ND[seen[at : at + CHUNK]].astype(np.float64)
        x_ND *= np.sqrt(times[at : at + CHUNK, None])
        total += x_ND.T @ x_ND  # numpy recognises the symmetry and computes one half
    return total


def _cross(
    left: FeatureBlock, right: FeatureBlock, rows: Ints, weight: Floats | None = None
) -> Floats:
    """Sum over rows of the outer product of their left and right vectors, in float64."""
    (lefts, i), (rights, j) = (
        np.unique(block.index[rows], return_inverse=True) for block in (left, right)
    )
    if len(lefts) > len(rights):  # the dense intermediate has one row per left sequence
        return _cross(right, left, rows, weight).T
    values = np.ones(len(rows)) if weight is None else weight
    pairs = sparse.coo_array((values, (i, j)), (len(lefts), len(rights))).tocsr()
    total = np.zeros((left.table_ND.shape[1], right.table_ND.shape[1]))
    for at in range(0, len(lefts), CHUNK):
        some = pairs[at : at + CHUNK].tocsc()
        sums_NE = np.zeros((some.shape[0], total.shape[1]))
        for first in range(0, len(rights), CHUNK):
            beside_ME = right.table_ND[rights[first : first + CHUNK]].astype(np.float64)
            sums_NE += some[:, first : first + CHUNK] @ beside_ME
        total += left.table_ND[lefts[at : at + CHUNK]].astype(np.float64).T @ sums_NE
    return total


def _predict(
    blocks: Sequence[FeatureBlock], weights_DS: Floats, intercept_S: Floats | float, rows: Ints
) -> Floats:
    predicted = np.tile(np.atleast_1d(intercept_S), (len(rows), 1))
    start = 0
    for block in blocks:
        stop = start + block.table_ND.shape[1]
        seen, at = np.unique(block.index[rows], return_inverse=True)
        of_seen = [
            block.table_ND[seen[first : first + CHUNK]].astype(np.float64) @ weights_DS[start:stop]
            for first in range(0, len(seen), CHUNK)
        ]
        predicted += np.concatenate(of_seen)[at]
        start = stop
    return predicted
