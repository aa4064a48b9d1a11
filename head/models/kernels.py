"""Kernels of pairs: how similar two pairs are, from the distances of their sequences' vectors.

Each side has a rational-quadratic kernel with exponent 1. A kernel of pairs mixes both sides and
their product; it is 1 for equal pairs. Kernel and noise are chosen from a small grid. Heads with
different criteria try mostly the same kernels, so each is solved once for all heads.

N, M sequences; A, G training sequences; R, C pairs; F training pairs, K inner folds.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, equation 4.19.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_model import Index

Real: TypeAlias = NDArray[np.floating]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""
Criterion = Literal["error", "evidence"]
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PRODUCTS = (0.0, 1 / 3, 1.0)
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
SEARCH_PAIRS = 1_000
"""Training pairs that choose the kernel. Matrices of at most this size are solved faster on one
core, see `ridge.PARALLEL_COLUMNS`."""


@dataclass(frozen=True, slots=True)
class PairKernel:
    """A mixture of an antibody kernel, an antigen kernel and their product."""

    scale: float
    """Squared length scale of both sides, in units of their mean squared distance."""
    product: float
    """Share of the product, 0 to 1; each side has half of the rest."""

    @property
    def side(self) -> float:
        """Share of each side."""
        return (1 - self.product) / 2

    def of_distances(self, squared: Floats) -> Floats:
        """Turn squared distances into the kernel of one side."""
        return np.asarray(1 / (1 + squared / (2 * self.scale)))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, of shape (R, C), into that of pairs."""
        return np.asarray(self.product * antibody * antigen + self.side * (antibody + antigen))


@dataclass(frozen=True, slots=True)
class Side:
    """The training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    unit: float
    """Mean squared distance of the training sequences."""
    train_AD: NDArray[np.float32]
    """Standardised vectors."""

    @classmethod
    def of(cls, train_AD: NDArray[np.float32], scaling: Standardizer | None = None) -> Side:
        """Measure the vectors of the unique training sequences, (A, D); by default, scale them."""
        scaling = scaling or Standardizer.of(train_AD)
        z_AD = scaling.apply(train_AD)
        unit = 2 * float(z_AD.var(axis=0, dtype=np.float64).sum())
        return cls(scaling, unit or 1.0, z_AD)

    def kernel(self, kernel: PairKernel, x_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of stored vectors, (N, D), and the training sequences: (N, A)."""
        return kernel.of_distances(self.distances(self.scaling.apply(x_ND)))

    def distances(self, z_ND: NDArray[np.float32]) -> Floats:
        """Return the squared distances of standardised vectors, in units of the mean: (N, A)."""
        return squared_distances(z_ND, self.train_AD) / self.unit

    def select(self, used: Index) -> Side:
        """Keep some of the training sequences."""
        return Side(self.scaling, self.unit, self.train_AD[used])


@dataclass(frozen=True, slots=True)
class PairSet:
    """Training pairs as a kernel sees them: two sides, and the sequences of each pair."""

    antibodies: Side
    antigens: Side
    antibody: Index
    """Training antibody of each pair, (C,)."""
    antigen: Index
    """Training antigen of each pair, (C,)."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.antibody)

    def select(self, pairs: Index | slice) -> PairSet:
        """Keep some of the pairs, and the sequences that they use."""
        (used_A, antibody), (used_G, antigen) = (
            np.unique(index[pairs], return_inverse=True) for index in (self.antibody, self.antigen)
        )
        return PairSet(
            self.antibodies.select(used_A), self.antigens.select(used_G), antibody, antigen
        )

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, `BLOCK` rows at a time.

        Shape (R, C) in all.
        """
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            part = pairs.select(rows)
            sides = (
                (self.antibodies, self.antibody, part.antibodies, part.antibody),
                (self.antigens, self.antigen, part.antigens, part.antigen),
            )
            yield (
                rows,
                kernel.mix(
                    *(
                        kernel.of_distances(own.distances(other.train_AD))[of_row][:, of_column]
                        for own, of_column, other, of_row in sides
                    )
                ),
            )

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for rows, block in self.blocks(kernel, self):
            matrix[rows] = block
        return np.asarray(matrix.T)  # symmetric


def squared_distances(x_ND: NDArray[np.float32], y_MD: NDArray[np.float32]) -> Floats:
    """Return the squared Euclidean distances of all rows, (N, M), in float64."""
    left_ND, right_MD = x_ND.astype(np.float64), y_MD.astype(np.float64)
    squares = left_ND @ right_MD.T
    squares *= -2
    squares += np.square(left_ND).sum(axis=1)[:, None]
    squares += np.square(right_MD).sum(axis=1)
    return np.maximum(squares, 0, out=squares)


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
