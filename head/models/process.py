"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

`kernels` has the kernels; inner folds (``kernel``) or the evidence (``gp``) choose one. See
Rasmussen and Williams, Gaussian Processes for Machine Learning, chapters 2 and 8.

N, M sequences; A, G training sequences; F training pairs, C of them inducing, V views or pairs of a
variance; P pairs to predict, R of them; K columns of their features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.embed.tables.chains import KINDS, Kind
from abag.head.labels.stored_vectors import FeatureScaling, Standardizer
from abag.head.models.kernels import (
    BLOCK,
    SEARCH_PAIRS,
    Chosen,
    ColumnViews,
    Criterion,
    KernelCosts,
    PairKernel,
    PairSet,
    Side,
    Solution,
    SolvedKernels,
    blas_threads,
    choose_kernel,
    factorise,
    own_search,
    solve_triangle,
    solved_kernels,
    tried_weights,
)
from abag.head.models.pair_vectors import (
    Arrays,
    Index,
    Once,
    PairModel,
    PairVectors,
    TrainingRows,
    given_features,
)

EXACT_PAIRS = 20_000
"""Training pairs up to which a process is fitted exactly."""
VARIANCE_PAIRS = 512
"""Random training pairs that variances come from."""
INDUCING_PAIRS = 2_048
"""Random training pairs that are inducing points of a fit that is not exact."""
JITTER = 1e-8
"""Added to the diagonal of a kernel matrix without noise, which may be singular."""
VECTORS = "vectors"
"""Name of the search for kernels of vectors, see `kernel_search`."""


@dataclass(frozen=True, slots=True)
class SideSettings:
    """Describe the views of one side; see `Side` and `PairKernel`."""

    widths: tuple[int, ...]
    units: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Hold the part of a `GaussianProcess` that is no array; see `PairKernel`."""

    scale: float
    product: float
    antibody: SideSettings
    antigen: SideSettings
    pkd_mean: float
    amplitude: float
    """Variance of a pair unlike any other, in pKd^2."""


class ProcessFeatures(NamedTuple):
    """Tell how a process reads the features of pairs."""

    scaling: FeatureScaling
    ratio: float
    """See `PairKernel.features`."""


@dataclass(frozen=True, slots=True)
class GaussianProcess(PairModel):
    """Hold a fitted process; predictions are sums over its training pairs."""

    settings: ProcessSettings
    train: PairSet
    weight: Floats
    """Weight of each training pair in pKd, (C,)."""
    root: NDArray[np.float32]
    """Maps the kernel of the first V training pairs to what reduces the variance: (V, V)."""
    features: ProcessFeatures | None = None
    """None: the process reads none, also where pairs have some."""

    @property
    def kernel(self) -> PairKernel:
        """Return the kernel that was chosen."""
        settings = self.settings
        weights = (settings.antibody.weights, settings.antigen.weights)
        ratio = 0.0 if self.features is None else self.features.ratio
        return PairKernel(settings.scale, settings.product, weights, ratio)

    def _features_of(self, vectors: PairVectors) -> NDArray[np.float32] | None:
        """Return the standardised features of pairs, (P, K), if the process reads any."""
        if self.features is None:
            return None
        return self.features.scaling.apply(given_features(vectors))

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); kernels are computed per sequence, not per pair."""
        from scipy import sparse  # takes 0.1 s, and --help lists this model

        train = self.train
        kernel = self.kernel
        antibodies, antigens = vectors.sides.values()
        shape = (len(train.antibodies.train_AD), len(train.antigens.train_AD))
        weight_AG = sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)
        antigen_MG = train.antigens.kernel(kernel, 1, antigens.x_ND)
        alone_M = kernel.side * (antigen_MG @ weight_AG.sum(axis=0))
        pkd = self.settings.pkd_mean + alone_M[antigens.index]
        # by antibody: the kernel of a block of antibodies serves all their pairs
        order = np.argsort(antibodies.index, kind="stable")
        for first in range(0, len(antibodies.x_ND), BLOCK):
            x_BD = antibodies.x_ND[first : first + BLOCK]
            antibody_BA = train.antibodies.kernel(kernel, 0, x_BD)
            alone_B = kernel.side * (antibody_BA @ weight_AG.sum(axis=1))
            joint_BG = kernel.product * (weight_AG.T @ antibody_BA.T).T
            start, end = np.searchsorted(antibodies.index, [first, first + BLOCK], sorter=order)
            for at in range(start, end, BLOCK):
                rows = order[at : min(at + BLOCK, end)]
                antibody = antibodies.index[rows] - first
                joint_RG = joint_BG[antibody] * antigen_MG[antigens.index[rows]]
                pkd[rows] += alone_B[antibody] + joint_RG.sum(axis=1)
        z_PK = self._features_of(vectors)
        if z_PK is not None and train.features is not None:
            weight_K = self.weight @ train.features.astype(np.float64)
            pkd += kernel.of_features(z_PK, weight_K[None])[:, 0]
        return np.asarray(pkd)

    def values_of(self, vectors: PairVectors, number: int) -> Floats:
        """Return what predictions of pairs change by per unit of kernel, in pKd.

        Shape (P, A) for the A training sequences of one side, 0 or 1, given the other side.
        """
        from scipy import sparse  # takes 0.1 s, and --help lists this model

        train = self.train
        kernel = self.kernel
        shape = (len(train.antibodies.train_AD), len(train.antigens.train_AD))
        weight_AG = sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)
        weight = weight_AG if number == 0 else weight_AG.T
        other, _ = train.sides[1 - number]
        sequences = [*vectors.sides.values()][1 - number]
        other_NG = other.kernel(kernel, 1 - number, sequences.x_ND)
        joint_NA = kernel.product * (weight @ other_NG.T).T
        alone_A = kernel.side * weight.sum(axis=1)
        return np.asarray((joint_NA + alone_A)[sequences.index])

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance of each prediction in pKd^2, (P,)."""
        explained = np.empty(len(vectors))
        z_PK = self._features_of(vectors)
        prior = 1.0 if z_PK is None else 1.0 + self.kernel.feature_variance(z_PK)
        rows_of = self._kernel_rows(vectors, np.float32)
        for at in range(0, len(explained), BLOCK):
            rows = slice(at, at + BLOCK)
            explained[rows] = np.square(rows_of(rows) @ self.root).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(prior - explained, 0))

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of each pair's difference from an `other` pair in pKd^2, (P,)."""
        # amplitude x (2 - 2 k(pair, other) - |(k_V - k_V of the other) R|^2), with the prior kernel
        # k, that of a pair and the training pairs k_V, and the root R
        kernel = self.kernel
        root_VV = self.root.astype(np.float64)
        # float64: kernels of a mutant and its parent differ by little more than rounding in float32
        rows_of = self._kernel_rows(vectors, np.float64)
        variance = np.empty(len(other))
        z_PK = self._features_of(vectors)
        sides = [*zip(self.train.sides, vectors.sides.values(), strict=True)]
        for at in range(0, len(other), BLOCK):
            rows = np.arange(at, min(at + BLOCK, len(other)))
            similar = []
            for number, ((side, _), new) in enumerate(sides):
                index = new.index
                squared = side.paired_distances(new.x_ND, index[rows], index[other[rows]])
                similar.append(kernel.of_views(number, squared))
            prior = kernel.mix(similar[0], similar[1])
            away = rows_of(rows) - rows_of(other[rows])
            if z_PK is not None:  # k(a, a) + k(b, b) - 2 k(a, b) of a linear kernel
                prior -= kernel.feature_variance(z_PK[rows] - z_PK[other[rows]]) / 2
            variance[rows] = 2 - 2 * prior - np.square(away @ root_VV).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def _kernel_rows(
        self, vectors: PairVectors, dtype: type[np.floating]
    ) -> Callable[[Any], Floats]:
        """Return a function from pairs to their kernel with the first training pairs, (R, V)."""
        train = self.train.select(slice(len(self.root)))
        kernel = self.kernel
        antibodies, antigens = vectors.sides.values()
        antibody_NA = train.antibodies.kernel(kernel, 0, antibodies.x_ND).astype(dtype)
        antigen_MG = train.antigens.kernel(kernel, 1, antigens.x_ND).astype(dtype)
        z_PK = self._features_of(vectors)

        def kernel_of(rows: Any) -> Floats:  # noqa: ANN401 - a slice or indices
            mixed = kernel.mix(
                antibody_NA[antibodies.index[rows]][:, train.antibody],
                antigen_MG[antigens.index[rows]][:, train.antigen],
            )
            if z_PK is not None and train.features is not None:
                mixed += kernel.of_features(z_PK[rows], train.features).astype(dtype)
            return mixed

        return kernel_of

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""
        arrays: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.root}
        for kind, (side, of_pair) in zip(KINDS, self.train.sides, strict=True):
            arrays |= side.scaling.arrays(kind)
            arrays[f"{kind}.train"] = side.train_AD
            arrays[f"{kind}.of_pair"] = of_pair.astype(np.int32)
        if self.features is not None and self.train.features is not None:
            arrays |= self.features.scaling.arrays()
            arrays["features.train"] = self.train.features
            arrays["features.ratio"] = np.array([self.features.ratio])
        return arrays

    @classmethod
    def load(cls, arrays: Arrays, settings: ProcessSettings) -> GaussianProcess:
        """Restore from the `arrays` of a predictor; ValueError if their shapes do not fit."""
        antibodies = _load_side(arrays, "antibody", settings.antibody)
        antigens = _load_side(arrays, "antigen", settings.antigen)
        of_pair = (arrays["antibody.of_pair"], arrays["antigen.of_pair"])
        root = arrays["root"]
        if root.ndim != 2 or len(root) != root.shape[1]:
            msg = f"root has shape {root.shape}"
            raise ValueError(msg)
        pairs = PairSet(antibodies, antigens, *of_pair, arrays.get("features.train"))
        features = None
        if pairs.features is not None:
            if pairs.features.ndim != 2 or len(pairs.features) != len(pairs):
                msg = f"features.train has shape {pairs.features.shape} for {len(pairs)} pairs"
                raise ValueError(msg)
            ratio = float(arrays["features.ratio"][0])
            features = ProcessFeatures(FeatureScaling.load(arrays), ratio)
        return cls(settings, pairs, arrays["weight"], root, features)


def _load_side(arrays: Arrays, kind: Kind, settings: SideSettings) -> Side:
    scaling = Standardizer.load(arrays, kind)
    return Side(scaling, settings.widths, settings.units, arrays[f"{kind}.train"])


# ---- fitting -------------------------------------------------------------------------------------


_SOLVER: Once[SolvedKernels] = Once("solver")
"""All processes that are fitted to the same rows share it."""


def fit_gaussian_process(
    training: TrainingRows,
    criterion: Criterion,
    *,
    views: Mapping[Kind, ColumnViews] | None = None,
    columns: str = VECTORS,
) -> GaussianProcess:
    """Fit a process; `views` has the sides whose columns need no scaling.

    The kernel is chosen by the search of these `columns` that the folds of a run share, if there
    is one, else by training pairs.
    """
    views = views or {}
    solver = _SOLVER.known(training) or _SOLVER.keep(training, solved_kernels(training, views))
    search = training.searches.get(columns) or own_search(training, solver)
    pairs = len(solver)
    with blas_threads(pairs):
        with blas_threads(min(pairs, SEARCH_PAIRS)):
            tried = tried_weights(solver, views)
            chosen = choose_kernel(cast("KernelCosts", search), criterion, tried)
        if chosen not in solver.solutions:
            solver.solutions[chosen] = _fit(solver, chosen, exact=training.size <= EXACT_PAIRS)
        weight, root, amplitude = solver.solutions[chosen]
    # not a copy: kernel ridge and Gaussian process share it
    used = solver.train if len(weight) == pairs else solver.train.select(slice(len(weight)))
    sides = []
    for (side, _), weights in zip(used.sides, chosen.kernel.weights, strict=True):
        sides.append(SideSettings(side.widths, side.units, weights))
    kernel = chosen.kernel
    settings = ProcessSettings(
        kernel.scale, kernel.product, sides[0], sides[1], training.mean, amplitude
    )
    ratio = chosen.kernel.features
    features = None
    if solver.scaling is not None and ratio:
        features = ProcessFeatures(solver.scaling, ratio)
    elif used.features is not None:
        used = replace(used, features=None)
    # as stored, or writing a predictor would copy it
    return GaussianProcess(settings, used, weight, root.astype(np.float32, order="C"), features)


def _fit(solver: SolvedKernels, chosen: Chosen, *, exact: bool) -> Solution:
    fitted = _solve(solver, chosen) if exact else _solve_inducing(solver, chosen, INDUCING_PAIRS)
    if len(solver) > VARIANCE_PAIRS:
        # a root of all pairs would cost a predictor F^2 numbers, and each prediction as many steps
        return fitted._replace(root=_solve_inducing(solver, chosen, VARIANCE_PAIRS).root)
    return fitted


def _solve(solver: SolvedKernels, chosen: Chosen) -> Solution:
    """Fit exactly, with the root of the variance only for few pairs."""
    lower, weight = solver.factorise(chosen)
    pairs = len(solver)
    root = np.zeros((0, 0))
    if pairs <= VARIANCE_PAIRS:
        root = solve_triangle(lower, np.eye(pairs)).T
    return Solution(weight, root, float(solver.target @ weight) / pairs)


def _solve_inducing(solver: SolvedKernels, chosen: Chosen, size: int) -> Solution:
    """Fit with the first pairs as inducing points (subset of regressors)."""
    import torch

    train = solver.train
    target = solver.target
    inducing = train.select(slice(size))
    lower, _ = factorise(inducing.matrix(chosen.kernel), JITTER, np.zeros(len(inducing)))
    squares_CC = np.zeros_like(lower)
    sums_C = np.zeros(len(lower))
    weight_F = 1 / np.sqrt(solver.share)
    for rows, block_BC in inducing.blocks(chosen.kernel, train):
        feature_CB = solve_triangle(lower, block_BC.T) * weight_F[rows]
        squares_CC += feature_CB @ feature_CB.T  # one triangle is computed, as both are the same
        sums_C += feature_CB @ (weight_F[rows] * target[rows])
    # Eigenvectors would give both factors, too, but take ten times as long.
    inner_lower, solved_C = factorise(squares_CC.copy(order="F"), chosen.noise, sums_C)
    share_CC = -chosen.noise * torch.cholesky_inverse(torch.from_numpy(inner_lower)).numpy()
    share_CC[np.diag_indices_from(share_CC)] += 1 + JITTER
    # the square root of S (S + noise)^-1, which is 1 - noise (S + noise)^-1
    root_CC = torch.linalg.cholesky(torch.from_numpy(share_CC)).numpy()
    back_CC = solve_triangle(lower, np.column_stack([solved_C, root_CC]), transposed=True)
    squared = float(np.square(weight_F * target).sum())
    amplitude = (squared - float(sums_C @ solved_C)) / chosen.noise / len(target)
    return Solution(back_CC[:, 0].copy(), back_CC[:, 1:], amplitude)
