"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Each view of a sequence has a rational-quadratic kernel with exponent 1, a side their weighted mean,
and a pair a mixture of both sides and their product; features of pairs add a linear kernel. Inner
folds (``kernel``) or the evidence
(``gp``) choose from a grid. See Rasmussen and Williams, Gaussian Processes for Machine Learning,
chapters 2, 5 and 8. N, M sequences; A, G training sequences; F training pairs, C of them inducing,
V views or pairs of a variance; P pairs to predict, R of them; K columns of their features.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Floats
from abag.core.cores import limit_blas
from abag.embed.sequences.chains import KINDS, Kind
from abag.head.data.feature_scaling import FeatureScaling
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_model import (
    Arrays,
    Index,
    PairVectors,
    TrainingRows,
    given_features,
)

Real: TypeAlias = NDArray[np.floating]
Weights: TypeAlias = tuple[float, ...]
Criterion = Literal["error", "evidence"]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PRODUCTS = (0.0, 1 / 3, 1.0)
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
FIRST_VIEW = (0.0, 0.5, 1.0)
"""Weights of the first view that are tried; all views share the rest equally."""
SEARCH_PAIRS = 600
"""Training pairs that choose the kernel. Smaller matrices are solved faster on one core."""
EXACT_PAIRS = 20_000
VARIANCE_PAIRS, INDUCING_PAIRS = 512, 2_048
"""Random training pairs that variances come from, and that are inducing points of a larger fit."""
FEATURE_RATIOS = (0.0, 0.1, 1.0, 10.0)
"""Variances of the features, relative to that of both sides, that are tried if there are any."""
JITTER = 1e-8
CRITERIA: Mapping[str, Criterion] = {"kernel": "error", "gp": "evidence"}
"""What chooses the kernel of a process on vectors, by the name of the model."""
VECTORS = "vectors"
"""Name of the search for kernels of vectors, see `kernel_search`."""


# ---- kernels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairKernel:
    """A mixture of an antibody kernel, an antigen kernel and their product."""

    scale: float
    """Squared length scale of all views, in units of their mean squared distance."""
    product: float
    """Share of the product, 0 to 1; each side has half of the rest."""
    weights: tuple[Weights, Weights]
    """Weights of the views of antibodies and of antigens; those of a side add up to 1."""
    features: float = 0.0
    """Mean variance of the linear kernel of the features, beside the 1 of both sides."""

    @property
    def side(self) -> float:
        return (1 - self.product) / 2

    def of_views(self, side: int, squared: Sequence[Floats]) -> Floats:
        """Turn the squared distances in each view of a side into its kernel."""
        both = zip(self.weights[side], squared, strict=True)
        parts = [weight / (1 + one / (2 * self.scale)) for weight, one in both if weight]
        return np.asarray(sum(parts[1:], parts[0]))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, (R, C), into that of pairs."""
        mixed = self.product * antibody
        mixed *= antigen
        if self.side:
            alone = antibody + antigen
            alone *= self.side
            mixed += alone
        return np.asarray(mixed)

    def of_features(self, left_RK: Real, right_CK: Real) -> Floats:
        """Return the linear kernel of standardised features, (R, C)."""
        left_RK = left_RK.astype(np.float64)
        return np.asarray(self.features / right_CK.shape[1] * (left_RK @ right_CK.T))

    def feature_variance(self, z_RK: Real) -> Floats:
        """Return the variance that standardised features add to that of their pairs, (R,)."""
        squares_R = np.square(z_RK, dtype=np.float64).sum(axis=1)
        return np.asarray(self.features / z_RK.shape[1] * squares_R)


def view_weights(views: int) -> list[Weights]:
    """Return the weights of the views of a side that are tried, the equal ones first."""
    each = (
        tuple((1 - first) / views + first * (view == 0) for view in range(views))
        for first in FIRST_VIEW
    )
    return [*dict.fromkeys(each)]  # of a single view there is one


@dataclass(frozen=True, slots=True)
class Side:
    """The training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    widths: tuple[int, ...]
    units: tuple[float, ...]
    """Mean squared distance of the training sequences in each view."""
    train_AD: NDArray[np.float32]

    @classmethod
    def of(
        cls,
        train_AD: NDArray[np.float32],
        widths: tuple[int, ...],
        scaling: Standardizer | None = None,
        stretch: Weights = (),
    ) -> Side:
        """Scale the unique training sequences, (A, D); `stretch` multiplies the views' units."""
        scaling = scaling or Standardizer.of(train_AD, widths=widths)
        z_AD = scaling.apply(train_AD)
        units = [
            2 * float(view.var(axis=0, dtype=np.float64).sum()) for view in split(z_AD, widths)
        ]
        factors = stretch or (1.0,) * len(widths)
        scaled = tuple((unit or 1.0) * by for unit, by in zip(units, factors, strict=True))
        return cls(scaling, widths, scaled, z_AD)

    def kernel(self, kernel: PairKernel, side: int, x_ND: NDArray[np.float32]) -> Floats:
        similar_NA = np.empty((len(x_ND), len(self.train_AD)))
        for at in range(0, len(x_ND), BLOCK):  # the distances of all take several times as much
            rows = slice(at, at + BLOCK)
            similar_NA[rows] = self.scaled_kernel(kernel, side, self.scaling.apply(x_ND[rows]))
        return similar_NA

    def scaled_kernel(self, kernel: PairKernel, side: int, z_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of scaled vectors with the training sequences, (N, A)."""
        return kernel.of_views(side, self.distances(z_ND, kernel.weights[side]))

    def distances(self, z_ND: NDArray[np.float32], weights: Weights = ()) -> list[Floats]:
        """Return squared distances to the training sequences in each view, (N, A), in units.

        Those of a view whose weight is 0 are left empty, (0, 0).
        """
        views = (split(x_ND, self.widths) for x_ND in (z_ND, self.train_AD))
        each = zip(*views, self.units, weights or (1.0,) * len(self.widths), strict=True)
        return [
            squared_distances(view_ND, own_AD) / unit if weight else np.empty((0, 0))
            for view_ND, own_AD, unit, weight in each
        ]

    def paired_distances(self, x_ND: NDArray[np.float32], row: Index, other: Index) -> list[Floats]:
        z_ND = self.scaling.apply(x_ND).astype(np.float64)
        away = split(z_ND[row] - z_ND[other], self.widths)
        return [
            np.square(one).sum(axis=1) / unit for one, unit in zip(away, self.units, strict=True)
        ]


def split(x_ND: Real, widths: Sequence[int]) -> list[Real]:
    if sum(widths) != x_ND.shape[1]:
        msg = f"views of {widths} columns; the vectors have {x_ND.shape[1]}"
        raise ValueError(msg)
    return np.split(x_ND, np.cumsum(widths)[:-1], axis=1)


def squared_distances(x_ND: Real, y_MD: Real) -> Floats:
    left_ND, right_MD = x_ND.astype(np.float64), y_MD.astype(np.float64)
    squares = left_ND @ right_MD.T
    squares *= -2
    squares += np.square(left_ND).sum(axis=1)[:, None]
    squares += np.square(right_MD).sum(axis=1)
    return np.maximum(squares, 0, out=squares)


@dataclass(frozen=True, slots=True)
class PairSet:
    """Training pairs as a kernel sees them: two sides, and the sequences of each pair, (C,)."""

    antibodies: Side
    antigens: Side
    antibody: Index
    antigen: Index
    features: NDArray[np.float32] | None = None
    """Their standardised features, (C, K), if they have any."""

    def __len__(self) -> int:
        return len(self.antibody)

    @property
    def sides(self) -> tuple[tuple[Side, Index], tuple[Side, Index]]:
        return (self.antibodies, self.antibody), (self.antigens, self.antigen)

    def select(self, pairs: slice) -> PairSet:
        used = [np.unique(index[pairs], return_inverse=True) for _, index in self.sides]
        kept = [
            replace(side, train_AD=side.train_AD[rows])
            for (side, _), (rows, _) in zip(self.sides, used, strict=True)
        ]
        features = None if self.features is None else self.features[pairs]
        return PairSet(kept[0], kept[1], used[0][1], used[1][1], features)

    def mix(self, kernel: PairKernel, antibody: Real, antigen: Real, other: PairSet) -> Floats:
        """Return the kernel of `other` pairs and these, (R, C), given those of their sides."""
        found = kernel.mix(antibody, antigen)
        if kernel.features and self.features is not None and other.features is not None:
            found += kernel.of_features(other.features, self.features)
        return found

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, (R, C), in blocks."""
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            some = pairs.select(rows)
            both = enumerate(zip(self.sides, some.sides, strict=True))
            similar = [
                own.scaled_kernel(kernel, n, other.train_AD)[of_row][:, of_column]
                for n, ((own, of_column), (other, of_row)) in both
            ]
            yield rows, self.mix(kernel, similar[0], similar[1], some)

    def matrix(self, kernel: PairKernel) -> Floats:
        matrix = np.empty((len(self),) * 2)
        for rows, block in self.blocks(kernel, self):
            matrix[rows] = block
        return np.asarray(matrix.T)  # symmetric


# ---- choosing and solving ------------------------------------------------------------------------


class Chosen(NamedTuple):
    """A kernel and the variance of the noise of one measurement in units of the kernel's."""

    kernel: PairKernel
    noise: float


class Solution(NamedTuple):
    """A process that was fitted exactly, or with C inducing pairs; see `GaussianProcess`."""

    weight: Floats
    root: Floats
    amplitude: float


@dataclass
class SolvedKernels:
    """Solves the same training pairs with any kernel and noise, and remembers the costs."""

    train: PairSet
    target: Floats
    """Labels minus their mean, (F,)."""
    fold: NDArray[np.int64]
    share: Floats
    """Variance of the noise of each label, in units of that of one measurement."""
    scaling: FeatureScaling | None = None
    """Of the features, if pairs have any."""
    weight: Floats | None = None
    """How much each label counts in the error of a kernel, (F,); None: all as much."""
    solutions: dict[Chosen, Solution] = field(default_factory=dict)
    """What was fitted with a kernel and noise, which several processes may choose."""
    _costs: dict[Chosen, dict[Criterion, float]] = field(default_factory=dict)
    _matrix: tuple[PairKernel, Floats] | None = None

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def _distances(self) -> list[list[Floats]]:
        return [side.distances(side.train_AD) for side, _ in self.train.sides]

    def first(self, pairs: int) -> SolvedKernels:
        if pairs >= len(self):
            return self
        used = slice(pairs)
        return SolvedKernels(
            self.train.select(used), self.target[used], self.fold[used], self.share[used],
            weight=None if self.weight is None else self.weight[used],
        )  # fmt: skip

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs, (F, F), in the order of LAPACK; may be overwritten."""
        if len(self) > SEARCH_PAIRS:
            return self.train.matrix(kernel)
        if self._matrix is None or self._matrix[0] != kernel:  # the next noise needs it, too
            self._matrix = None  # not in memory beside the new one
            both = enumerate(zip(self._distances, self.train.sides, strict=True))
            similar = [
                kernel.of_views(n, squared)[index][:, index] for n, (squared, (_, index)) in both
            ]
            mixed = self.train.mix(kernel, similar[0], similar[1], self.train)
            self._matrix = kernel, mixed
        return self._matrix[1].T.copy(order="F")  # symmetric

    def factorise(self, chosen: Chosen) -> tuple[Floats, Floats]:
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
                known["error"] = sum_squares(self.target - inner, self.weight)
        return known[criterion]


def sum_squares(error: Floats, weight: Floats | None) -> float:
    """Sum the squares of errors, (R,), each as often as its weight says."""
    square = np.square(error)
    return float((square if weight is None else square * weight).sum())


class KernelCosts(Protocol):
    """What `choose_kernel` asks of the pairs that it chooses by."""

    @property
    def train(self) -> PairSet:
        """The pairs."""

    def cost(self, chosen: Chosen, criterion: Criterion) -> float:
        """Return the cost of a kernel and noise; the lowest is chosen."""


def choose_kernel(
    solver: KernelCosts, criterion: Criterion, weights: Sequence[Sequence[Weights]]
) -> Chosen:
    """Choose scale, mixture and noise with the first weights of each side, then the weights."""
    tried: dict[Chosen, float] = {}
    at = 0

    def cost(kernel: PairKernel, noise: int) -> float:
        if not 0 <= noise < len(NOISES):
            return np.inf
        chosen = Chosen(kernel, NOISES[noise])
        tried[chosen] = solver.cost(chosen, criterion)
        return tried[chosen]

    def descend(kernel: PairKernel) -> None:
        # from the noise of the last kernel downhill: half of the factorisations
        nonlocal at
        lowest = cost(kernel, at)
        for step in (-1, 1):
            while (found := cost(kernel, at + step)) < lowest:
                at, lowest = at + step, found

    # with a single sequence on one side, all mixtures differ by a constant only
    one_sided = min(len(side.train_AD) for side, _ in solver.train.sides)
    products = PRODUCTS if one_sided > 1 else PRODUCTS[-1:]
    first = (weights[0][0], weights[1][0])
    for scale, product in itertools.product(SCALES, products):
        descend(PairKernel(scale, product, first))
    best = _lowest(tried).kernel
    start = at
    for pair in itertools.product(*weights):
        if pair != first:
            at = start  # what is tried does not depend on which side comes first
            descend(replace(best, weights=(pair[0], pair[1])))
    best = _lowest(tried).kernel
    if best.weights != first:  # another scale may suit these weights
        at = start
        for scale in SCALES:
            descend(replace(best, scale=scale))
    if solver.train.features is not None:
        best = _lowest(tried).kernel
        for ratio in FEATURE_RATIOS[1:]:
            at = start
            descend(replace(best, features=ratio))
        best = _lowest(tried).kernel
        if best.features:  # another scale may suit what the features leave
            at = start
            for scale in SCALES:
                descend(replace(best, scale=scale))
    return _lowest(tried)


def _lowest(tried: dict[Chosen, float]) -> Chosen:
    """Return the first of those whose costs equal the lowest but for rounding."""
    lowest = min(tried.values())
    return next(one for one, cost in tried.items() if cost <= lowest + 1e-9 * abs(lowest))


def blas_threads(pairs: int) -> AbstractContextManager[object]:
    """Limit the threads of matrices of this size, for the code inside the block."""
    return limit_blas(1 if pairs <= SEARCH_PAIRS else None)


def factorise(matrix: Floats, noise: float | Floats, target: Floats) -> tuple[Floats, Floats]:
    """Overwrite a kernel matrix, (F, F), by its Cholesky factor with noise; solve for weights."""
    import torch  # unlike scipy, torch lets other threads run meanwhile

    matrix[np.diag_indices_from(matrix)] += noise
    lower = torch.from_numpy(matrix)
    torch.linalg.cholesky(lower, out=lower)
    return matrix, solve(matrix, target[:, None])[:, 0]


def solve(lower: Floats, targets: Floats) -> Floats:
    return solve_triangle(lower, solve_triangle(lower, targets), transposed=True)


def solve_triangle(lower: Floats, targets: Floats, *, transposed: bool = False) -> Floats:
    """Solve for right-hand sides, (F, K), with the factor alone."""
    import torch

    factor, right = torch.from_numpy(lower), torch.from_numpy(targets)
    if transposed:
        factor = factor.T
    return np.asarray(torch.linalg.solve_triangular(factor, right, upper=transposed))


def leave_folds_out(lower: Floats, target: Floats, fold: NDArray[np.int64]) -> Floats:
    """Predict each fold from the others, (F,), and overwrite the factor."""
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


# ---- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SideSettings:
    """The views of one side; see `Side` and `PairKernel`."""

    widths: tuple[int, ...]
    units: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The part of a `GaussianProcess` that is no array; see `PairKernel`."""

    scale: float
    product: float
    antibody: SideSettings
    antigen: SideSettings
    pkd_mean: float
    amplitude: float
    """Variance of a pair unlike any other, in pKd^2."""


class ProcessFeatures(NamedTuple):
    """How a process reads the features of pairs."""

    scaling: FeatureScaling
    ratio: float
    """See `PairKernel.features`."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A fitted process; predictions are sums over its training pairs."""

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
        one = self.settings
        weights = one.antibody.weights, one.antigen.weights
        ratio = 0.0 if self.features is None else self.features.ratio
        return PairKernel(one.scale, one.product, weights, ratio)

    def _features_of(self, vectors: PairVectors) -> NDArray[np.float32] | None:
        """Return the standardised features of pairs, (P, K), if the process reads any."""
        if self.features is None:
            return None
        return self.features.scaling.apply(given_features(vectors))

    def predict(self, vectors: PairVectors) -> Floats:
        train, kernel = self.train, self.kernel
        shape = len(train.antibodies.train_AD), len(train.antigens.train_AD)
        weight_AG = sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)
        antigen_MG = train.antigens.kernel(kernel, 1, vectors.antigen_ME)
        alone_M = kernel.side * (antigen_MG @ weight_AG.sum(axis=0))
        pkd = self.settings.pkd_mean + alone_M[vectors.antigen]
        order = np.argsort(vectors.antibody, kind="stable")
        for first in range(0, len(vectors.antibody_ND), BLOCK):
            x_BD = vectors.antibody_ND[first : first + BLOCK]
            antibody_BA = train.antibodies.kernel(kernel, 0, x_BD)
            alone_B = kernel.side * (antibody_BA @ weight_AG.sum(axis=1))
            joint_BG = kernel.product * (weight_AG.T @ antibody_BA.T).T
            start, end = np.searchsorted(vectors.antibody, [first, first + BLOCK], sorter=order)
            for at in range(start, end, BLOCK):
                rows = order[at : min(at + BLOCK, end)]
                i, j = vectors.antibody[rows] - first, vectors.antigen[rows]
                pkd[rows] += alone_B[i] + (joint_BG[i] * antigen_MG[j]).sum(axis=1)
        z_PK = self._features_of(vectors)
        if z_PK is not None and train.features is not None:
            weight_K = self.weight @ train.features.astype(np.float64)
            pkd += kernel.of_features(z_PK, weight_K[None])[:, 0]
        return np.asarray(pkd)

    def variance(self, vectors: PairVectors) -> Floats:
        explained = np.empty(len(vectors.antibody))
        z_PK = self._features_of(vectors)
        prior = 1.0 if z_PK is None else 1.0 + self.kernel.feature_variance(z_PK)
        rows_of = self._kernel_rows(vectors, np.float32)
        for at in range(0, len(explained), BLOCK):
            rows = slice(at, at + BLOCK)
            explained[rows] = np.square(rows_of(rows) @ self.root).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(prior - explained, 0))

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        # amplitude x (2 - 2 k(pair, other) - |(k_V - k_V of the other) R|^2), with the prior kernel
        # k, that of a pair and the training pairs k_V, and the root R
        kernel, root_VV = self.kernel, self.root.astype(np.float64)
        rows_of, variance = self._kernel_rows(vectors, np.float64), np.empty(len(other))
        z_PK = self._features_of(vectors)
        sides = (
            (self.train.antibodies, vectors.antibody_ND, vectors.antibody),
            (self.train.antigens, vectors.antigen_ME, vectors.antigen),
        )
        for at in range(0, len(other), BLOCK):
            rows = np.arange(at, min(at + BLOCK, len(other)))
            prior = kernel.mix(
                *(
                    kernel.of_views(n, side.paired_distances(x_ND, index[rows], index[other[rows]]))
                    for n, (side, x_ND, index) in enumerate(sides)
                )
            )
            away = rows_of(rows) - rows_of(other[rows])
            if z_PK is not None:  # k(a, a) + k(b, b) - 2 k(a, b) of a linear kernel
                prior -= kernel.feature_variance(z_PK[rows] - z_PK[other[rows]]) / 2
            variance[rows] = 2 - 2 * prior - np.square(away @ root_VV).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def _kernel_rows(
        self, vectors: PairVectors, dtype: type[np.floating]
    ) -> Callable[[Any], Floats]:
        """Return a function from pairs to their kernel with the first training pairs, (R, V)."""
        train, kernel = self.train.select(slice(len(self.root))), self.kernel
        antibody_NA = train.antibodies.kernel(kernel, 0, vectors.antibody_ND).astype(dtype)
        antigen_MG = train.antigens.kernel(kernel, 1, vectors.antigen_ME).astype(dtype)
        z_PK = self._features_of(vectors)

        def kernel_of(rows: Any) -> Floats:  # noqa: ANN401 - a slice or indices
            found = kernel.mix(
                antibody_NA[vectors.antibody[rows]][:, train.antibody],
                antigen_MG[vectors.antigen[rows]][:, train.antigen],
            )
            if z_PK is not None and train.features is not None:
                found += kernel.of_features(z_PK[rows], train.features).astype(dtype)
            return found

        return kernel_of

    def arrays(self) -> Arrays:
        found: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.root}
        for kind, (side, of_pair) in zip(KINDS, self.train.sides, strict=True):
            found |= {**side.scaling.arrays(kind), f"{kind}.train": side.train_AD}
            found[f"{kind}.of_pair"] = of_pair.astype(np.int32)
        if self.features is not None and self.train.features is not None:
            found |= self.features.scaling.arrays()
            found["features.train"] = self.train.features
            found["features.ratio"] = np.array([self.features.ratio])
        return found

    @classmethod
    def load(cls, arrays: Arrays, settings: ProcessSettings) -> GaussianProcess:
        antibodies, antigens = (
            Side(Standardizer.load(arrays, kind), one.widths, one.units, arrays[f"{kind}.train"])
            for kind, one in zip(KINDS, (settings.antibody, settings.antigen), strict=True)
        )
        of_pair = arrays["antibody.of_pair"], arrays["antigen.of_pair"]
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


# ---- fitting -------------------------------------------------------------------------------------


class ColumnViews(NamedTuple):
    """How a process sees a side whose columns have a scale of their own."""

    weights: Sequence[Weights]
    """Those of its views that are tried."""
    stretch: Weights = ()
    """Factor of the unit of each view."""


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
    solver = training.shared.get("solver")
    if not isinstance(solver, SolvedKernels):  # all processes fitted to these rows share it
        solver = solved_kernels(training, views)
        training.shared["solver"] = solver
    search = training.searches.get(columns) or _own_search(training, solver)
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
    antibody, antigen = (
        SideSettings(side.widths, side.units, weights)
        for (side, _), weights in zip(used.sides, chosen.kernel.weights, strict=True)
    )
    scale, product, mean = chosen.kernel.scale, chosen.kernel.product, training.mean
    settings = ProcessSettings(scale, product, antibody, antigen, mean, amplitude)
    ratio = chosen.kernel.features
    features = None
    if solver.scaling is not None and ratio:
        features = ProcessFeatures(solver.scaling, ratio)
    elif used.features is not None:
        used = replace(used, features=None)
    # as stored, or writing a predictor would copy it
    return GaussianProcess(settings, used, weight, root.astype(np.float32, order="C"), features)


def _own_search(training: TrainingRows, solver: SolvedKernels) -> SolvedKernels:
    """Return the pairs by which all processes of these rows choose, with the costs they found."""
    found = training.shared.get("search")
    if not isinstance(found, SolvedKernels):
        found = training.shared["search"] = solver.first(SEARCH_PAIRS)
    return found


def tried_weights(
    solver: SolvedKernels, views: Mapping[Kind, ColumnViews]
) -> list[Sequence[Weights]]:
    """Return the weights of the views of each side that are tried."""
    return [
        views[kind].weights if kind in views else view_weights(len(side.widths))
        for kind, (side, _) in zip(KINDS, solver.train.sides, strict=True)
    ]


def solved_kernels(
    training: TrainingRows, views: Mapping[Kind, ColumnViews], order: Index | None = None
) -> SolvedKernels:
    """Standardise the training sequences; pairs in random `order`, so the first are a sample."""
    vectors = training.vectors
    if order is None:
        order = np.random.default_rng(0).permutation(len(training.rows))
    sides = list[Side]()
    indices = list[Index]()
    tables = (
        (vectors.antibody_ND, vectors.antibody),
        (vectors.antigen_ME, vectors.antigen),
    )
    for at, (kind, (x_ND, index)) in enumerate(zip(KINDS, tables, strict=True)):
        used_A, of_pair = np.unique(index[training.rows[order]], return_inverse=True)
        scaling = Standardizer.identity(x_ND.shape[1]) if kind in views else None
        stretch = views[kind].stretch if kind in views else ()
        sides.append(Side.of(x_ND[used_A], vectors.widths(at), scaling, stretch))
        indices.append(of_pair)
    of_features: FeatureScaling | None = None
    z_FK: NDArray[np.float32] | None = None
    if vectors.features is not None:
        of_training = vectors.features.take(training.rows[order])
        of_features = FeatureScaling.of(of_training)
        z_FK = of_features.apply(of_training)
    train = PairSet(sides[0], sides[1], indices[0], indices[1], z_FK)
    target = training.pkd[order] - training.mean
    weight = training.weight
    return SolvedKernels(
        train, target, training.fold[order], training.noise_share[order], of_features,
        None if weight is None else weight[order],
    )  # fmt: skip


def _fit(solver: SolvedKernels, chosen: Chosen, *, exact: bool) -> Solution:
    fitted = _solve(solver, chosen) if exact else _solve_inducing(solver, chosen, INDUCING_PAIRS)
    if len(solver) > VARIANCE_PAIRS:
        _, root, _ = _solve_inducing(solver, chosen, VARIANCE_PAIRS)
        return Solution(fitted[0], root, fitted[2])
    return Solution(*fitted)


def _solve(solver: SolvedKernels, chosen: Chosen) -> tuple[Floats, Floats, float]:
    """Fit exactly: weights, root of the variance for few pairs, and amplitude."""
    (lower, weight), pairs, root = solver.factorise(chosen), len(solver), np.zeros((0, 0))
    if pairs <= VARIANCE_PAIRS:
        root = solve_triangle(lower, np.eye(pairs)).T
    return weight, root, float(solver.target @ weight) / pairs


def _solve_inducing(
    solver: SolvedKernels, chosen: Chosen, size: int
) -> tuple[Floats, Floats, float]:
    """Fit with the first pairs as inducing points (subset of regressors), as `_solve`."""
    import torch

    train, target = solver.train, solver.target
    inducing = train.select(slice(size))
    lower, _ = factorise(inducing.matrix(chosen.kernel), JITTER, np.zeros(len(inducing)))
    squares_CC, sums_C = np.zeros_like(lower), np.zeros(len(lower))
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
    return back_CC[:, 0].copy(), back_CC[:, 1:], amplitude
