"""Kernels of pairs: how similar two pairs are, from the distances of their sequences' vectors.

A sequence has one or more views: vectors of several poolings, layers or encoders, joined. Each view
has a rational-quadratic kernel with exponent 1, and the kernel of a side is their weighted mean. A
kernel of pairs mixes both sides and their product; it is 1 for equal pairs. Kernel and noise are
chosen from a small grid. Models with different criteria try mostly the same kernels, so each is
solved once for all of them.

N, M sequences; A, G training sequences; R, C pairs; F training pairs; V views.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, equation 4.19.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_model import Index

Real: TypeAlias = NDArray[np.floating]
Weights: TypeAlias = tuple[float, ...]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""
Criterion = Literal["error", "evidence"]
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PRODUCTS = (0.0, 1 / 3, 1.0)
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
FIRST_VIEW = (0.0, 0.5, 1.0)
"""Weights of the first view that are tried; all views share the rest equally."""
SEARCH_PAIRS = 1_000
"""Training pairs that choose the kernel. Matrices of at most this size are solved faster on one
core, see `ridge.PARALLEL_COLUMNS`."""


def view_weights(views: int) -> list[Weights]:
    """Return the weights of the views of a side that are tried, the equal ones first."""
    if views == 1:
        return [(1.0,)]
    return [
        tuple((1 - first) / views + first * (view == 0) for view in range(views))
        for first in FIRST_VIEW
    ]


@dataclass(frozen=True, slots=True)
class PairKernel:
    """A mixture of an antibody kernel, an antigen kernel and their product."""

    scale: float
    """Squared length scale of all views, in units of their mean squared distance."""
    product: float
    """Share of the product, 0 to 1; each side has half of the rest."""
    weights: tuple[Weights, Weights]
    """Weights of the views of antibodies and of antigens; those of a side add up to 1."""

    @property
    def side(self) -> float:
        """Share of each side."""
        return (1 - self.product) / 2

    def of_views(self, side: int, squared: Sequence[Floats]) -> Floats:
        """Turn the squared distances in each view of a side into the kernel of that side."""
        both = zip(self.weights[side], squared, strict=True)
        parts = [weight / (1 + one / (2 * self.scale)) for weight, one in both if weight]
        return np.asarray(sum(parts[1:], parts[0]))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, of shape (R, C), into that of pairs."""
        return np.asarray(self.product * antibody * antigen + self.side * (antibody + antigen))


@dataclass(frozen=True, slots=True)
class Side:
    """The training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    widths: tuple[int, ...]
    """Columns of each view."""
    units: tuple[float, ...]
    """Mean squared distance of the training sequences in each view."""
    train_AD: NDArray[np.float32]
    """Standardised vectors."""

    @classmethod
    def of(
        cls,
        train_AD: NDArray[np.float32],
        widths: tuple[int, ...],
        scaling: Standardizer | None = None,
    ) -> Side:
        """Measure the vectors of the unique training sequences, (A, D); by default, scale them."""
        scaling = scaling or Standardizer.of(train_AD, widths=widths)
        z_AD = scaling.apply(train_AD)
        views = split(z_AD, widths)
        units = [2 * float(view.var(axis=0, dtype=np.float64).sum()) for view in views]
        return cls(scaling, widths, tuple(unit or 1.0 for unit in units), z_AD)

    def kernel(self, kernel: PairKernel, side: int, x_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of stored vectors, (N, D), and the training sequences: (N, A)."""
        return kernel.of_views(side, self.distances(self.scaling.apply(x_ND)))

    def distances(self, z_ND: NDArray[np.float32]) -> list[Floats]:
        """Return the squared distances of standardised vectors in each view, (N, A) each.

        They are in units of the mean distance.
        """
        views = (split(x_ND, self.widths) for x_ND in (z_ND, self.train_AD))
        each = zip(*views, self.units, strict=True)
        return [squared_distances(view_ND, own_AD) / unit for view_ND, own_AD, unit in each]

    def paired_distances(self, x_ND: NDArray[np.float32], row: Index, other: Index) -> list[Floats]:
        """Return the squared distances of rows of stored vectors in each view, (R,) each."""
        z_ND = self.scaling.apply(x_ND).astype(np.float64)
        away = split(z_ND[row] - z_ND[other], self.widths)
        return [
            np.square(one).sum(axis=1) / unit for one, unit in zip(away, self.units, strict=True)
        ]

    def stretched(self, factors: Weights) -> Side:
        """Multiply the units of the views, and with them their squared length scales."""
        return replace(self, units=tuple(u * f for u, f in zip(self.units, factors, strict=True)))

    def select(self, used: Index) -> Side:
        """Keep some of the training sequences."""
        return replace(self, train_AD=self.train_AD[used])


def split(x_ND: Real, widths: Sequence[int]) -> list[Real]:
    """Split joined vectors, (N, D), into their views."""
    if sum(widths) != x_ND.shape[1]:
        msg = f"views of {widths} columns; the vectors have {x_ND.shape[1]}"
        raise ValueError(msg)
    return np.split(x_ND, np.cumsum(widths)[:-1], axis=1)


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

    @property
    def sides(self) -> tuple[tuple[Side, Index], tuple[Side, Index]]:
        """Both sides, each with the sequence of each pair."""
        return (self.antibodies, self.antibody), (self.antigens, self.antigen)

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
            both = enumerate(zip(self.sides, part.sides, strict=True))
            similar = [
                kernel.of_views(n, own.distances(other.train_AD))[of_row][:, of_column]
                for n, ((own, of_column), (other, of_row)) in both
            ]
            yield rows, kernel.mix(*similar)

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for rows, block in self.blocks(kernel, self):
            matrix[rows] = block
        return np.asarray(matrix.T)  # symmetric


def squared_distances(x_ND: Real, y_MD: Real) -> Floats:
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


class SolvedKernels:
    """Solves the same training pairs with any kernel and noise, and remembers the costs.

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
        self._costs: dict[Chosen, dict[Criterion, float]] = {}
        self._matrix: tuple[PairKernel, Floats] | None = None

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.train)

    @cached_property
    def _distances(self) -> list[list[Floats]]:
        """Squared distances of the training sequences of both sides, in each view."""
        return [side.distances(side.train_AD) for side, _ in self.train.sides]

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
            both = zip(self._distances, self.train.sides, strict=True)
            similar = [
                kernel.of_views(n, squared)[index][:, index]
                for n, (squared, (_, index)) in enumerate(both)
            ]
            self._matrix = kernel, kernel.mix(*similar)
        return self._matrix[1].T.copy(order="F")  # symmetric

    def factorise(self, chosen: Chosen) -> tuple[Floats, Floats]:
        """Return the Cholesky factor of the kernel with noise, and the weight of each pair."""
        return factorise(self.matrix(chosen.kernel), chosen.noise * self.share, self.target)

    def cost(self, chosen: Chosen, criterion: Criterion) -> float:
        """Return the squared error on the inner folds, or minus twice the evidence."""
        known = self._costs.setdefault(chosen, {})
        if criterion not in known:
            lower, weight = self.factorise(chosen)
            fit = max(float(self.target @ weight), 1e-300)
            log_root = float(np.log(lower.diagonal()).sum())
            known["evidence"] = len(self) * float(np.log(fit)) + 2 * log_root
            if criterion == "error":
                inner = leave_folds_out(lower, self.target, self.fold)
                known["error"] = float(np.square(self.target - inner).sum())
        return known[criterion]


def choose_kernel(
    solver: SolvedKernels, criterion: Criterion, weights: Sequence[Sequence[Weights]]
) -> Chosen:
    """Choose scale, mixture and noise with the first weights of each side, then the weights."""
    tried: dict[Chosen, float] = {}
    at = 0

    def descend(kernel: PairKernel) -> None:
        # from the noise of the last kernel downhill: half of the factorisations
        nonlocal at
        found = {at: solver.cost(Chosen(kernel, NOISES[at]), criterion)}
        for step in (-1, 1):
            while 0 <= at + step < len(NOISES):
                if at + step not in found:
                    found[at + step] = solver.cost(Chosen(kernel, NOISES[at + step]), criterion)
                if found[at + step] >= found[at]:
                    break
                at += step
        tried.update((Chosen(kernel, NOISES[i]), cost) for i, cost in found.items())

    # with a single sequence on one side, all mixtures differ by a constant only
    one_sided = min(len(side.train_AD) for side, _ in solver.train.sides)
    products = PRODUCTS if one_sided > 1 else PRODUCTS[-1:]
    first = (weights[0][0], weights[1][0])
    for scale, product in itertools.product(SCALES, products):
        descend(PairKernel(scale, product, first))
    best = _lowest(tried).kernel
    for pair in itertools.product(*weights):
        if pair != first:
            descend(replace(best, weights=(pair[0], pair[1])))
    best = _lowest(tried).kernel
    if best.weights != first:  # another scale may suit these weights
        for scale in SCALES:
            descend(replace(best, scale=scale))
    return _lowest(tried)


def _lowest(tried: dict[Chosen, float]) -> Chosen:
    """Return the first of those whose costs equal the lowest but for rounding."""
    lowest = min(tried.values())
    return next(one for one, cost in tried.items() if cost <= lowest + 1e-9 * abs(lowest))


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


def leave_folds_out(lower: Floats, target: Floats, fold: NDArray[np.int64]) -> Floats:
    """Predict each fold from the others, (F,).

    With the inverse of the matrix, the error of a fold is the inverse of its block times the
    weights of its pairs. These are the weights for labels minus the mean of the other folds.
    The factor is overwritten.
    """
    import torch

    both = np.stack([target, np.ones_like(target)], axis=1)
    weight, of_one = solve(lower, both).T
    inverse = torch.from_numpy(lower)
    torch.cholesky_inverse(inverse, out=inverse)
    error = np.empty(len(target))
    for k in np.unique(fold):
        rows = np.flatnonzero(fold == k)
        mean = target[fold != k].mean() if len(rows) < len(fold) else 0.0
        centred = weight[rows] - mean * of_one[rows]
        block = torch.linalg.cholesky(torch.from_numpy(lower[np.ix_(rows, rows)]))
        error[rows] = torch.cholesky_solve(torch.from_numpy(centred)[:, None], block)[:, 0]
    return np.asarray(target - error)
