"""Ridge regression on the joined vectors of pairs, without building a vector per pair.

A ridge needs only sums over rows, which follow from the vectors of the unique sequences and from
the number of times that two of them are paired. The sums of the inner folds add up, so each
strength costs one factorisation. Ridges on a subset of the inputs use a part of the same sums.
`ridge_on_device` does the same arithmetic on a GPU.

P pairs, R rows of them, D joined columns, S strengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from abag.core import cholesky
from abag.core.arrays import Floats, Ints, Matrix, distinct

if TYPE_CHECKING:
    import torch


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


def ridge(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    device: torch.device | None = None,
) -> Floats:
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
    device : torch.device, optional
        Compute there with torch; by default with numpy.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
        Prediction for every pair.
    """
    return ridges(blocks, pkd, fit_rows, fold, [range(len(blocks))], device)[0]


def ridges(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    choices: Sequence[Sequence[int]],
    device: torch.device | None = None,
) -> list[Floats]:
    """Fit a `ridge` on each subset of the blocks; predictions have shape (P,).

    `choices` has the indices of the blocks of each ridge.
    """
    fits = fit_ridges(blocks, pkd, fit_rows, fold, choices, device)
    columns, every_pair = _columns(blocks, pkd, device), np.arange(len(pkd))
    return [
        columns.predict(choice, fit.weight_D[:, None], np.array([fit.intercept]), every_pair)[:, 0]
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
    device: torch.device | None = None,
) -> list[RidgeFit]:
    """Fit a ridge on each subset of the blocks; the arguments are those of `ridges`."""
    size = sum(min(block.table_ND.shape) for block in blocks)
    with threadpool_limits(1 if size < PARALLEL_COLUMNS else None, user_api="blas"):
        bases = [_training_span(block, fit_rows) for block in blocks]
        spanned = [
            block if basis is None else FeatureBlock(block.table_ND @ basis, block.index)
            for block, basis in zip(blocks, bases, strict=True)
        ]
        columns = _columns(spanned, pkd, device)
        grams = [columns.gram(fit_rows[fold == k]) for k in range(int(fold.max()) + 1)]
        ends = np.cumsum([0, *(block.table_ND.shape[1] for block in spanned)])
        found = []
        for choice in choices:
            own = [np.arange(ends[i], ends[i + 1]) for i in choice]
            at = np.concatenate([*own, ends[-1] + np.arange(2)])  # and the columns of 1 and pKd
            every = list(choice) == list(range(len(blocks)))
            parts = grams if every else [gram[at][:, at] for gram in grams]
            fit = _best_ridge(columns, choice, parts, pkd[fit_rows], fit_rows, fold)
            weights = [
                weight if (basis := bases[i]) is None else basis @ weight
                for i, weight in zip(
                    choice, np.split(fit.weight_D, np.cumsum(list(map(len, own)))[:-1]), strict=True
                )
            ]
            found.append(replace(fit, weight_D=np.concatenate(weights)))
    return found


def _best_ridge(
    columns: Columns,
    choice: Sequence[int],
    grams: Sequence[Any],
    y_F: Floats,
    fit_rows: Ints,
    fold: Ints,
) -> RidgeFit:
    """Fit with the strength of the smallest error on the inner folds."""
    n_folds, total = len(grams), sum(grams[1:], grams[0])
    # What rounding errors are relative to, also where rows are subtracted.
    size = float(total[:-2, :-2].trace())
    inner_FS = np.full((len(fit_rows), len(STRENGTHS)), y_F.mean())
    for k in range(n_folds if n_folds > 1 else 0):
        solved = _solve(columns, total - grams[k], size, STRENGTHS)
        inner_FS[fold == k] = columns.predict(choice, *solved, fit_rows[fold == k])
    error = ((inner_FS - y_F[:, None]) ** 2).sum(0)
    # Among equals the strongest, which gives the mean for a single fold or pure noise.
    best = len(STRENGTHS) - 1 - int(np.argmin(error[::-1]))
    weights, intercept = _solve(columns, total, size, STRENGTHS[[best]])
    return RidgeFit(weights[:, 0], float(intercept[0]), inner_FS[:, best])


class Columns(Protocol):
    """The joined columns of blocks; sums over rows are matrices of one library."""

    def gram(self, rows: Ints) -> Any:  # noqa: ANN401 - a matrix of numpy or of torch
        """Sum the outer products of joined rows, columns then 1 and pKd: (D + 2, D + 2) float64."""

    def solve(self, scatter_DD: Any, penalty: float, target_D: Any) -> Floats:  # noqa: ANN401
        """Solve ``(scatter + penalty) weights = target``; weights have shape (D,)."""

    def predict(
        self, choice: Sequence[int], weights_DS: Floats, intercept_S: Floats, rows: Ints
    ) -> Floats:
        """Predict rows from the chosen blocks, (R, S)."""


def _columns(blocks: Sequence[FeatureBlock], pkd: Floats, device: torch.device | None) -> Columns:
    if device is None:
        return _NumpyColumns(blocks, pkd)
    from abag.head.evaluation.ridge_on_device import TorchColumns

    tables, index = [block.table_ND for block in blocks], [block.index for block in blocks]
    return TorchColumns(tables, index, pkd, device)


def _solve(
    columns: Columns,
    gram: Any,  # noqa: ANN401 - a matrix of numpy or of torch
    size: float,
    strengths: Floats,
) -> tuple[Floats, Floats]:
    """Return weights (D, S) and unpenalised intercepts (S,) for S strengths."""
    n = float(gram[-2, -2])
    x_mean_D, y_mean = gram[:-2, -2] / n, float(gram[-2, -1]) / n
    scatter_DD = gram[:-2, :-2] - n * x_mean_D[:, None] * x_mean_D
    target_D = gram[:-2, -1] - n * y_mean * x_mean_D
    unit = float(scatter_DD.trace()) / min(n, len(target_D))
    if unit <= ROUNDING * size:  # all rows are equal
        scatter_DD, unit = 0 * scatter_DD, 1.0
    solved = [columns.solve(scatter_DD, strength * unit, target_D) for strength in strengths]
    weights_DS = np.stack(solved, axis=1)
    return weights_DS, y_mean - np.array(x_mean_D.tolist()) @ weights_DS


class _Seen(NamedTuple):
    """The distinct vectors of some rows."""

    table_ND: NDArray[np.floating]
    row: Ints
    """Row of the table of each distinct vector, (K,)."""
    at: Ints
    """Which of them each row has, (R,)."""
    times: Ints
    """How many rows have it, (K,)."""

    @classmethod
    def of(cls, table_ND: NDArray[np.floating], index: Ints) -> _Seen:
        """Find the distinct vectors of rows with the given index, (R,)."""
        row, at, times = np.unique(index, return_inverse=True, return_counts=True)
        return cls(table_ND, row, at, times)

    def vectors(self, start: int) -> Floats:
        """Return up to `CHUNK` of the distinct vectors."""
        return self.table_ND[self.row[start : start + CHUNK]].astype(np.float64)


class _NumpyColumns(NamedTuple):
    """`Columns` on the CPU."""

    blocks: Sequence[FeatureBlock]
    pkd: Floats

    def gram(self, rows: Ints) -> Floats:
        """Sum outer products; see `Columns`."""
        seen = [_Seen.of(block.table_ND, block.index[rows]) for block in self.blocks]
        labels = np.stack([np.ones(len(rows)), self.pkd[rows]], axis=1)
        seen.append(_Seen.of(labels, np.arange(len(rows))))
        grid = [[np.zeros((0, 0))] * len(seen) for _ in seen]
        for i, left in enumerate(seen):
            grid[i][i] = _square(left)
            for j, right in enumerate(seen[:i]):
                grid[i][j] = _cross(left, right)
                grid[j][i] = grid[i][j].T
        return np.block(grid)

    def solve(self, scatter_DD: Floats, penalty: float, target_D: Floats) -> Floats:
        """Solve for the weights; see `Columns`."""
        matrix = scatter_DD.copy()
        matrix.flat[:: len(matrix) + 1] += penalty
        # Transposed, the symmetric matrix has the order of LAPACK, which would copy it otherwise.
        cholesky.factorise(matrix.T)
        return cholesky.solve(matrix.T, target_D)

    def predict(
        self, choice: Sequence[int], weights_DS: Floats, intercept_S: Floats, rows: Ints
    ) -> Floats:
        """Predict rows; see `Columns`."""
        predicted, start = np.tile(intercept_S, (len(rows), 1)), 0
        for block in (self.blocks[i] for i in choice):
            stop = start + block.table_ND.shape[1]
            seen = _Seen.of(block.table_ND, block.index[rows])
            chunks = range(0, len(seen.row), CHUNK)
            of_seen = [seen.vectors(at) @ weights_DS[start:stop] for at in chunks]
            predicted += np.concatenate(of_seen)[seen.at]
            start = stop
        return predicted


def _training_span(block: FeatureBlock, fit_rows: Ints) -> Matrix | None:
    """Return a basis, (D, R), of the training sequences' span; None if these span all columns.

    A ridge gives no weight to directions outside this span, so nothing is lost.
    """
    rows = distinct(block.index[fit_rows])
    if len(rows) >= block.table_ND.shape[1]:
        return None
    basis_DN, _ = np.linalg.qr(block.table_ND[rows].T)
    return basis_DN


def _square(seen: _Seen) -> Floats:
    """Sum over rows of the outer product of their vectors with themselves."""
    total = np.zeros((seen.table_ND.shape[1],) * 2)
    for start in range(0, len(seen.row), CHUNK):
        x_ND = seen.vectors(start)
        x_ND *= np.sqrt(seen.times[start : start + CHUNK, None])
        total += x_ND.T @ x_ND  # numpy recognises the symmetry and computes one half
    return total


def _cross(left: _Seen, right: _Seen) -> Floats:
    """Sum over rows of the outer product of their left and right vectors."""
    if len(left.row) > len(left.at):  # the dense intermediate has one row per left sequence
        return _cross(right, left).T
    pairs = sparse.coo_array(
        (np.ones(len(left.at)), (left.at, right.at)), (len(left.row), len(right.row))
    ).tocsr()
    total = np.zeros((left.table_ND.shape[1], right.table_ND.shape[1]))
    for at in range(0, len(left.row), CHUNK):
        some = pairs[at : at + CHUNK].tocsc()
        sums_NE = np.zeros((some.shape[0], total.shape[1]))
        for first in range(0, len(right.row), CHUNK):
            sums_NE += some[:, first : first + CHUNK] @ right.vectors(first)
        total += left.vectors(at).T @ sums_NE
    return total
