"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Scale, mixture and noise are chosen from a small grid, by the error on inner folds (``kernel``) or
by the marginal likelihood (``gp``). A fold's predictions follow from the inverse of the whole
matrix, so inner folds cost no further fit. The inner predictions that are kept come from the kernel
that the other folds choose: the best of 60 on few groups is so by chance. Up to `EXACT_PAIRS` pairs
the fit is exact, beyond it uses `INDUCING_PAIRS` of them as inducing points. All in float64, which
needs a quarter of the time of scikit-learn's search and gives these predictions. A
label that stands for n measurements has 1/n of the noise of one.

F training pairs, C of them inducing, P pairs to predict.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, chapters 2, 5 and 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Floats
from abag.head.data.vectors import Standardizer
from abag.head.models.kernels import (
    BLOCK,
    SEARCH_PAIRS,
    Chosen,
    Criterion,
    PairKernel,
    PairSet,
    Side,
    SolvedKernels,
    blas_threads,
    choose_kernel,
    factorise,
    solve_triangle,
)
from abag.head.models.pair_model import Arrays, ClosedFormFit, PairVectors, TrainingRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARIANCE_PAIRS, INDUCING_PAIRS = 1_024, 2_048
"""Training pairs that variances are computed from, and that are used at all if there are more than
`EXACT_PAIRS`; drawn at random."""
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
    packed_root: NDArray[np.float32]
    """See `root`; of an exact fit only its upper triangle by rows, (V (V + 1) / 2,)."""

    @property
    def root(self) -> NDArray[np.float32]:
        """Maps the kernel of the first V training pairs to what reduces the variance: (V, V)."""
        packed = self.packed_root
        if packed.ndim == 2:
            return packed
        size = math.isqrt(2 * len(packed))
        root_VV = np.zeros((size, size), np.float32)
        root_VV[_upper(size)] = packed
        return root_VV

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
        root_VV, kernel = self.root, self.kernel
        train = self.train.select(slice(len(root_VV)))
        antibody_NA = train.antibodies.kernel(kernel, vectors.antibody_ND).astype(np.float32)
        antigen_MG = train.antigens.kernel(kernel, vectors.antigen_ME).astype(np.float32)
        variance = np.empty(len(vectors.antibody))
        for at in range(0, len(variance), BLOCK):
            rows = slice(at, at + BLOCK)
            k_BV = kernel.mix(
                antibody_NA[vectors.antibody[rows]][:, train.antibody],
                antigen_MG[vectors.antigen[rows]][:, train.antigen],
            )
            variance[rows] = 1 - np.square(k_BV @ root_VV).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        train = self.train
        sides = {"antibody": train.antibodies, "antigen": train.antigens}
        found: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.packed_root}
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


def fit_gaussian_process(
    training: TrainingRows, criterion: Criterion, *, scale_antibodies: bool = True
) -> ClosedFormFit:
    """Fit a Gaussian process to the exact training pairs.

    Parameters
    ----------
    training : TrainingRows
    criterion : {"error", "evidence"}
        What chooses scale, mixture and noise: the squared error on the inner folds, or the
        marginal likelihood.
    scale_antibodies : bool
        Whether to standardise the columns of antibodies.
    """
    order, solver, search = _solvers(training, scale_antibodies)
    pairs, mean = len(solver), float(training.pkd.mean())
    with blas_threads(pairs):
        with blas_threads(len(search)):
            chosen, without_fold = choose_kernel(search, criterion)
        inner, variance = np.full((2, pairs), np.nan)
        if pairs <= INNER_PAIRS:
            inner[order], variance[order] = _predict_folds(solver, without_fold)
        if pairs <= EXACT_PAIRS:
            solved = _solve(solver, chosen)
        else:
            solved = _solve_inducing(solver, chosen, INDUCING_PAIRS)
        small = pairs <= VARIANCE_PAIRS
        root = solved.root if small else _solve_inducing(solver, chosen, VARIANCE_PAIRS).root
    used = solver.train  # not a copy: kernel ridge and Gaussian process share it
    if len(solved.weight) < pairs:
        used = used.select(slice(len(solved.weight)))
    settings = ProcessSettings(
        chosen.kernel.scale,
        chosen.kernel.product,
        used.antibodies.unit,
        used.antigens.unit,
        mean,
        solved.amplitude,
    )
    return ClosedFormFit(
        # in the order in which it is stored, or writing a predictor would copy it
        GaussianProcess(settings, used, solved.weight, root.astype(np.float32, order="C")),
        mean + inner,
        variance,
        f"squared length scale {chosen.kernel.scale:g}, share of the product "
        f"{chosen.kernel.product:.2g}, noise {chosen.noise:g}",
    )


def _upper(size: int) -> NDArray[np.bool_]:
    """Return where the upper triangle of a square matrix is, (V, V)."""
    return np.tri(size, dtype=np.bool_).T


class _Solvers(NamedTuple):
    order: NDArray[np.int64]
    """Random, so that the first pairs are a sample of all."""
    whole: SolvedKernels
    search: SolvedKernels
    """Chooses the kernel."""


def _solvers(training: TrainingRows, scale_antibodies: bool) -> _Solvers:
    """Return the solvers that all processes fitted to these rows share."""
    found = training.shared.get("solvers")
    if not isinstance(found, _Solvers):
        order = np.random.default_rng(0).permutation(len(training.rows))
        train, pkd = _pair_set(training, order, scale_antibodies), training.pkd[order]
        share = training.noise_share[order]
        whole = SolvedKernels(train, pkd - training.pkd.mean(), training.fold[order], share)
        found = _Solvers(order, whole, whole.first(SEARCH_PAIRS))
        training.shared["solvers"] = found
    return found


class _Solution(NamedTuple):
    weight: Floats
    root: Floats
    """See `GaussianProcess.packed_root`."""
    amplitude: float


def _pair_set(training: TrainingRows, order: NDArray[np.int64], scale_antibodies: bool) -> PairSet:
    """Standardise the sequences of the training pairs, in the given order of the pairs."""
    vectors, rows = training.vectors, training.rows[order]
    used_A, antibody = np.unique(vectors.antibody[rows], return_inverse=True)
    used_G, antigen = np.unique(vectors.antigen[rows], return_inverse=True)
    train_AD = vectors.antibody_ND[used_A]
    scaling = None if scale_antibodies else Standardizer.identity(train_AD.shape[1])
    antigens = Side.of(vectors.antigen_ME[used_G])
    return PairSet(Side.of(train_AD, scaling), antigens, antibody, antigen)


def _predict_folds(solver: SolvedKernels, without_fold: Sequence[Chosen]) -> tuple[Floats, Floats]:
    """Predict each fold from the others with the kernel that they chose.

    Predictions minus the mean label and their variance in pKd^2, (F,) each.
    """
    predicted, variance = np.empty((2, len(solver)))
    for k, chosen in enumerate(without_fold):
        rows, inner = solver.fold == k, solver.predict_folds(chosen)
        amplitude = float(solver.target @ solver.solve(chosen).weight) / len(solver)
        predicted[rows] = inner.mean[rows]
        noise_F = chosen.noise * solver.share
        variance[rows] = amplitude * np.maximum(inner.variance - noise_F, 0)[rows]
    return predicted, variance


def _solve(solver: SolvedKernels, chosen: Chosen) -> _Solution:
    """Fit exactly."""
    weight, pairs, root = solver.solve(chosen).weight, len(solver), np.zeros(0)
    if pairs <= VARIANCE_PAIRS:
        noise_F = chosen.noise * solver.share
        lower, _ = factorise(solver.matrix(chosen.kernel), noise_F, solver.target)
        root = solve_triangle(lower, np.eye(pairs)).T[_upper(pairs)]
    return _Solution(weight, root, float(solver.target @ weight) / pairs)


def _solve_inducing(solver: SolvedKernels, chosen: Chosen, size: int) -> _Solution:
    """Fit with the first pairs as inducing points (subset of regressors)."""
    train, target = solver.train, solver.target
    inducing = train.select(slice(size))
    matrix = inducing.matrix(chosen.kernel)
    lower, _ = factorise(matrix, JITTER, np.zeros(len(inducing)))
    squares, sums = np.zeros_like(lower), np.zeros(len(lower))
    for rows, block_BC in inducing.blocks(chosen.kernel, train):
        feature_CB = solve_triangle(lower, block_BC.T)
        precise_CB = feature_CB / solver.share[rows]
        squares += precise_CB @ feature_CB.T
        sums += precise_CB @ target[rows]
    value, vector = np.linalg.eigh(squares)
    value = np.maximum(value, 0)
    back = solve_triangle(lower, vector, transposed=True)
    solved = (vector.T @ sums) / (value + chosen.noise)
    squared = float(np.square(target) @ (1 / solver.share))
    amplitude = (squared - float((vector.T @ sums) @ solved)) / chosen.noise / len(target)
    root = back * np.sqrt(value / (value + chosen.noise))
    return _Solution(back @ solved, root, amplitude)


def _by_antibody(antibody: NDArray[np.integer], antibodies: int) -> Iterator[tuple[int, Any]]:
    """Yield the first antibody of each `BLOCK` of them, and the pairs of these antibodies."""
    order = np.argsort(antibody, kind="stable")
    starts = np.arange(0, antibodies, BLOCK)
    ends = np.searchsorted(antibody[order], starts + BLOCK)
    for first, start, end in zip(starts.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield first, order[start:end]
