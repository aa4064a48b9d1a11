"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Scale, mixture and noise are chosen from a small grid, by the error on inner folds (``kernel``) or
by the marginal likelihood (``gp``). A fold's predictions follow from the inverse of the whole
matrix, so inner folds cost no further fit. The inner predictions that are kept come from the kernel
that the other folds choose: the best of 60 on few groups is so by chance. Up to `EXACT_PAIRS` pairs
the fit is exact, beyond it uses `INDUCING_PAIRS` of them as inducing points. All in float64 with
LAPACK, which needs a quarter of the time of scikit-learn's search and gives these predictions.

F training pairs, C of them inducing, P pairs to predict.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, chapters 2, 5 and 8.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from abag.head.closed_form.kernels import BLOCK, PairKernel, PairSet, Side
from abag.head.closed_form.pair_model import (
    Arrays,
    ClosedFormFit,
    Floats,
    PairVectors,
    TrainingRows,
)
from abag.head.data.scaling import Standardizer

if TYPE_CHECKING:
    from collections.abc import Iterator

Criterion = Literal["error", "evidence"]
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PRODUCTS = (0.0, 1 / 3, 1.0)
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
SEARCH_PAIRS, VARIANCE_PAIRS, INDUCING_PAIRS = 1_000, 1_024, 2_048
"""Training pairs that choose the kernel, that variances are computed from, and that are used at
all if there are more than `EXACT_PAIRS`; drawn at random."""
INNER_PAIRS, EXACT_PAIRS = 5_000, 20_000
"""Most training pairs for which inner predictions and the exact fit are computed."""
JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The part of a `GaussianProcess` that is no array."""

    scale: float
    """See `PairKernel`."""
    product: float
    antibody_unit: float
    """See `Side`."""
    antigen_unit: float
    pkd_mean: float
    amplitude: float
    """Variance of a pair unlike any other, in pKd^2."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A fitted process; predictions are sums over its training pairs."""

    settings: ProcessSettings
    train: PairSet
    weight: Floats
    """Weight of each training pair in pKd, (C,)."""
    root: NDArray[np.float32]
    """Maps the kernel of the first V training pairs to what reduces the variance: (V, V)."""

    @property
    def kernel(self) -> PairKernel:
        """The kernel of pairs."""
        return PairKernel(self.settings.scale, self.settings.product)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        train, kernel = self.train, self.kernel
        shape = len(train.antibodies.train_AD), len(train.antigens.train_AD)
        weight_AG = sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)
        antigen_MG = train.antigens.kernel(kernel, vectors.antigen_ME)
        alone_M = kernel.side * (antigen_MG @ weight_AG.sum(axis=0))
        pkd = self.settings.pkd_mean + alone_M[vectors.antigen]
        for first, pairs in _by_antibody(vectors.antibody, len(vectors.antibody_ND)):
            x_BD = vectors.antibody_ND[first : first + BLOCK]
            antibody_BA = train.antibodies.kernel(kernel, x_BD)
            alone_B = kernel.side * (antibody_BA @ weight_AG.sum(axis=1))
            joint_BG = kernel.product * (weight_AG.T @ antibody_BA.T).T
            for at in range(0, len(pairs), BLOCK):
                rows = pairs[at : at + BLOCK]
                i, j = vectors.antibody[rows] - first, vectors.antigen[rows]
                pkd[rows] += alone_B[i] + (joint_BG[i] * antigen_MG[j]).sum(axis=1)
        return np.asarray(pkd)

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance of each prediction in pKd^2, (P,)."""
        train, kernel = self.train.select(slice(len(self.root))), self.kernel
        antibody_NA = train.antibodies.kernel(kernel, vectors.antibody_ND).astype(np.float32)
        antigen_MG = train.antigens.kernel(kernel, vectors.antigen_ME).astype(np.float32)
        variance = np.empty(len(vectors.antibody))
        for at in range(0, len(variance), BLOCK):
            rows = slice(at, at + BLOCK)
            k_BV = kernel.mix(
                antibody_NA[vectors.antibody[rows]][:, train.antibody],
                antigen_MG[vectors.antigen[rows]][:, train.antigen],
            )
            variance[rows] = 1 - np.square(k_BV @ self.root).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        train = self.train
        sides = {"antibody": train.antibodies, "antigen": train.antigens}
        found: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.root}
        for kind, side in sides.items():
            found |= {**side.scaling.arrays(kind), f"{kind}.train": side.train_AD}
        return found | {
            "antibody.of_pair": train.antibody.astype(np.int32),
            "antigen.of_pair": train.antigen.astype(np.int32),
        }

    @classmethod
    def load(cls, arrays: Arrays, settings: ProcessSettings) -> GaussianProcess:
        """Restore a process from `arrays` and `settings`."""
        units = {"antibody": settings.antibody_unit, "antigen": settings.antigen_unit}
        antibodies, antigens = (
            Side(Standardizer.load(arrays, kind), unit, arrays[f"{kind}.train"])
            for kind, unit in units.items()
        )
        of_pair = arrays["antibody.of_pair"], arrays["antigen.of_pair"]
        train = PairSet(antibodies, antigens, *of_pair)
        return cls(settings, train, arrays["weight"], arrays["root"])


def fit_gaussian_process(training: TrainingRows, criterion: Criterion) -> ClosedFormFit:
    """Fit a Gaussian process to the exact training pairs.

    Parameters
    ----------
    training : TrainingRows
    criterion : {"error", "evidence"}
        What chooses scale, mixture and noise: the squared error on the inner folds, or the
        marginal likelihood.
    """
    # in random order, so that the first pairs are a sample of all
    order = np.random.default_rng(0).permutation(len(training.rows))
    train, pkd, fold = _pair_set(training, order), training.pkd[order], training.fold[order]
    mean = float(pkd.mean())
    problem = _Problem(train, pkd - mean, fold)
    chosen, without_fold = _choose(problem, criterion)
    if len(train) > EXACT_PAIRS:
        solved = _solve_inducing(problem, chosen, INDUCING_PAIRS)
    else:
        solved = _solve(problem, chosen)
    small = len(train) <= VARIANCE_PAIRS
    root = solved.root if small else _solve_inducing(problem, chosen, VARIANCE_PAIRS).root
    inner, variance = np.full((2, len(pkd)), np.nan)
    if len(train) <= INNER_PAIRS:
        inner[order], variance[order] = _predict_folds(problem, without_fold)
    used = train.select(slice(len(solved.weight)))
    settings = ProcessSettings(
        chosen.kernel.scale,
        chosen.kernel.product,
        used.antibodies.unit,
        used.antigens.unit,
        mean,
        solved.amplitude,
    )
    return ClosedFormFit(
        GaussianProcess(settings, used, solved.weight, root.astype(np.float32)),
        mean + inner,
        variance,
        f"squared length scale {chosen.kernel.scale:g}, share of the product "
        f"{chosen.kernel.product:.2g}, noise {chosen.noise:g}",
    )


class _Chosen(NamedTuple):
    kernel: PairKernel
    noise: float
    """Variance of the noise in units of the kernel's."""


@dataclass(frozen=True, slots=True)
class _Problem:
    train: PairSet
    target: Floats
    """Labels minus their mean, (F,)."""
    fold: NDArray[np.int64]


class _Solution(NamedTuple):
    weight: Floats
    root: Floats
    """Without rows where the solver has none."""
    amplitude: float


def _pair_set(training: TrainingRows, order: NDArray[np.int64]) -> PairSet:
    """Standardise the sequences of the training pairs, in the given order of the pairs."""
    vectors, rows = training.vectors, training.rows[order]
    used_A, antibody = np.unique(vectors.antibody[rows], return_inverse=True)
    used_G, antigen = np.unique(vectors.antigen[rows], return_inverse=True)
    return PairSet(
        Side.of(vectors.antibody_ND[used_A]), Side.of(vectors.antigen_ME[used_G]), antibody, antigen
    )


def _choose(problem: _Problem, criterion: Criterion) -> tuple[_Chosen, list[_Chosen]]:
    """Choose kernel and noise on the first `SEARCH_PAIRS` pairs; also without each inner fold."""
    train = problem.train.select(slice(SEARCH_PAIRS))
    target, fold = problem.target[:SEARCH_PAIRS], problem.fold[:SEARCH_PAIRS]
    folds = int(problem.fold.max()) + 1
    antibody = train.antibodies.distances(train.antibodies.train_AD)[train.antibody]
    antigen = train.antigens.distances(train.antigens.train_AD)[train.antigen]
    antibody, antigen = antibody[:, train.antibody], antigen[:, train.antigen]

    def cost(noise: float, scale: float, product: float) -> Floats:
        """Return the squared error of each fold, or the same evidence for all; (folds,)."""
        kernel = PairKernel(scale, product)
        matrix = kernel.mix(kernel.of_distances(antibody), kernel.of_distances(antigen))
        lower, weight = _factorise(np.asfortranarray(matrix), noise, target)
        if criterion == "error":
            inner, _ = _leave_folds_out(lower, target, fold)
            squares = np.bincount(fold, np.square(target - inner), minlength=folds)
            return np.asarray(squares, np.float64)
        fit = len(target) * float(np.log(max(float(target @ weight), 1e-300)))
        return np.full(folds, fit + 2 * float(np.log(lower.diagonal()).sum()))

    tried: dict[_Chosen, Floats] = {}
    at = 0
    # Matrices of this size are faster on one core, see `ridge.PARALLEL_COLUMNS`.
    with threadpool_limits(1, user_api="blas"):
        for scale, product in itertools.product(SCALES, PRODUCTS):
            # from the noise of the last kernel downhill: half of the factorisations
            found = {at: cost(NOISES[at], scale, product)}
            for step in (-1, 1):
                while 0 <= at + step < len(NOISES):
                    if at + step not in found:
                        found[at + step] = cost(NOISES[at + step], scale, product)
                    if found[at + step].sum() >= found[at].sum():
                        break
                    at += step
            kernel = PairKernel(scale, product)
            tried |= {_Chosen(kernel, NOISES[i]): of_fold for i, of_fold in found.items()}
    candidates, cost_CK = list(tried), np.stack(list(tried.values()))
    total_C = cost_CK.sum(axis=1)
    best, *without_fold = map(_first_lowest, (total_C, *(total_C - cost_CK.T)))
    return candidates[best], [candidates[i] for i in without_fold]


def _first_lowest(cost_C: Floats) -> int:
    """Return the first of the costs that equal the lowest but for rounding."""
    lowest = cost_C.min()
    return int(np.argmax(cost_C <= lowest + 1e-9 * abs(lowest)))


def _predict_folds(problem: _Problem, without_fold: list[_Chosen]) -> tuple[Floats, Floats]:
    """Predict each fold from the others with the kernel that they chose.

    Predictions minus the mean label and their variance in pKd^2, (F,) each.
    """
    target, fold = problem.target, problem.fold
    predicted, variance = np.empty((2, len(target)))
    for chosen in dict.fromkeys(without_fold):
        rows = np.isin(fold, [k for k, one in enumerate(without_fold) if one == chosen])
        lower, weight = _factorise(problem.train.matrix(chosen.kernel), chosen.noise, target)
        amplitude = float(target @ weight) / len(target)
        inner, with_noise = _leave_folds_out(lower, target, fold)
        predicted[rows] = inner[rows]
        variance[rows] = amplitude * np.maximum(with_noise - chosen.noise, 0)[rows]
    return predicted, variance


def _factorise(matrix: Floats, noise: float, target: Floats) -> tuple[Floats, Floats]:
    """Overwrite a kernel matrix, (F, F), by its Cholesky factor with noise; solve for weights."""
    matrix[np.diag_indices_from(matrix)] += noise
    lower = linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    return lower, linalg.cho_solve((lower, True), target, check_finite=False)


def _leave_folds_out(
    lower: Floats, target: Floats, fold: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Predict each fold from the others: mean and variance with noise, (F,) each.

    With the inverse of the matrix, the error of a fold is the inverse of its block times the
    weights of its pairs. These are the weights for labels minus the mean of the other folds.
    """
    both = np.stack([target, np.ones_like(target)], axis=1)
    weight, of_one = linalg.cho_solve((lower, True), both, check_finite=False).T
    inverse, _ = linalg.lapack.dpotri(lower, lower=1)
    error, variance = np.empty(len(target)), np.empty(len(target))
    for k in np.unique(fold):
        rows = np.flatnonzero(fold == k)
        mean = target[fold != k].mean() if len(rows) < len(fold) else 0.0
        centred = weight[rows] - mean * of_one[rows]
        block, _ = linalg.lapack.dpotrf(inverse[np.ix_(rows, rows)], lower=1, overwrite_a=1)
        error[rows] = linalg.cho_solve((block, True), centred, check_finite=False)
        covariance, _ = linalg.lapack.dpotri(block, lower=1, overwrite_c=1)
        variance[rows] = covariance.diagonal()
    return target - error, variance


def _solve(problem: _Problem, chosen: _Chosen) -> _Solution:
    """Fit exactly."""
    target, pairs = problem.target, len(problem.target)
    matrix = problem.train.matrix(chosen.kernel)
    lower, weight = _factorise(matrix, chosen.noise, target)
    root = np.zeros((0, 0))
    if pairs <= VARIANCE_PAIRS:
        inverse, _ = linalg.lapack.dtrtri(lower, lower=1)
        root = np.tril(inverse).T
    return _Solution(weight, root, float(target @ weight) / pairs)


def _solve_inducing(problem: _Problem, chosen: _Chosen, size: int) -> _Solution:
    """Fit with the first pairs as inducing points (subset of regressors)."""
    train, target = problem.train, problem.target
    inducing = train.select(slice(size))
    matrix = inducing.matrix(chosen.kernel)
    lower, _ = _factorise(matrix, JITTER, np.zeros(len(inducing)))
    squares, sums = np.zeros_like(lower), np.zeros(len(lower))
    for rows, block_BC in inducing.blocks(chosen.kernel, train):
        feature_CB = linalg.solve_triangular(lower, block_BC.T, lower=True, check_finite=False)
        squares += feature_CB @ feature_CB.T
        sums += feature_CB @ target[rows]
    value, vector = linalg.eigh(squares, overwrite_a=True, check_finite=False)
    value = np.maximum(value, 0)
    back = linalg.solve_triangular(lower, vector, lower=True, trans="T", check_finite=False)
    solved = (vector.T @ sums) / (value + chosen.noise)
    amplitude = float(target @ target - (vector.T @ sums) @ solved) / chosen.noise / len(target)
    root = back * np.sqrt(value / (value + chosen.noise))
    return _Solution(back @ solved, root, amplitude)


def _by_antibody(antibody: NDArray[np.integer], antibodies: int) -> Iterator[tuple[int, Any]]:
    """Yield the first antibody of each `BLOCK` of them, and the pairs of these antibodies."""
    order = np.argsort(antibody, kind="stable")
    starts = np.arange(0, antibodies, BLOCK)
    ends = np.searchsorted(antibody[order], starts + BLOCK)
    for first, start, end in zip(starts.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield first, order[start:end]
