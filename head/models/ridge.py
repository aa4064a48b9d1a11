"""Ridge regression on the joined vectors of pairs, without building a vector per pair.

A ridge needs only sums over rows, which follow from the vectors of the unique sequences and from
the number of times that two of them are paired. The sums of the inner folds add up, so each
strength costs one factorisation. Ridges on a subset of the inputs use a part of the same sums.
All sums are torch's, in float64, on a CPU or a GPU.

A ridge also gives the expected labels of censored training pairs. Models in closed form minimise
squared errors, which a bound does not have. Expectation maximisation alternates between a ridge on
both vectors and the mean of a normal distribution that is cut off at the bound, around the ridge's
prediction from the other inner folds. All models and baselines of a split then learn from these
labels as from exact ones.

P pairs, R rows of them, F training pairs, N sequences, D joined columns, E those of another block,
S strengths.

References
----------
Tobin: Estimation of relationships for limited dependent variables, Econometrica 26, 1958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats, Ints, Matrix, distinct
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_model import Arrays, FitSize, Fitted, PairVectors, TrainingRows
from abag.head.models.sigma import expected_labels

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
SIDES = ((0, 1), (0,), (1,))
"""Sides with weights, 0 for the antibody and 1 for the antigen, of all ridges on vectors."""
ROUNDS, CLOSE = 20, 0.01
"""Most ridges that are fitted, and the change of all labels in pKd at which no more are."""
LEAST_SIGMA = 1e-6
FACTORISE_S = 6e-10
"""A ridge on a CPU, times the cube of its columns: a factorisation per inner fold and strength."""
SUM_S = 3e-11
"""The Gram matrices of its inner folds, for each sequence and pair of columns."""


@dataclass(frozen=True, slots=True)
class LinearSettings:
    """The part of a `LinearModel` that is no array."""

    intercept: float
    """Prediction in pKd where both standardised vectors are 0."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A sum of a linear function of each standardised vector and an intercept."""

    settings: LinearSettings
    antibody: Standardizer
    antigen: Standardizer
    antibody_D: Floats
    """Weights of the standardised antibody vector, in pKd."""
    antigen_E: Floats

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        left_N = self.antibody.project(vectors.antibody_ND, self.antibody_D)
        right_M = self.antigen.project(vectors.antigen_ME, self.antigen_E)
        return np.asarray(
            self.settings.intercept + left_N[vectors.antibody] + right_M[vectors.antigen]
        )

    def variance(self, vectors: PairVectors) -> None:
        """Return None: not computed."""

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        return {
            **self.antibody.arrays("antibody"),
            **self.antigen.arrays("antigen"),
            "antibody.weight": self.antibody_D,
            "antigen.weight": self.antigen_E,
        }

    @classmethod
    def load(cls, arrays: Arrays, settings: LinearSettings) -> LinearModel:
        """Restore a model from `arrays` and `settings`."""
        return cls(
            settings,
            Standardizer.load(arrays, "antibody"),
            Standardizer.load(arrays, "antigen"),
            arrays["antibody.weight"],
            arrays["antigen.weight"],
        )


def fit_linear(training: TrainingRows, sides: tuple[int, ...] = (0, 1)) -> Fitted:
    """Fit a ridge to the training pairs; the inner folds choose its strength.

    The first call fits those of all `SIDES`, which share most of the work.
    """
    fits = training.shared.get("ridges")
    if fits is None:
        fits = training.shared["ridges"] = dict(
            zip(SIDES, _fit_sides(training, SIDES), strict=True)
        )
    return Fitted(cast("dict[tuple[int, ...], LinearModel]", fits)[sides])


def _blocks(training: TrainingRows) -> tuple[list[Standardizer], list[FeatureBlock]]:
    """Standardise the vectors of both sides."""
    vectors, rows = training.vectors, training.rows
    sides = (
        (vectors.antibody_ND, vectors.antibody.astype(np.int64)),
        (vectors.antigen_ME, vectors.antigen.astype(np.int64)),
    )
    scalings = [
        Standardizer.of(x_ND, index[rows], vectors.widths(side))
        for side, (x_ND, index) in enumerate(sides)
    ]
    both = zip(scalings, sides, strict=True)
    return scalings, [FeatureBlock(scaling.apply(x_ND), index) for scaling, (x_ND, index) in both]


def _fit_sides(training: TrainingRows, choices: Sequence[tuple[int, ...]]) -> list[LinearModel]:
    (antibody, antigen), blocks = _blocks(training)
    pkd, found = training.pairs.pkd, []
    fits = fit_ridges(blocks, pkd, training.rows, training.fold, choices, training.device)
    for sides, fit in zip(choices, fits, strict=True):
        weights = [np.zeros(block.table_ND.shape[1]) for block in blocks]
        ends = np.cumsum([len(weights[side]) for side in sides])[:-1]
        for side, weight_D in zip(sides, np.split(fit.weight_D, ends), strict=True):
            weights[side] = weight_D
        found.append(LinearModel(LinearSettings(fit.intercept), antibody, antigen, *weights))
    return found


def impute_censored(training: TrainingRows) -> TrainingRows:
    """Replace the bounds of censored training pairs by expected labels, and mark these as exact."""
    pairs, rows, bound = training.pairs, training.rows, training.pkd
    censored = pairs.censored[rows]
    if not censored.any():
        return training
    pkd, side = pairs.pkd.copy(), pairs.censored.copy()
    side[rows] = 0
    training = replace(training, pairs=replace(pairs, pkd=pkd, censored=side))
    blocks, sigma = _blocks(training)[1], float(bound.std())
    for _ in range(ROUNDS):
        (fit,) = fit_ridges(blocks, pkd, rows, training.fold, SIDES[:1], training.device)
        sigma = max(sigma, LEAST_SIGMA)
        label, variance = expected_labels(bound, censored, fit.inner, sigma)
        sigma = float(np.sqrt(np.mean(np.square(label - fit.inner) + variance)))
        moved = np.abs(label - pkd[rows]).max()
        pkd[rows] = label
        if moved < CLOSE:
            break
    return training


def linear_seconds(size: FitSize, cores: int) -> float:
    """Estimate the time of all ridges on vectors of a split."""
    pairs = size.training_pairs
    columns = sum(min(*both, pairs) for both in zip(size.unique, size.widths, strict=True))
    return factorise_seconds(columns, size, cores)


def factorise_seconds(columns: int, size: FitSize, cores: int) -> float:
    """Estimate the time of a ridge with this many columns."""
    factorised_s = FACTORISE_S * columns**3 + SUM_S * max(size.unique) * columns**2
    return factorised_s / math.sqrt(cores)


# ---- the solver ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """One input of a ridge."""

    table_ND: Matrix
    """One vector per unique sequence, (N, D) float32."""
    index: Ints
    """Row of the table for each pair, (P,)."""


@dataclass(frozen=True, slots=True)
class RidgeFit:
    """The ridge of the strength with the smallest error on the inner folds."""

    weight_D: Floats
    """Weights of the joined columns of its blocks, (D,)."""
    intercept: float
    inner: Floats
    """Prediction for each training pair from the other folds, (F,); the mean for a single fold."""


def ridge(
    block: FeatureBlock,
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    device: torch.device | None = None,
) -> Floats:
    """Fit a ridge on one input, and predict every pair, (P,); see `fit_ridges`."""
    (fit,) = fit_ridges([block], pkd, fit_rows, fold, [(0,)], device)
    return np.asarray(fit.intercept + (block.table_ND @ fit.weight_D)[block.index])


def fit_ridges(
    blocks: Sequence[FeatureBlock],
    pkd: Floats,
    fit_rows: Ints,
    fold: Ints,
    choices: Sequence[Sequence[int]],
    device: torch.device | None = None,
) -> list[RidgeFit]:
    """Fit a ridge on each subset of the blocks; inner folds choose its strength.

    Parameters
    ----------
    blocks : sequence of FeatureBlock
        The inputs, standardised.
    pkd : NDArray, shape=(P,), dtype=float64
    fit_rows : NDArray, shape=(F,), dtype=int64
        Pairs to learn from.
    fold : NDArray, shape=(F,), dtype=int64
        Inner fold of each of these pairs.
    choices : sequence of sequence of int
        The indices of the blocks of each ridge.
    device : torch.device, optional
        Compute there; by default on the CPU.
    """
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
            each = np.split(fit.weight_D, np.cumsum(list(map(len, own)))[:-1])
            weights = [
                weight if (basis := bases[i]) is None else basis @ weight
                for i, weight in zip(choice, each, strict=True)
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
