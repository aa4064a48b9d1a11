"""Ridge regression on the joined vectors of pairs, without building a vector per pair.

A ridge needs only sums over rows, which follow from the vectors of the unique sequences and from
the number of times that two of them are paired. The sums of the inner folds add up, so each
strength costs one factorisation. Ridges on a subset of the inputs use a part of the same sums.
All sums are torch's, in float64, on a CPU or a GPU.

P pairs, R rows of them, N sequences, D joined columns, E those of another block, S strengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats, Ints, Matrix, distinct

if TYPE_CHECKING:
    import torch
    from torch import Tensor


CHUNK = 8192
"""Rows, or unique sequences, converted to float64 at a time."""
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
        Compute there; by default on the CPU.

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
    columns, every_pair = _Columns(blocks, pkd, device), np.arange(len(pkd))
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
        columns = _Columns(spanned, pkd, device)
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
    columns: _Columns,
    choice: Sequence[int],
    grams: Sequence[Tensor],
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
        solved = _solve(total - grams[k], size, STRENGTHS)
        inner_FS[fold == k] = columns.predict(choice, *solved, fit_rows[fold == k])
    error = ((inner_FS - y_F[:, None]) ** 2).sum(0)
    # Among equals the strongest, which gives the mean for a single fold or pure noise.
    best = len(STRENGTHS) - 1 - int(np.argmin(error[::-1]))
    weights, intercept = _solve(total, size, STRENGTHS[[best]])
    return RidgeFit(weights[:, 0], float(intercept[0]), inner_FS[:, best])


def _solve(gram: Tensor, size: float, strengths: Floats) -> tuple[Floats, Floats]:
    """Return weights (D, S) and unpenalised intercepts (S,) for S strengths."""
    import torch

    n = float(gram[-2, -2])
    x_mean_D, y_mean = gram[:-2, -2] / n, float(gram[-2, -1]) / n
    scatter_DD = gram[:-2, :-2] - n * x_mean_D[:, None] * x_mean_D
    target_D = gram[:-2, -1] - n * y_mean * x_mean_D
    unit = float(scatter_DD.trace()) / min(n, len(target_D))
    if unit <= ROUNDING * size:  # all rows are equal
        scatter_DD, unit = 0 * scatter_DD, 1.0
    solved = []
    for strength in strengths.tolist():
        matrix = scatter_DD.clone()
        matrix.diagonal().add_(strength * unit)
        factor = torch.linalg.cholesky(matrix)
        solved.append(torch.cholesky_solve(target_D[:, None], factor))
    weights_DS = torch.cat(solved, dim=1)
    intercept_S = y_mean - x_mean_D @ weights_DS
    return weights_DS.cpu().numpy(), intercept_S.cpu().numpy()


class _Columns:
    """The joined columns of blocks on a device, and sums over their rows."""

    def __init__(
        self, blocks: Sequence[FeatureBlock], pkd: Floats, device: torch.device | None
    ) -> None:
        import torch  # here: commands that fit no ridge start without torch

        self.device = device or torch.device("cpu")
        labels = np.stack([np.ones(len(pkd)), pkd], axis=1)
        self.blocks = [
            (self._tensor(block.table_ND), self._tensor(block.index)) for block in blocks
        ]
        self.labels = self._tensor(labels), self._tensor(np.arange(len(pkd)))

    def _tensor(self, array: Floats | Matrix | Ints) -> Tensor:
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def gram(self, rows: Ints) -> Tensor:
        """Sum the outer products of joined rows, columns then 1 and pKd: (D + 2, D + 2)."""
        import torch

        at = self._tensor(rows)
        seen = [(table, index[at]) for table, index in (*self.blocks, self.labels)]
        grid = [[torch.empty(0)] * len(seen) for _ in seen]
        for i, left in enumerate(seen):
            for j, right in enumerate(seen[: i + 1]):
                grid[i][j] = _sum_products(left, right)
                grid[j][i] = grid[i][j].T
        return torch.cat([torch.cat(line, dim=1) for line in grid])

    def predict(
        self, choice: Sequence[int], weights_DS: Floats, intercept_S: Floats, rows: Ints
    ) -> Floats:
        """Predict rows from the chosen blocks, (R, S)."""
        import torch

        at, start = self._tensor(rows), 0
        predicted = self._tensor(np.tile(intercept_S, (len(rows), 1)))
        weights = self._tensor(weights_DS)
        for table, index in (self.blocks[i] for i in choice):
            own = weights[start : start + table.shape[1]]
            used, of_row = index[at].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            predicted += torch.cat([table[n].double() @ own for n in used.split(CHUNK)])[of_row]
            start += table.shape[1]
        return np.asarray(predicted.cpu())


def _training_span(block: FeatureBlock, fit_rows: Ints) -> Matrix | None:
    """Return a basis, (D, R), of the training sequences' span; None if these span all columns.

    A ridge gives no weight to directions outside this span, so nothing is lost.
    """
    rows = distinct(block.index[fit_rows])
    if len(rows) >= block.table_ND.shape[1]:
        return None
    basis_DN, _ = np.linalg.qr(block.table_ND[rows].T)
    return basis_DN


def _sum_products(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Sum over rows the outer products of their left and right vectors, (D, E).

    Each side is a table, (N, D), and the sequence of each row, (R,). The rows of one left sequence
    are added up first, so that the product has a term per sequence, not per row.
    """
    (left_ND, left_R), (right_ME, right_R) = left, right
    if len(left_R.unique()) > len(right_R.unique()):  # type: ignore[no-untyped-call]
        return _sum_products(right, left).T
    total = left_ND.new_zeros(left_ND.shape[1], right_ME.shape[1]).double()
    for rows in left_R.argsort(stable=True).split(CHUNK):  # type: ignore[no-untyped-call]
        used, of_row = left_R[rows].unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
        sums = total.new_zeros(len(used), total.shape[1])
        sums.index_add_(0, of_row, right_ME[right_R[rows]].double())
        total.addmm_(left_ND[used].double().T, sums)
    return total
