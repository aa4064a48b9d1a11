"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Each view of a sequence has a rational-quadratic kernel with exponent 1, a side their weighted mean,
and a pair a mixture of both sides and their product; features of pairs add a linear kernel. Inner
folds (``kernel``) or the evidence (``gp``) choose one: all kernels and noises that are tried are
solved on the same training pairs, and what they cost is remembered; `kernel_search` finds the same
costs for all folds of a run at once. See Rasmussen and Williams, Gaussian Processes for Machine
Learning, chapters 2, 5 and 8.

From top to bottom: kernels of pairs; their costs, and the choice of one; processes, and their fit.

N, M sequences; A, G training sequences; F training pairs, C of them inducing, V views or pairs of a
variance; P pairs to predict, R of them; K columns of their features or right-hand sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.core.cores import limit_blas
from abag.embed.tables.chains import KINDS, Kind
from abag.head.labels.stored_vectors import FeatureScaling, Standardizer
from abag.head.models.pair_vectors import (
    Arrays,
    Index,
    Once,
    PairModel,
    PairVectors,
    TrainingRows,
    given_features,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Real: TypeAlias = NDArray[np.floating]
Weights: TypeAlias = tuple[float, ...]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""
FIRST_VIEW = (0.0, 0.5, 1.0)
"""Weights of the first view that are tried; all views share the rest equally."""


@dataclass(frozen=True, slots=True)
class PairKernel:
    """Mix an antibody kernel, an antigen kernel and their product."""

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
        """Return the share of each side alone."""
        return (1 - self.product) / 2

    def of_views(self, side: int, squared: Sequence[Floats]) -> Floats:
        """Turn the squared distances in each view of a side into its kernel."""
        parts = []
        for weight, squared_NA in zip(self.weights[side], squared, strict=True):
            if weight:
                parts.append(weight / (1 + squared_NA / (2 * self.scale)))
        return np.asarray(sum(parts[1:], parts[0]))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, (R, C), into that of pairs."""
        # in place where it can be: each (R, C) that is made takes as long as a product
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
    tried = []
    for first in FIRST_VIEW:
        share = (1 - first) / views
        tried.append((share + first, *[share] * (views - 1)))
    return list(dict.fromkeys(tried))  # of a single view there is one


@dataclass(frozen=True, slots=True)
class Side:
    """Hold the training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    widths: tuple[int, ...]
    units: tuple[float, ...]
    """Mean squared distance of the training sequences in each view."""
    train_AD: NDArray[np.float32]
    """Scaled vectors of the unique training sequences."""

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
        factors = stretch or (1.0,) * len(widths)
        units = []
        for view_AD, factor in zip(split(z_AD, widths), factors, strict=True):
            unit = 2 * float(view_AD.var(axis=0, dtype=np.float64).sum())
            # 0 if all sequences are alike in a view
            units.append((unit or 1.0) * factor)
        return cls(scaling, widths, tuple(units), z_AD)

    def select(self, used: Index) -> Side:
        """Return the side with some of the training sequences."""
        return replace(self, train_AD=self.train_AD[used])

    def kernel(self, kernel: PairKernel, side: int, x_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of stored vectors with the training sequences, (N, A)."""
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
        views = split(z_ND, self.widths)
        train_views = split(self.train_AD, self.widths)
        weights = weights or (1.0,) * len(self.widths)
        distances = []
        for view_ND, view_AD, unit, weight in zip(
            views, train_views, self.units, weights, strict=True
        ):
            squared = squared_distances(view_ND, view_AD) / unit if weight else np.empty((0, 0))
            distances.append(squared)
        return distances

    def paired_distances(self, x_ND: NDArray[np.float32], row: Index, other: Index) -> list[Floats]:
        """Return the squared distances of R sequences from others in each view, (R,), in units."""
        z_ND = self.scaling.apply(x_ND).astype(np.float64)
        differences = split(z_ND[row] - z_ND[other], self.widths)
        return [
            np.square(view_RD).sum(axis=1) / unit
            for view_RD, unit in zip(differences, self.units, strict=True)
        ]


def split(x_ND: Real, widths: Sequence[int]) -> list[Real]:
    """Split columns into views; ValueError if the vectors have other columns."""
    if sum(widths) != x_ND.shape[1]:
        msg = f"views of {widths} columns; the vectors have {x_ND.shape[1]}"
        raise ValueError(msg)
    return np.split(x_ND, np.cumsum(widths)[:-1], axis=1)


def squared_distances(x_ND: Real, y_MD: Real) -> Floats:
    """Return the squared Euclidean distances of vectors, (N, M) in float64."""
    left_ND = x_ND.astype(np.float64)
    right_MD = y_MD.astype(np.float64)
    squares = left_ND @ right_MD.T
    squares *= -2
    squares += np.square(left_ND).sum(axis=1)[:, None]
    squares += np.square(right_MD).sum(axis=1)
    # of equal vectors, rounding may leave less than 0
    return np.maximum(squares, 0, out=squares)


@dataclass(frozen=True, slots=True)
class PairSet:
    """Hold training pairs as a kernel sees them: two sides, and each pair's sequences, (C,)."""

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
        """Return the sequences of each side, with the row of each pair among them."""
        return (self.antibodies, self.antibody), (self.antigens, self.antigen)

    def select(self, pairs: slice) -> PairSet:
        """Return some pairs, with the sequences that they use."""
        kept = []
        indices = []
        for side, index in self.sides:
            used, of_pair = np.unique(index[pairs], return_inverse=True)
            kept.append(side.select(used))
            indices.append(of_pair)
        features = None if self.features is None else self.features[pairs]
        return PairSet(kept[0], kept[1], indices[0], indices[1], features)

    def mix(self, kernel: PairKernel, antibody: Real, antigen: Real, other: PairSet) -> Floats:
        """Return the kernel of `other` pairs and these, (R, C), given those of their sides."""
        mixed = kernel.mix(antibody, antigen)
        if kernel.features and self.features is not None and other.features is not None:
            mixed += kernel.of_features(other.features, self.features)
        return mixed

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, (R, C), in blocks."""
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            block = pairs.select(rows)
            similar = []
            for number in (0, 1):
                side, column_of = self.sides[number]
                other, row_of = block.sides[number]
                similar_NA = side.scaled_kernel(kernel, number, other.train_AD)
                # rows after rows, as they are written; an index of columns would transpose them
                similar.append(similar_NA[row_of].take(column_of, axis=1))
            yield rows, self.mix(kernel, similar[0], similar[1], block)

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of these pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for at in range(0, len(self), BLOCK):
            rows = slice(at, at + BLOCK)
            # each pair of pairs once
            ((_, block),) = self.select(slice(at, None)).blocks(kernel, self.select(rows))
            matrix[rows, at:] = block
            matrix[at:, rows] = block.T
        return np.asarray(matrix.T)  # symmetric


Criterion = Literal["error", "evidence"]
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Values of `PairKernel.scale` that are tried."""
PRODUCTS = (0.0, 1 / 3, 1.0)
"""Values of `PairKernel.product` that are tried."""
NOISES = (10.0, 1.0, 0.2, 0.05, 0.015, 0.004)
"""Noise variances in units of the kernel's."""
FEATURE_RATIOS = (0.0, 0.1, 1.0, 10.0)
"""Variances of the features, relative to that of both sides, that are tried if there are any."""
SEARCH_PAIRS = 600
"""Training pairs that choose the kernel. Smaller matrices are solved faster on one core."""
CRITERIA: Mapping[str, Criterion] = {"kernel": "error", "gp": "evidence"}
"""What chooses the kernel of a process on vectors, by the name of the model."""


class ColumnViews(NamedTuple):
    """Tell how a process sees a side whose columns have a scale of their own."""

    weights: Sequence[Weights]
    """Weights of its views that are tried."""
    stretch: Weights = ()
    """Factor of the unit of each view."""


class Chosen(NamedTuple):
    """Hold a kernel, and the noise variance of one measurement in units of the kernel's."""

    kernel: PairKernel
    noise: float


class Solution(NamedTuple):
    """Hold a process that was fitted exactly, or with C inducing pairs; see `GaussianProcess`."""

    weight: Floats
    root: Floats
    amplitude: float


@dataclass
class SolvedKernels:
    """Solve the same training pairs with any kernel and noise, and remember the costs."""

    train: PairSet
    target: Floats
    """Labels minus their mean, (F,)."""
    fold: NDArray[np.int64]
    """Inner fold of each pair, (F,)."""
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
        """Return the first pairs alone, without what was solved."""
        if pairs >= len(self):
            return self
        used = slice(pairs)
        return SolvedKernels(
            self.train.select(used),
            self.target[used],
            self.fold[used],
            self.share[used],
            weight=None if self.weight is None else self.weight[used],
        )

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs, (F, F), in the order of LAPACK; may be overwritten."""
        if len(self) > SEARCH_PAIRS:
            return self.train.matrix(kernel)
        if self._matrix is None or self._matrix[0] != kernel:  # the next noise needs it, too
            self._matrix = None  # not in memory beside the new one
            similar = []
            for number, (_, index) in enumerate(self.train.sides):
                similar_AA = kernel.of_views(number, self._distances[number])
                similar.append(similar_AA[index][:, index])
            mixed = self.train.mix(kernel, similar[0], similar[1], self.train)
            self._matrix = (kernel, mixed)
        return self._matrix[1].T.copy(order="F")  # symmetric

    def factorise(self, chosen: Chosen) -> tuple[Floats, Floats]:
        """Return the Cholesky factor, (F, F), and the weight of each pair, (F,)."""
        return factorise(self.matrix(chosen.kernel), chosen.noise * self.share, self.target)

    def cost(self, chosen: Chosen, criterion: Criterion) -> float:
        """Return the squared error on the inner folds, or minus twice the evidence."""
        costs = self._costs.setdefault(chosen, {})
        if criterion not in costs:
            lower, weight = self.factorise(chosen)
            # 0 if all labels are equal, of which there is no logarithm
            fit = max(float(self.target @ weight), 1e-300)
            log_root = float(np.log(lower.diagonal()).sum())
            costs["evidence"] = len(self) * float(np.log(fit)) + 2 * log_root
            if criterion == "error":
                inner = leave_folds_out(lower, self.target, self.fold)
                costs["error"] = sum_squares(self.target - inner, self.weight)
        return costs[criterion]


def sum_squares(error: Floats, weight: Floats | None) -> float:
    """Sum the squares of errors, (R,), each as often as its weight says."""
    square = np.square(error)
    return float((square if weight is None else square * weight).sum())


class KernelCosts(Protocol):
    """Offer what `choose_kernel` asks of the pairs that it chooses by."""

    @property
    def train(self) -> PairSet:
        """Return the pairs."""

    def cost(self, chosen: Chosen, criterion: Criterion) -> float:
        """Return the cost of a kernel and noise; the lowest is chosen."""


def choose_kernel(
    solver: KernelCosts, criterion: Criterion, weights: Sequence[Sequence[Weights]]
) -> Chosen:
    """Choose scale, mixture and noise with the first weights of each side, then the weights."""
    steps = kernel_steps(solver.train, weights)
    try:
        chosen = next(steps)
        while True:
            chosen = steps.send(solver.cost(chosen, criterion))
    except StopIteration as ended:
        choice: Chosen = ended.value
        return choice


KernelSteps: TypeAlias = Generator[Chosen, float, Chosen]
"""Asks for the costs of one kernel and noise after another; returns the choice."""


def kernel_steps(train: PairSet, weights: Sequence[Sequence[Weights]]) -> KernelSteps:
    """Choose a kernel for training pairs, see `choose_kernel`; the caller sends the costs."""
    tried: dict[Chosen, float] = {}
    at = 0

    def cost(kernel: PairKernel, noise: int) -> Generator[Chosen, float, float]:
        if not 0 <= noise < len(NOISES):
            return np.inf
        chosen = Chosen(kernel, NOISES[noise])
        if chosen not in tried:
            tried[chosen] = yield chosen
        return tried[chosen]

    def descend(kernel: PairKernel) -> Generator[Chosen, float, None]:
        # from the noise of the last kernel downhill: half of the factorisations
        nonlocal at
        lowest = yield from cost(kernel, at)
        for step in (-1, 1):
            while (next_cost := (yield from cost(kernel, at + step))) < lowest:
                at += step
                lowest = next_cost

    # with a single sequence on one side, all mixtures differ by a constant only
    one_sided = min(len(side.train_AD) for side, _ in train.sides)
    products = PRODUCTS if one_sided > 1 else PRODUCTS[-1:]
    first = (weights[0][0], weights[1][0])
    for scale, product in itertools.product(SCALES, products):
        yield from descend(PairKernel(scale, product, first))
    best = _lowest(tried).kernel
    start = at
    for pair in itertools.product(*weights):
        if pair != first:
            at = start  # what is tried does not depend on which side comes first
            yield from descend(replace(best, weights=(pair[0], pair[1])))
    best = _lowest(tried).kernel
    if best.weights != first:  # another scale may suit these weights
        at = start
        for scale in SCALES:
            yield from descend(replace(best, scale=scale))
    if train.features is not None:
        best = _lowest(tried).kernel
        for ratio in FEATURE_RATIOS[1:]:
            at = start
            yield from descend(replace(best, features=ratio))
        best = _lowest(tried).kernel
        if best.features:  # another scale may suit what the features leave
            at = start
            for scale in SCALES:
                yield from descend(replace(best, scale=scale))
    return _lowest(tried)


def most_kernels(train: PairSet, weights: Sequence[Sequence[Weights]]) -> int:
    """Return how many kernels `kernel_steps` tries at most."""
    of_weights = len(weights[0]) * len(weights[1]) - 1
    of_features = 0 if train.features is None else len(FEATURE_RATIOS) - 1
    scaled_again = bool(of_weights) + bool(of_features)
    return len(SCALES) * (len(PRODUCTS) + scaled_again) + of_weights + of_features


def _lowest(tried: dict[Chosen, float]) -> Chosen:
    """Return the first of those whose costs equal the lowest but for rounding."""
    lowest = min(tried.values())
    highest = lowest + 1e-9 * abs(lowest)
    return next(chosen for chosen, cost in tried.items() if cost <= highest)


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
    """Solve for right-hand sides, (F, K), with the matrix of this Cholesky factor, (F, F)."""
    return solve_triangle(lower, solve_triangle(lower, targets), transposed=True)


def solve_triangle(lower: Floats, targets: Floats, *, transposed: bool = False) -> Floats:
    """Solve for right-hand sides, (F, K), with the factor alone."""
    import torch

    factor = torch.from_numpy(lower)
    right = torch.from_numpy(targets)
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


_SEARCH: Once[SolvedKernels] = Once("search")


def own_search(training: TrainingRows, solver: SolvedKernels) -> SolvedKernels:
    """Return the pairs by which all processes of these rows choose, with the costs they found."""
    return _SEARCH.known(training) or _SEARCH.keep(training, solver.first(SEARCH_PAIRS))


def tried_weights(
    solver: SolvedKernels, views: Mapping[Kind, ColumnViews]
) -> list[Sequence[Weights]]:
    """Return the weights of the views of each side that are tried."""
    tried = list[Sequence[Weights]]()
    for kind, (side, _) in zip(KINDS, solver.train.sides, strict=True):
        tried.append(views[kind].weights if kind in views else view_weights(len(side.widths)))
    return tried


def solved_kernels(
    training: TrainingRows, views: Mapping[Kind, ColumnViews], order: Index | None = None
) -> SolvedKernels:
    """Standardise the training sequences; pairs come in random `order`: the first are a sample."""
    vectors = training.vectors
    if order is None:
        order = np.random.default_rng(0).permutation(len(training.rows))
    sides = list[Side]()
    indices = list[Index]()
    for kind, side in vectors.sides.items():
        used_A, of_pair = np.unique(side.index[training.rows[order]], return_inverse=True)
        scaling = Standardizer.identity(side.x_ND.shape[1]) if kind in views else None
        stretch = views[kind].stretch if kind in views else ()
        sides.append(Side.of(side.x_ND[used_A], side.widths, scaling, stretch))
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
        train,
        target,
        training.fold[order],
        training.noise_share[order],
        of_features,
        None if weight is None else weight[order],
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

    def _weight_of_sequences(self) -> csr_array:
        """Sum the weights of training pairs by their sequences, (A, G)."""
        from scipy import sparse  # takes 0.1 s, and --help lists this model

        train = self.train
        shape = (len(train.antibodies.train_AD), len(train.antigens.train_AD))
        return sparse.csr_array((self.weight, (train.antibody, train.antigen)), shape)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); kernels are computed per sequence, not per pair."""
        train = self.train
        kernel = self.kernel
        antibodies, antigens = vectors.sides.values()
        weight_AG = self._weight_of_sequences()
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
        kernel = self.kernel
        weight_AG = self._weight_of_sequences()
        weight = weight_AG if number == 0 else weight_AG.T
        other, _ = self.train.sides[1 - number]
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
