"""The choice of a kernel, for all folds of a run at once, and the fit of a Gaussian process.

Inner folds (``kernel``) or the evidence (``gp``) choose a kernel. A process of all pairs tells what
each fold would predict: with P the inverse of the kernel matrix and its noise, and y the labels,
errors of pairs X that are predicted from all others are (P_XX)^-1 (P y)_X. So a kernel costs one
inverse for all folds, and not one per fold. The choice of a fold sees its own training pairs only:
what it holds out is left out together with each inner fold. See Rasmussen and Williams, Gaussian
Processes for Machine Learning, 5.4.2, of which this is the case of several pairs. Where folds share
no search, a fit is the only fold of its own.

From top to bottom: the pairs of a process; which kernels are tried; their costs, and the choice;
the fit of a process.

F training pairs, C of them in a sample or inducing, F folds of a search, V pairs of a variance; K
right-hand sides.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from abag.core.arrays import Bools, Floats, Ints, Matrix, weights_of
from abag.core.cores import limit_blas, thread_pool
from abag.core.messages import tell_share
from abag.embed.tables.chains import KINDS, Kind
from abag.head.models.kernels import (
    BLOCK,
    GaussianProcess,
    KernelSide,
    PairKernel,
    PairSet,
    ProcessFeatures,
    ProcessSettings,
    SideSettings,
    Weights,
    view_weights,
)
from abag.head.models.pair_vectors import FeatureScaling, Index, Standardizer, TrainingRows, once

Views: TypeAlias = Mapping[Kind, "ColumnViews"]
Criterion = Literal["error", "evidence"]
MapCalls: TypeAlias = Callable[..., Iterator[Any]]
"""`map`, or that of a pool of threads."""
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
VECTORS = "vectors"
"""Name of the search for kernels of vectors."""
LEAST_LEARNED = 200
"""Training pairs of a fold in a sample from which it chooses a kernel by them; in a table of no
more than `SEARCH_PAIRS` pairs all of them are in the sample."""
LEAST_SHARED = 200
"""Pairs of a sample from which threads share the folds of a kernel: smaller ones take less time
than a thread to start."""
EXACT_PAIRS = 20_000
"""Training pairs up to which a process is fitted exactly."""
VARIANCE_PAIRS = 512
"""Random training pairs that variances come from."""
INDUCING_PAIRS = 2_048
"""Random training pairs that are inducing points of a fit that is not exact."""
JITTER = 1e-8
"""Added to the diagonal of a kernel matrix without noise, which may be singular."""


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
    """Hold training pairs, and what was solved of them with a kernel and noise."""

    train: PairSet
    target: Floats
    """Labels minus their mean, (F,)."""
    share: Floats
    """Variance of the noise of each label, in units of that of one measurement."""
    scaling: FeatureScaling | None = None
    """Of the features, if pairs have any."""
    solutions: dict[Chosen, Solution] = field(default_factory=dict)
    """What was fitted with a kernel and noise, which several processes may choose."""
    _matrix: tuple[PairKernel, Floats] | None = None

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def _distances(self) -> list[list[Floats]]:
        return [side.distances(side.train_AD) for side in self.train.sides]

    def first(self, pairs: int) -> SolvedKernels:
        """Return the first pairs alone, without what was solved."""
        if pairs >= len(self):
            return self
        used = slice(pairs)
        return SolvedKernels(self.train.select(used), self.target[used], self.share[used])

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs, (F, F), in the order of LAPACK; may be overwritten."""
        if len(self) > SEARCH_PAIRS:
            return self.train.matrix(kernel)
        if self._matrix is None or self._matrix[0] != kernel:  # the next noise needs it, too
            self._matrix = None  # not in memory beside the new one
            similar = []
            for number, index in enumerate(self.train.index):
                similar_AA = kernel.of_views(number, self._distances[number])
                similar.append(similar_AA[index][:, index])
            mixed = self.train.mix(kernel, similar, self.train)
            self._matrix = (kernel, mixed)
        return self._matrix[1].T.copy(order="F")  # symmetric


def random_order(training: TrainingRows) -> Ints:
    """Return the order of the pairs of a process, (F,): the first are a sample."""
    return np.random.default_rng(0).permutation(len(training.rows))


def solved_kernels(training: TrainingRows, views: Views, order: Ints) -> SolvedKernels:
    """Standardise the sequences of training pairs, which come in this order."""
    vectors = training.vectors
    sides = list[KernelSide]()
    indices = list[Index]()
    for kind, side in vectors.sides.items():
        used_A, of_pair = np.unique(side.index[training.rows[order]], return_inverse=True)
        scaling = Standardizer.identity(side.x_ND.shape[1]) if kind in views else None
        stretch = views[kind].stretch if kind in views else ()
        sides.append(KernelSide.of(side.x_ND[used_A], side.widths, scaling, stretch))
        indices.append(of_pair)
    of_features: FeatureScaling | None = None
    z_FK: Matrix | None = None
    if vectors.features is not None:
        of_training = vectors.features.take(training.rows[order])
        of_features = FeatureScaling.of(of_training)
        z_FK = of_features.apply(of_training)
    train = PairSet(tuple(sides), tuple(indices), z_FK)
    target = training.pkd[order] - training.mean
    return SolvedKernels(train, target, training.noise_share[order], of_features)


def tried_weights(solver: SolvedKernels, views: Views) -> list[Sequence[Weights]]:
    """Return the weights of the views of each side that are tried."""
    tried = list[Sequence[Weights]]()
    for kind, side in zip(KINDS, solver.train.sides, strict=True):
        tried.append(views[kind].weights if kind in views else view_weights(len(side.widths)))
    return tried


KernelSteps: TypeAlias = Generator[Chosen, float, Chosen]
"""Asks for the costs of one kernel and noise after another; returns the choice."""


def kernel_steps(train: PairSet, weights: Sequence[Sequence[Weights]]) -> KernelSteps:
    """Choose scale, mixture and noise with the first weights of each side, then the weights.

    The caller sends the costs.
    """
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
    one_sided = min(len(side.train_AD) for side in train.sides)
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


@dataclass(frozen=True, slots=True)
class FoldLabels:
    """Hold what one fold knows of the sampled pairs; those left out together are neighbours."""

    held_out: Ints
    learned: Ints
    """Sorted by inner fold, (L,)."""
    inner: Sequence[slice]
    """The inner folds among the learned pairs."""
    others_mean: Floats
    """Mean label of the other inner folds, for each."""
    target_C: Floats
    """Their labels; of others anything."""
    weight_C: Floats | None = None
    """How much each label counts in an error; None: all as much."""

    @classmethod
    def of(cls, fold: TrainingRows, sampled: Ints) -> FoldLabels:
        """Take what a fold knows of pairs of the table, (C,)."""
        learned_P = np.zeros(len(fold.labels.pkd), np.bool_)
        learned_P[fold.rows] = True
        inner_P = np.full(len(learned_P), -1)
        inner_P[fold.rows] = fold.fold
        target_C = fold.labels.pkd[sampled] - fold.mean
        weight_C = weights_of(fold.labels.share, sampled)
        return cls.sort(learned_P[sampled], inner_P[sampled], target_C, weight_C)

    @classmethod
    def sort(
        cls, learned_C: Bools, inner_C: Ints, target_C: Floats, weight_C: Floats | None = None
    ) -> FoldLabels:
        """Sort pairs by their inner folds, which those that are not learned do not have."""
        learned = np.flatnonzero(learned_C)
        learned = learned[np.argsort(inner_C[learned], kind="stable")]
        _, first, counts = np.unique(inner_C[learned], return_index=True, return_counts=True)
        inner = [slice(start, start + count) for start, count in zip(first, counts, strict=True)]
        labels = target_C[learned]
        others_mean = []
        for rows in inner:
            others = np.delete(labels, rows)
            others_mean.append(others.mean() if len(others) else 0.0)
        held_out = np.flatnonzero(~learned_C)
        return cls(held_out, learned, inner, np.array(others_mean), target_C, weight_C)


class Inverted(NamedTuple):
    """Hold what a kernel with its noise has in common for all folds."""

    inverse_CC: Floats
    """Inverse of the kernel matrix of all sampled pairs, with their noise."""
    log_determinant: float
    """Of that matrix."""
    solved_CF: Floats
    """The inverse times the labels of each fold."""
    of_one_C: Floats
    """The inverse times ones."""

    @classmethod
    def of(cls, matrix_CC: Floats, noise_C: Floats, targets_CF: Floats) -> Self:
        """Invert a kernel matrix with its noise."""
        import torch

        matrix = matrix_CC.copy(order="F")  # as LAPACK has it
        matrix[np.diag_indices_from(matrix)] += noise_C
        lower = torch.from_numpy(matrix)
        torch.linalg.cholesky(lower, out=lower)
        log_determinant = 2 * float(lower.diagonal().log().sum())
        inverse_CC = torch.cholesky_inverse(lower).numpy()
        return cls(inverse_CC, log_determinant, inverse_CC @ targets_CF, inverse_CC.sum(axis=1))


@dataclass
class _Choice:
    """Hold the choice of a kernel by one fold and criterion while it is made."""

    fold: int
    criterion: Criterion
    steps: KernelSteps
    asked: Chosen
    """Whose cost it waits for."""
    kernels: int = 0
    """How many it has asked for before."""


KernelChoice: TypeAlias = Callable[[Criterion], Chosen]
"""Returns the kernel and noise that a fold chooses by a criterion."""


@dataclass
class KernelSearch:
    """Choose the kernels of folds; each cost is computed once, when a choice asks for it."""

    solver: SolvedKernels
    views: Views
    folds: Sequence[FoldLabels]
    threads: int = 1
    """Threads that share the folds of a kernel."""
    _chosen: dict[tuple[int, Criterion], Chosen] = field(default_factory=dict)
    _costs: defaultdict[Chosen, dict[tuple[int, Criterion], float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _inverted: dict[Chosen, Inverted] = field(default_factory=dict)
    """Of the last kernel that was asked for, with its noises."""

    @property
    def seconds(self) -> float:
        """Return about how long the choice takes on the cores of a server."""
        return (1.2 + 0.11 * len(self.folds)) * len(self.solver) / SEARCH_PAIRS

    def choose(self, criteria: Sequence[Criterion]) -> None:
        """Choose the kernels of all folds, and tell the share that is done."""
        self._choose([*itertools.product(range(len(self.folds)), criteria)], tell_share)

    def choice(self, fold: int, criterion: Criterion) -> Chosen:
        """Return the kernel of a fold, which is chosen now if it was not before."""
        if (fold, criterion) not in self._chosen:
            self._choose([(fold, criterion)], lambda _: None)
        return self._chosen[fold, criterion]

    def _choose(
        self, asking: Sequence[tuple[int, Criterion]], tell: Callable[[float], None]
    ) -> None:
        train = self.solver.train
        weights = tried_weights(self.solver, self.views)
        # by the kernel that they ask for, in the order in which kernels were first asked for
        waiting = dict[PairKernel, list[_Choice]]()
        for fold, criterion in asking:
            steps = kernel_steps(train, weights)
            choice = _Choice(fold, criterion, steps, next(steps))
            waiting.setdefault(choice.asked.kernel, []).append(choice)
        most = most_kernels(train, weights)
        done = 0
        is_shared = self.threads > 1 and len(self.solver) >= LEAST_SHARED
        with blas_threads(len(self.solver)), thread_pool(self.threads) as pool:
            while waiting:
                # a kernel is inverted for all choices that ask for it: none is far ahead of others
                kernel, choices = next(iter(waiting.items()))
                waiting[kernel] = []
                self._compute(choices, pool.map if is_shared else map)
                for choice in choices:
                    cost = self._costs[choice.asked][choice.fold, choice.criterion]
                    try:
                        choice.asked = choice.steps.send(cost)
                    except StopIteration as ended:
                        self._chosen[choice.fold, choice.criterion] = ended.value
                        done += most - choice.kernels
                        continue
                    if choice.asked.kernel != kernel:
                        choice.kernels += 1
                        done += 1
                    waiting.setdefault(choice.asked.kernel, []).append(choice)
                if not waiting[kernel]:
                    del waiting[kernel]
                tell(done / (most * len(asking)))
        self._inverted.clear()

    def _compute(self, choices: Sequence[_Choice], map_calls: MapCalls) -> None:
        """Compute the costs that choices ask for, but for those that are known."""
        asked: dict[Chosen, dict[int, bool]] = {}
        for choice in choices:
            if (choice.fold, choice.criterion) not in self._costs[choice.asked]:
                has_error = asked.setdefault(choice.asked, {})
                has_error.setdefault(choice.fold, False)
                has_error[choice.fold] |= choice.criterion == "error"
        if asked:
            self._costs_of(asked, map_calls)

    def _costs_of(
        self, asked: Mapping[Chosen, Mapping[int, bool]], map_calls: MapCalls = map
    ) -> None:
        """Compute the costs of a kernel with some noises in some folds, of some the error, too."""
        self._invert([*asked], map_calls)
        costs_asked = []
        for chosen, has_error in asked.items():
            costs_asked += [(chosen, at, error) for at, error in has_error.items()]

        def costs_of_fold(chosen: Chosen, at: int, has_error: bool) -> dict[Criterion, float]:
            inverted = self._inverted[chosen]
            solved_C = inverted.solved_CF[:, at]
            return _costs_of_fold(self.folds[at], inverted, solved_C, has_error=has_error)

        computed = map_calls(costs_of_fold, *zip(*costs_asked, strict=True))
        for (chosen, at, _), costs in zip(costs_asked, computed, strict=True):
            for criterion, cost in costs.items():
                self._costs[chosen][at, criterion] = cost

    def _invert(self, asked: Sequence[Chosen], map_calls: MapCalls) -> None:
        """Invert the matrix of a kernel with some noises, but for those of its that are known."""
        kernel = asked[0].kernel
        if any(known.kernel != kernel for known in self._inverted):
            self._inverted.clear()
        unknown = [chosen for chosen in asked if chosen not in self._inverted]
        if not unknown:
            return
        matrix_CC = self.solver.matrix(kernel)
        targets_CF = np.stack([fold.target_C for fold in self.folds], axis=1)
        share_C = self.solver.share

        def invert(chosen: Chosen) -> Inverted:
            return Inverted.of(matrix_CC, chosen.noise * share_C, targets_CF)

        self._inverted |= zip(unknown, map_calls(invert, unknown), strict=True)


def _costs_of_fold(
    fold: FoldLabels,
    inverted: Inverted,
    solved_C: Floats,
    *,
    has_error: bool,
) -> dict[Criterion, float]:
    """Return the squared error on a fold's inner folds, and minus twice its evidence.

    Parameters
    ----------
    fold : FoldLabels
        What the fold knows.
    inverted : Inverted
        The kernel.
    solved_C : ndarray, shape=(C,)
        The inverse times the labels of the fold.
    has_error : bool
        Whether the error is asked for; the evidence is a by-product.
    """
    learned = fold.learned
    held_out = fold.held_out
    inverse_CC = inverted.inverse_CC
    both_C2 = np.stack([solved_C, inverted.of_one_C], axis=1)
    # the held-out pairs are taken out of the inverse: what is left is that of the others
    from_held_out_HC = inverse_CC[held_out]
    root = cholesky(from_held_out_HC[:, held_out])
    gone_H2 = solve_triangle(root, both_C2[held_out])
    mean = fold.target_C[learned].mean()
    gone_H = gone_H2[:, 0] - mean * gone_H2[:, 1]
    weight_C = solved_C - mean * inverted.of_one_C
    fit = float((fold.target_C - mean) @ weight_C - gone_H @ gone_H)
    log_determinant = inverted.log_determinant + 2 * float(np.log(root.diagonal()).sum())
    evidence = len(learned) * float(np.log(max(fit, 1e-300))) + log_determinant
    costs: dict[Criterion, float] = {"evidence": evidence}
    if has_error:
        away_HL = solve_triangle(root, from_held_out_HC[:, learned])
        error = 0.0
        for tested, others_mean in zip(fold.inner, fold.others_mean, strict=True):
            rows = learned[tested]
            away_HR = away_HL[:, tested]
            block = inverse_CC[rows][:, rows] - away_HR.T @ away_HR
            weight_R2 = both_C2[rows] - away_HR.T @ gone_H2
            weight_R = weight_R2[:, 0] - others_mean * weight_R2[:, 1]
            square_R = np.square(np.linalg.solve(block, weight_R))
            if fold.weight_C is not None:
                square_R *= fold.weight_C[rows]
            error += float(square_R.sum())
        costs["error"] = error
    return costs


def cholesky(matrix: Floats) -> Floats:
    """Return the lower Cholesky factor of a matrix."""
    import torch

    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrix)))


def shared_search(
    features: TrainingRows, views: Views, folds: Sequence[TrainingRows]
) -> tuple[KernelSearch, list[KernelChoice | None]]:
    """Return the search of all folds, and of each its choice; None if it has too few pairs.

    Parameters
    ----------
    features : TrainingRows
        All pairs that any fold learns from, with the columns that the kernels see.
    views : mapping
        Sides whose columns need no scaling.
    folds : sequence of TrainingRows
        What each fold learns from, with its own labels of censored pairs.
    """
    order = random_order(features)[:SEARCH_PAIRS]
    sample = replace(features, rows=features.rows[order], fold=features.fold[order], shared={})
    labels = [FoldLabels.of(fold, sample.rows) for fold in folds]
    is_whole = len(order) == len(features.rows)
    used = [is_whole or len(fold.learned) >= LEAST_LEARNED for fold in labels]
    solver = solved_kernels(sample, views, np.arange(len(order)))
    search = KernelSearch(solver, views, [*itertools.compress(labels, used)])
    choices: list[KernelChoice | None] = []
    for number, is_used in zip(np.cumsum(used).tolist(), used, strict=True):
        choices.append(partial(search.choice, number - 1) if is_used else None)
    return search, choices


def own_choice(training: TrainingRows, solver: SolvedKernels, views: Views) -> KernelChoice:
    """Return the choice of rows that share no search, by the first of their pairs."""

    def begin() -> KernelSearch:
        sampled = training.rows[random_order(training)[:SEARCH_PAIRS]]
        labels = FoldLabels.of(training, sampled)
        return KernelSearch(solver.first(SEARCH_PAIRS), views, [labels])

    return partial(once(training, "search", begin).choice, 0)


def blas_threads(pairs: int) -> AbstractContextManager[object]:
    """Limit the threads of matrices of this size, for the code inside the block."""
    return limit_blas(1 if pairs <= SEARCH_PAIRS else None)


def factorise(matrix: Floats, noise: float | Floats, target: Floats) -> tuple[Floats, Floats]:
    """Overwrite a kernel matrix, (F, F), by its Cholesky factor with noise; solve for weights."""
    import torch  # unlike scipy, torch lets other threads run meanwhile

    matrix[np.diag_indices_from(matrix)] += noise
    lower = torch.from_numpy(matrix)
    torch.linalg.cholesky(lower, out=lower)
    solved = solve_triangle(matrix, target[:, None])
    return matrix, solve_triangle(matrix, solved, transposed=True)[:, 0]


def solve_triangle(lower: Floats, targets: Floats, *, transposed: bool = False) -> Floats:
    """Solve for right-hand sides, (F, K), with the factor alone."""
    import torch

    factor = torch.from_numpy(lower)
    right = torch.from_numpy(targets)
    if transposed:
        factor = factor.T
    return np.asarray(torch.linalg.solve_triangular(factor, right, upper=transposed))


def fit_gaussian_process(
    training: TrainingRows,
    criterion: Criterion,
    *,
    views: Views | None = None,
    columns: str = VECTORS,
) -> GaussianProcess:
    """Fit a process; `views` has the sides whose columns need no scaling.

    The kernel is chosen by the search of these `columns` that the folds of a run share, if there
    is one, else by training pairs.
    """
    tried = views or {}
    solver = once(
        training, "solver", lambda: solved_kernels(training, tried, random_order(training))
    )
    choice = training.searches.get(columns) or own_choice(training, solver, tried)
    chosen: Chosen = choice(criterion)
    pairs = len(solver)
    with blas_threads(pairs):
        if chosen not in solver.solutions:
            solver.solutions[chosen] = _fit(solver, chosen, exact=training.size <= EXACT_PAIRS)
        weight, root, amplitude = solver.solutions[chosen]
    # not a copy: kernel ridge and Gaussian process share it
    used = solver.train if len(weight) == pairs else solver.train.select(slice(len(weight)))
    sides = []
    for side, weights in zip(used.sides, chosen.kernel.weights, strict=True):
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
    pairs = len(solver)
    first_FC = None
    if exact:
        matrix = solver.matrix(chosen.kernel)
        if pairs > VARIANCE_PAIRS:
            first_FC = matrix[:, :VARIANCE_PAIRS].copy(order="C")  # the matrix is overwritten
        lower, weight = factorise(matrix, chosen.noise * solver.share, solver.target)
        root = np.zeros((0, 0))
        if pairs <= VARIANCE_PAIRS:
            root = solve_triangle(lower, np.eye(pairs)).T
        fitted = Solution(weight, root, float(solver.target @ weight) / pairs)
    else:
        fitted = _solve_inducing(solver, chosen, INDUCING_PAIRS)
    if pairs > VARIANCE_PAIRS:
        # a root of all pairs would cost a predictor F^2 numbers, and each prediction as many steps
        root = _solve_inducing(solver, chosen, VARIANCE_PAIRS, first_FC).root
        return fitted._replace(root=root)
    return fitted


def _solve_inducing(
    solver: SolvedKernels, chosen: Chosen, size: int, kernel_FC: Floats | None = None
) -> Solution:
    """Fit with the first pairs as inducing points (subset of regressors).

    `kernel_FC` is the kernel of all pairs with these, if it is known.
    """
    import torch

    target = solver.target
    blocks: Iterable[tuple[slice, Floats]]
    if kernel_FC is None:
        inducing = solver.train.select(slice(size))
        kernel_CC = inducing.matrix(chosen.kernel)
        blocks = inducing.blocks(chosen.kernel, solver.train)
    else:
        kernel_CC = kernel_FC[:size].copy(order="F")
        starts = range(0, len(kernel_FC), BLOCK)
        blocks = ((slice(at, at + BLOCK), kernel_FC[at : at + BLOCK]) for at in starts)
    lower, _ = factorise(kernel_CC, JITTER, np.zeros(len(kernel_CC)))
    squares_CC = np.zeros_like(lower)
    sums_C = np.zeros(len(lower))
    weight_F = 1 / np.sqrt(solver.share)
    for rows, block_BC in blocks:
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
