"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Scale, mixture, weights of views and noise are chosen from a small grid, by the error on inner folds
(``kernel``) or by the marginal likelihood (``gp``). A fold's predictions follow from the inverse of
the whole matrix, so inner folds cost no further fit. Up to `EXACT_PAIRS` pairs the fit is exact,
beyond it uses `INDUCING_PAIRS` of them as inducing points. All in float64, which needs a quarter of
the time of scikit-learn's search and gives these predictions. A label that stands for n
measurements has 1/n of the noise of one.

F training pairs, C of them inducing, P pairs to predict.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, chapters 2, 5 and 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Floats
from abag.embed.sequences.chains import KINDS
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
    view_weights,
)
from abag.head.models.pair_model import (
    Arrays,
    FitSize,
    Fitted,
    Index,
    PairVectors,
    TrainingRows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from abag.head.models.kernels import Weights

VARIANCE_PAIRS, INDUCING_PAIRS = 1_024, 2_048
"""Training pairs that variances are computed from, and that are used at all if there are more than
`EXACT_PAIRS`; drawn at random."""
EXACT_PAIRS = 20_000
"""Most training pairs of an exact fit."""
JITTER = 1e-8
SEARCH_S = 1.1e-9
"""Choosing a kernel, times the cube of the pairs tried."""
SOLVE_S = 4e-11
"""Fitting a kernel on one core, times the cube of the training pairs."""


@dataclass(frozen=True, slots=True)
class SideSettings:
    """The views of one side; see `Side` and `PairKernel`."""

    widths: tuple[int, ...]
    units: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The part of a `GaussianProcess` that is no array."""

    scale: float
    """See `PairKernel`."""
    product: float
    antibody: SideSettings
    antigen: SideSettings
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
        one = self.settings
        return PairKernel(one.scale, one.product, (one.antibody.weights, one.antigen.weights))

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        train, kernel = self.train, self.kernel
        shape = len(train.antibodies.train_AD), len(train.antigens.train_AD)
        weight_AG = sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)
        antigen_MG = train.antigens.kernel(kernel, 1, vectors.antigen_ME)
        alone_M = kernel.side * (antigen_MG @ weight_AG.sum(axis=0))
        pkd = self.settings.pkd_mean + alone_M[vectors.antigen]
        for first, pairs in _by_antibody(vectors.antibody, len(vectors.antibody_ND)):
            x_BD = vectors.antibody_ND[first : first + BLOCK]
            antibody_BA = train.antibodies.kernel(kernel, 0, x_BD)
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
        antibody_NA = train.antibodies.kernel(kernel, 0, vectors.antibody_ND).astype(np.float32)
        antigen_MG = train.antigens.kernel(kernel, 1, vectors.antigen_ME).astype(np.float32)
        variance = np.empty(len(vectors.antibody))
        for at in range(0, len(variance), BLOCK):
            rows = slice(at, at + BLOCK)
            k_BV = kernel.mix(
                antibody_NA[vectors.antibody[rows]][:, train.antibody],
                antigen_MG[vectors.antigen[rows]][:, train.antigen],
            )
            variance[rows] = 1 - np.square(k_BV @ root_VV).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of the difference between each pair and another, (P,) in pKd^2.

        With the prior kernel k, the kernel row of a pair and the training pairs k_V, and the root
        R, it is amplitude x (2 - 2 k(pair, other) - |(k_V - k_V of the other) R|^2).
        """
        kernel, root_VV = self.kernel, self.root.astype(np.float64)
        train = self.train.select(slice(len(root_VV)))
        antibody_NA = train.antibodies.kernel(kernel, 0, vectors.antibody_ND)
        antigen_MG = train.antigens.kernel(kernel, 1, vectors.antigen_ME)
        variance = np.empty(len(other))
        for at in range(0, len(other), BLOCK):
            rows = np.arange(at, min(at + BLOCK, len(other)))
            of_pair, of_other = (
                kernel.mix(
                    antibody_NA[vectors.antibody[pairs]][:, train.antibody],
                    antigen_MG[vectors.antigen[pairs]][:, train.antigen],
                )
                for pairs in (rows, other[rows])
            )
            sides = (
                (train.antibodies, vectors.antibody_ND, vectors.antibody),
                (train.antigens, vectors.antigen_ME, vectors.antigen),
            )
            joint = kernel.mix(
                *(
                    kernel.of_views(n, side.paired_distances(x_ND, index[rows], index[other[rows]]))
                    for n, (side, x_ND, index) in enumerate(sides)
                )
            )
            known = np.square((of_pair - of_other) @ root_VV).sum(axis=1)
            variance[rows] = 2 - 2 * joint - known
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        found: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.packed_root}
        for kind, (side, of_pair) in zip(KINDS, self.train.sides, strict=True):
            found |= {**side.scaling.arrays(kind), f"{kind}.train": side.train_AD}
            found[f"{kind}.of_pair"] = of_pair.astype(np.int32)
        return found

    @classmethod
    def load(cls, arrays: Arrays, settings: ProcessSettings) -> GaussianProcess:
        """Restore a process from `arrays` and `settings`."""
        antibodies, antigens = (
            Side(Standardizer.load(arrays, kind), one.widths, one.units, arrays[f"{kind}.train"])
            for kind, one in zip(KINDS, (settings.antibody, settings.antigen), strict=True)
        )
        of_pair = arrays["antibody.of_pair"], arrays["antigen.of_pair"]
        train = PairSet(antibodies, antigens, *of_pair)
        return cls(settings, train, arrays["weight"], arrays["root"])


def fit_gaussian_process(
    training: TrainingRows,
    criterion: Criterion,
    *,
    scale_antibodies: bool = True,
    antibody_weights: Sequence[Weights] | None = None,
    antibody_stretch: Weights = (),
) -> Fitted:
    """Fit a Gaussian process to the training pairs.

    Parameters
    ----------
    training : TrainingRows
    criterion : {"error", "evidence"}
        What chooses scale, mixture, weights and noise: the squared error on the inner folds, or
        the marginal likelihood.
    scale_antibodies : bool
        Whether to standardise the columns of antibodies.
    antibody_weights : sequence of tuple of float, optional
        Weights of the views of antibodies to try, by default those of `view_weights`.
    antibody_stretch : tuple of float, optional
        Factors of the squared length scale of these views.
    """
    solver, search = _solvers(training, scale_antibodies, antibody_stretch)
    pairs, views = len(solver), [view_weights(len(side.widths)) for side, _ in solver.train.sides]
    with blas_threads(pairs):
        with blas_threads(len(search)):
            chosen = choose_kernel(search, criterion, [antibody_weights or views[0], views[1]])
        if pairs <= EXACT_PAIRS:
            solved = _solve(solver, chosen)
        else:
            solved = _solve_inducing(solver, chosen, INDUCING_PAIRS)
        small = pairs <= VARIANCE_PAIRS
        root = solved.root if small else _solve_inducing(solver, chosen, VARIANCE_PAIRS).root
    used = solver.train  # not a copy: kernel ridge and Gaussian process share it
    if len(solved.weight) < pairs:
        used = used.select(slice(len(solved.weight)))
    antibody, antigen = (
        SideSettings(side.widths, side.units, weights)
        for (side, _), weights in zip(used.sides, chosen.kernel.weights, strict=True)
    )
    settings = ProcessSettings(
        chosen.kernel.scale,
        chosen.kernel.product,
        antibody,
        antigen,
        float(training.pkd.mean()),
        solved.amplitude,
    )
    # in the order in which it is stored, or writing a predictor would copy it
    stored_root = root.astype(np.float32, order="C")
    return Fitted(
        GaussianProcess(settings, used, solved.weight, stored_root),
        f"squared length scale {chosen.kernel.scale:g}, share of the product "
        f"{chosen.kernel.product:.2g}, noise {chosen.noise:g}",
    )


def search_seconds(size: FitSize, cores: int) -> float:
    """Estimate the time of kernel ridge; what it tried saves `gp` its own search."""
    return SEARCH_S * min(size.training_pairs, SEARCH_PAIRS) ** 3 + solve_seconds(size, cores)


def solve_seconds(size: FitSize, cores: int) -> float:
    """Estimate the time of a fit with a known kernel."""
    return SOLVE_S * size.training_pairs**3 / cores


def _upper(size: int) -> NDArray[np.bool_]:
    """Return where the upper triangle of a square matrix is, (V, V)."""
    return np.tri(size, dtype=np.bool_).T


class _Solvers(NamedTuple):
    whole: SolvedKernels
    search: SolvedKernels
    """Chooses the kernel."""


def _solvers(
    training: TrainingRows, scale_antibodies: bool, antibody_stretch: Weights = ()
) -> _Solvers:
    """Return the solvers that all processes fitted to these rows share.

    Their pairs are in random order, so that the first ones are a sample of all.
    """
    found = training.shared.get("solvers")
    if not isinstance(found, _Solvers):
        order = np.random.default_rng(0).permutation(len(training.rows))
        train, pkd = _pair_set(training, order, scale_antibodies), training.pkd[order]
        if antibody_stretch:
            train = replace(train, antibodies=train.antibodies.stretched(antibody_stretch))
        share = training.noise_share[order]
        whole = SolvedKernels(train, pkd - training.pkd.mean(), training.fold[order], share)
        found = _Solvers(whole, whole.first(SEARCH_PAIRS))
        training.shared["solvers"] = found
    return found


def _pair_set(training: TrainingRows, order: NDArray[np.int64], scale_antibodies: bool) -> PairSet:
    """Standardise the sequences of the training pairs, in the given order of the pairs."""
    vectors, rows = training.vectors, training.rows[order]
    used_A, antibody = np.unique(vectors.antibody[rows], return_inverse=True)
    used_G, antigen = np.unique(vectors.antigen[rows], return_inverse=True)
    train_AD = vectors.antibody_ND[used_A]
    scaling = None if scale_antibodies else Standardizer.identity(train_AD.shape[1])
    antibodies = Side.of(train_AD, vectors.widths(0), scaling)
    antigens = Side.of(vectors.antigen_ME[used_G], vectors.widths(1))
    return PairSet(antibodies, antigens, antibody, antigen)


class _Solution(NamedTuple):
    weight: Floats
    root: Floats
    """See `GaussianProcess.packed_root`."""
    amplitude: float


def _solve(solver: SolvedKernels, chosen: Chosen) -> _Solution:
    """Fit exactly."""
    (lower, weight), pairs, root = solver.factorise(chosen), len(solver), np.zeros(0)
    if pairs <= VARIANCE_PAIRS:
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
