"""The kernel and the noise of a Gaussian process, chosen from a small grid.

Heads with different criteria try mostly the same kernels, so each is solved once for all heads.

F training pairs, K inner folds.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats
from abag.head.closed_form.kernels import PairKernel, PairSet

Criterion = Literal["error", "evidence"]
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PRODUCTS = (0.0, 1 / 3, 1.0)
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
SEARCH_PAIRS = 1_000
"""Training pairs that choose the kernel. Matrices of at most this size are solved faster on one
core, see `ridge.PARALLEL_COLUMNS`."""


class Chosen(NamedTuple):
    """A kernel and the variance of the noise of one measurement in units of the kernel's."""

    kernel: PairKernel
    noise: float


class Inner(NamedTuple):
    """Predictions of each fold from the others."""

    mean: Floats
    """Minus the mean label, (F,)."""
    variance: Floats
    """With noise, in units of the kernel's, (F,)."""


class Solved(NamedTuple):
    """What follows from the matrix of a kernel with noise."""

    weight: Floats
    """Weight of each pair, (F,)."""
    log_root: float
    """Half the logarithm of the determinant."""
    inner: Inner | None
    """None if not asked for."""


class SolvedKernels:
    """Solves the same training pairs with any kernel and noise, each at most once.

    Parameters
    ----------
    train : PairSet
    target : NDArray, shape=(F,), dtype=float64
        Labels minus their mean.
    fold : NDArray, shape=(F,), dtype=int64
    share : NDArray, shape=(F,), dtype=float64
        Variance of the noise of each pair, in units of that of one measurement.
    """

    def __init__(
        self, train: PairSet, target: Floats, fold: NDArray[np.int64], share: Floats
    ) -> None:
        self.train, self.target, self.fold, self.share = train, target, fold, share
        self._solved: dict[Chosen, Solved] = {}
        self._matrix: tuple[PairKernel, Floats] | None = None

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.train)

    @cached_property
    def _distances(self) -> tuple[Floats, Floats]:
        """Squared distances of the training sequences, (A, A) and (G, G)."""
        sides = self.train.antibodies, self.train.antigens
        antibody_AA, antigen_GG = (side.distances(side.train_AD) for side in sides)
        return antibody_AA, antigen_GG

    def first(self, pairs: int) -> SolvedKernels:
        """Return these pairs, or the first ones if there are more."""
        if pairs >= len(self):
            return self
        used = slice(pairs)
        return SolvedKernels(
            self.train.select(used), self.target[used], self.fold[used], self.share[used]
        )

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs, (F, F), in the order of LAPACK; may be overwritten."""
        if len(self) > SEARCH_PAIRS:
            return self.train.matrix(kernel)
        if self._matrix is None or self._matrix[0] != kernel:  # the next noise needs it, too
            self._matrix = None  # not in memory beside the new one
            antibody, antigen = (
                kernel.of_distances(side_NN)[of_pair][:, of_pair]
                for side_NN, of_pair in zip(
                    self._distances, (self.train.antibody, self.train.antigen), strict=True
                )
            )
            self._matrix = kernel, kernel.mix(antibody, antigen)
        return self._matrix[1].T.copy(order="F")  # symmetric

    def solve(self, chosen: Chosen) -> Solved:
        """Solve for the weights; inner predictions may be missing."""
        return self._solved.get(chosen) or self._solve(chosen, with_inner=False)

    def predict_folds(self, chosen: Chosen) -> Inner:
        """Predict each fold from the others."""
        found = self._solved.get(chosen)
        inner = None if found is None else found.inner
        return inner or cast("Inner", self._solve(chosen, with_inner=True).inner)

    def _solve(self, chosen: Chosen, *, with_inner: bool) -> Solved:
        noise_F = chosen.noise * self.share
        lower, weight = factorise(self.matrix(chosen.kernel), noise_F, self.target)
        log_root = float(np.log(lower.diagonal()).sum())
        inner = leave_folds_out(lower, self.target, self.fold) if with_inner else None
        self._solved[chosen] = Solved(weight, log_root, inner)
        return self._solved[chosen]

    def cost(self, chosen: Chosen, criterion: Criterion) -> Floats:
        """Return the squared error of each fold, or the same evidence for all; (K,)."""
        target, folds = self.target, int(self.fold.max()) + 1
        if criterion == "error":
            squares = np.square(target - self.predict_folds(chosen).mean)
            return np.bincount(self.fold, squares, minlength=folds).astype(np.float64)
        solved = self.solve(chosen)
        fit = len(target) * float(np.log(max(float(target @ solved.weight), 1e-300)))
        return np.full(folds, fit + 2 * solved.log_root)


def choose_kernel(solver: SolvedKernels, criterion: Criterion) -> tuple[Chosen, list[Chosen]]:
    """Choose kernel and noise; also without each inner fold."""
    tried: dict[Chosen, Floats] = {}
    at = 0
    # with a single sequence on one side, all mixtures differ by a constant only
    one_sided = min(len(side.train_AD) for side in (solver.train.antibodies, solver.train.antigens))
    products = PRODUCTS if one_sided > 1 else PRODUCTS[-1:]
    for scale, product in itertools.product(SCALES, products):
        kernel = PairKernel(scale, product)
        # from the noise of the last kernel downhill: half of the factorisations
        found = {at: solver.cost(Chosen(kernel, NOISES[at]), criterion)}
        for step in (-1, 1):
            while 0 <= at + step < len(NOISES):
                if at + step not in found:
                    chosen = Chosen(kernel, NOISES[at + step])
                    found[at + step] = solver.cost(chosen, criterion)
                if found[at + step].sum() >= found[at].sum():
                    break
                at += step
        tried |= {Chosen(kernel, NOISES[i]): of_fold for i, of_fold in found.items()}
    candidates, cost_CK = list(tried), np.stack(list(tried.values()))
    total_C = cost_CK.sum(axis=1)
    best, *without_fold = map(_first_lowest, (total_C, *(total_C - cost_CK.T)))
    return candidates[best], [candidates[i] for i in without_fold]


def _first_lowest(cost_C: Floats) -> int:
    """Return the first of the costs that equal the lowest but for rounding."""
    lowest = cost_C.min()
    return int(np.argmax(cost_C <= lowest + 1e-9 * abs(lowest)))


def blas_threads(pairs: int) -> threadpool_limits:
    """Limit the threads of matrices of this size, for the code inside the block."""
    return threadpool_limits(1 if pairs <= SEARCH_PAIRS else None, user_api="blas")


def factorise(matrix: Floats, noise: float | Floats, target: Floats) -> tuple[Floats, Floats]:
    """Overwrite a kernel matrix, (F, F), by its Cholesky factor with noise; solve for weights.

    The matrix is in the order of LAPACK, which has to copy any other. Unlike scipy, torch lets
    other threads run meanwhile.
    """
    import torch  # here: estimates of a fit's time need no solver

    matrix[np.diag_indices_from(matrix)] += noise
    lower = torch.from_numpy(matrix)
    torch.linalg.cholesky(lower, out=lower)
    return matrix, solve(matrix, target[:, None])[:, 0]


def solve(lower: Floats, targets: Floats) -> Floats:
    """Solve for right-hand sides, (F, K), with a Cholesky factor."""
    return solve_triangle(lower, solve_triangle(lower, targets), transposed=True)


def solve_triangle(lower: Floats, targets: Floats, *, transposed: bool = False) -> Floats:
    """Solve for right-hand sides, (F, K), with the factor alone, or with its transpose."""
    import torch

    factor, right = torch.from_numpy(lower), torch.from_numpy(targets)
    if transposed:
        factor = factor.T
    return np.asarray(torch.linalg.solve_triangular(factor, right, upper=transposed))


def leave_folds_out(lower: Floats, target: Floats, fold: NDArray[np.int64]) -> Inner:
    """Predict each fold from the others.

    With the inverse of the matrix, the error of a fold is the inverse of its block times the
    weights of its pairs. These are the weights for labels minus the mean of the other folds.
    The factor is overwritten.
    """
    import torch

    both = np.stack([target, np.ones_like(target)], axis=1)
    weight, of_one = solve(lower, both).T
    inverse = torch.from_numpy(lower)
    torch.cholesky_inverse(inverse, out=inverse)
    error, variance = np.empty(len(target)), np.empty(len(target))
    for k in np.unique(fold):
        rows = np.flatnonzero(fold == k)
        mean = target[fold != k].mean() if len(rows) < len(fold) else 0.0
        centred = weight[rows] - mean * of_one[rows]
        block = torch.linalg.cholesky(torch.from_numpy(lower[np.ix_(rows, rows)]))
        error[rows] = torch.cholesky_solve(torch.from_numpy(centred)[:, None], block)[:, 0]
        variance[rows] = torch.cholesky_inverse(block).diagonal()
    return Inner(target - error, variance)
