"""The choice of kernels for all folds of a run, from one factorisation per kernel and noise.

A process of all pairs tells what each fold would predict: with P the inverse of the kernel matrix
and its noise, and y the labels, errors of pairs X that are predicted from all others are
(P_XX)^-1 (P y)_X. So a kernel costs one inverse for all folds, and not one per fold. The choice of
a fold sees its own training pairs only: what it holds out is left out together with each inner
fold. See Rasmussen and Williams, Gaussian Processes for Machine Learning, 5.4.2, of which this is
the case of several pairs. C pairs of a sample, F folds.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag import __version__
from abag.core.arrays import Bools, Floats, Ints, hash_arrays
from abag.core.messages import bar
from abag.head.labels.labelled_pairs import label_weights
from abag.head.models.kernels import (
    CRITERIA,
    SEARCH_PAIRS,
    Chosen,
    ColumnViews,
    Criterion,
    PairKernel,
    SolvedKernels,
    blas_threads,
    choose_kernel,
    solve,
    solve_triangle,
    solved_kernels,
    sum_squares,
    tried_weights,
)
from abag.head.models.process import VECTORS
from abag.head.models.residue_kernel import SUBSTITUTIONS, residue_training

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind
    from abag.head.models.kernels import PairSet
    from abag.head.models.pair_vectors import TrainingRows

Views: TypeAlias = "Mapping[Kind, ColumnViews]"
LEAST_LEARNED = 200
"""Training pairs of a fold in a sample from which it chooses a kernel by them; in a table of no
more than `SEARCH_PAIRS` pairs all of them are in the sample."""


@dataclass(frozen=True, slots=True)
class FoldLabels:
    """Hold what one fold knows of the sampled pairs."""

    learned_C: Bools
    """Which it learns from."""
    inner_C: Ints
    """Their inner folds; of others anything."""
    target_C: Floats
    """Their labels; of others anything."""
    weight_C: Floats | None = None
    """How much each label counts in an error; None: all as much."""


@dataclass
class SharedSearch:
    """Hold errors of kernels in all folds, each computed when the first fold asks for it."""

    solver: SolvedKernels
    views: Views
    folds: Sequence[FoldLabels]
    threads: int = 1
    """Threads that share the folds of a kernel."""
    _costs: dict[Chosen, list[dict[Criterion, float]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cost(self, fold: int, chosen: Chosen, criterion: Criterion) -> float:
        """Return the squared error on a fold's inner folds, or minus twice its evidence."""
        # the first fold that asks computes the costs of all; the others wait for them
        with self._lock:
            if chosen not in self._costs:
                self._costs[chosen] = self._costs_of(chosen)
            return self._costs[chosen][fold][criterion]

    def digest(self) -> str:
        """Hash all that the costs depend on."""
        arrays: list[NDArray[Any]] = [self.solver.share]
        for of_pairs in (self.solver.weight, self.solver.train.features):
            arrays.append(np.zeros(0) if of_pairs is None else of_pairs)
        for side, index in self.solver.train.sides:
            arrays += [side.train_AD, np.array(side.units), np.array(side.widths), index]
        for fold in self.folds:
            inner_C = np.where(fold.learned_C, fold.inner_C, -1)
            arrays += [fold.learned_C, inner_C, np.where(fold.learned_C, fold.target_C, 0)]
        hashed = blake2b(__version__.encode(), digest_size=16)
        hash_arrays(hashed, arrays)
        return hashed.hexdigest()

    def costs(self) -> dict[str, Floats]:
        """Return what has been computed: a row per kernel and noise, with its costs by fold."""
        kernels = []
        for chosen in self._costs:
            kernel = chosen.kernel
            view_weights = itertools.chain(*kernel.weights)
            row = (kernel.scale, kernel.product, kernel.features, chosen.noise, *view_weights)
            kernels.append(row)
        costs = {"kernels": np.array(kernels)}
        for criterion in CRITERIA.values():
            by_kernel = []
            for fold_costs in self._costs.values():
                by_kernel.append([fold[criterion] for fold in fold_costs])
            costs[criterion] = np.array(by_kernel)
        return costs

    def use_costs(self, costs: Mapping[str, Floats]) -> None:
        """Use what `costs` of a search with the same digest returned."""
        first = len(self.solver.train.antibodies.widths)
        for row, values in enumerate(costs["kernels"].tolist()):
            scale, product, features, noise, *weights = values
            view_weights = (tuple(weights[:first]), tuple(weights[first:]))
            chosen = Chosen(PairKernel(scale, product, view_weights, features), noise)
            fold_costs: list[dict[Criterion, float]] = [{} for _ in self.folds]
            for criterion in CRITERIA.values():
                for fold, cost in enumerate(costs[criterion][row].tolist()):
                    fold_costs[fold][criterion] = cost
            self._costs[chosen] = fold_costs

    def choose(self, criteria: Sequence[Criterion]) -> None:
        """Choose the kernels of all folds; afterwards their costs are known."""
        weights = tried_weights(self.solver, self.views)
        total = len(self.folds) * len(criteria)
        with blas_threads(len(self.solver)), bar(total=total, desc="fit: kernels") as drawn:
            for fold in range(len(self.folds)):
                for criterion in criteria:
                    choose_kernel(FoldSearch(self, fold), criterion, weights)
                    drawn.update()

    def _costs_of(self, chosen: Chosen) -> list[dict[Criterion, float]]:
        inverse_CC, log_determinant = self._invert(chosen)
        targets_CF = np.stack([fold.target_C for fold in self.folds], axis=1)
        solved_CF = inverse_CC @ targets_CF
        of_one_C = inverse_CC.sum(axis=1)

        def of_fold(at: int) -> dict[Criterion, float]:
            solved_C = solved_CF[:, at]
            return _costs_of_fold(self.folds[at], inverse_CC, log_determinant, solved_C, of_one_C)

        if self.threads == 1:
            return [of_fold(at) for at in range(len(self.folds))]
        with ThreadPoolExecutor(self.threads) as pool:
            return [*pool.map(of_fold, range(len(self.folds)))]

    def _invert(self, chosen: Chosen) -> tuple[Floats, float]:
        """Return the inverse of the kernel matrix with noise, and the log of the determinant."""
        import torch

        matrix = self.solver.matrix(chosen.kernel)
        matrix[np.diag_indices_from(matrix)] += chosen.noise * self.solver.share
        lower = torch.from_numpy(matrix)
        torch.linalg.cholesky(lower, out=lower)
        log_determinant = 2 * float(lower.diagonal().log().sum())
        return torch.cholesky_inverse(lower).numpy(), log_determinant


@dataclass(frozen=True, slots=True)
class FoldSearch:
    """Give `choose_kernel` one fold of a shared search."""

    shared: SharedSearch
    fold: int

    @property
    def train(self) -> PairSet:
        """Return the sampled pairs."""
        return self.shared.solver.train

    def cost(self, chosen: Chosen, criterion: Criterion) -> float:
        """Return the cost of a kernel in this fold; see `SharedSearch.cost`."""
        return self.shared.cost(self.fold, chosen, criterion)


def _costs_of_fold(
    fold: FoldLabels,
    inverse_CC: Floats,
    log_determinant: float,
    solved_C: Floats,
    of_one_C: Floats,
) -> dict[Criterion, float]:
    """Return both costs of a kernel in a fold.

    Parameters
    ----------
    fold : FoldLabels
        What the fold knows.
    inverse_CC : ndarray, shape=(C, C)
        Inverse of the kernel matrix of all sampled pairs, with their noise.
    log_determinant : float
        Of that matrix.
    solved_C, of_one_C : ndarray, shape=(C,)
        The inverse times the fold's labels, and times ones.
    """
    learned = np.flatnonzero(fold.learned_C)
    held_out = np.flatnonzero(~fold.learned_C)
    labels = fold.target_C[learned]
    # the held-out pairs are taken out of the inverse: what is left is that of the others
    root = cholesky(inverse_CC[np.ix_(held_out, held_out)])
    away = np.empty((0, len(learned)))
    if len(held_out):
        away = solve_triangle(root, inverse_CC[np.ix_(held_out, learned)])
    both_C2 = np.stack([solved_C, of_one_C], axis=1)
    gone_H2 = solve_triangle(root, both_C2[held_out]) if len(held_out) else both_C2[:0]
    mean = labels.mean()
    weight_C = solved_C - mean * of_one_C
    gone_H = gone_H2[:, 0] - mean * gone_H2[:, 1]
    fit = float((fold.target_C - mean) @ weight_C - gone_H @ gone_H)
    log_determinant += 2 * float(np.log(root.diagonal()).sum())
    error = 0.0
    inner = fold.inner_C[learned]
    for k in np.unique(inner):
        tested = inner == k
        others_mean = labels[~tested].mean() if not tested.all() else 0.0
        rows = learned[tested]
        away_HR = away[:, tested]
        block = inverse_CC[np.ix_(rows, rows)] - away_HR.T @ away_HR
        weight_R2 = both_C2[rows] - away_HR.T @ gone_H2
        weight_R = weight_R2[:, 0] - others_mean * weight_R2[:, 1]
        error_R = solve(cholesky(block), weight_R[:, None])[:, 0]
        counts_R = None if fold.weight_C is None else fold.weight_C[rows]
        error += sum_squares(error_R, counts_R)
    evidence = len(labels) * float(np.log(max(fit, 1e-300))) + log_determinant
    return {"evidence": evidence, "error": error}


def cholesky(matrix: Floats) -> Floats:
    """Return the lower Cholesky factor of a matrix."""
    import torch

    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrix)))


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Choose the kernels of all folds by one kind of columns."""

    columns: str
    shared: SharedSearch
    criteria: Sequence[Criterion]

    def run(self) -> None:
        """Choose the kernels of all folds."""
        self.shared.choose(self.criteria)


def with_searches(
    every: TrainingRows, folds: Sequence[TrainingRows], models: Sequence[str], cores: int = 1
) -> tuple[list[TrainingRows], list[SearchTask]]:
    """Let folds share the searches that these models need.

    Parameters
    ----------
    every : TrainingRows
        All pairs that any fold learns from.
    folds : sequence of TrainingRows
        What each fold learns from.
    models : sequence of str
        Names of the models that are fitted.
    cores : int
        Those that all tasks together may use.

    Returns
    -------
    folds : list of TrainingRows
        With the searches, which choose kernels when they are asked, or before.
    tasks : list of SearchTask
        Each chooses the kernels of all folds in one search.
    """
    searches = dict[str, list[FoldSearch | None]]()
    tasks = list[SearchTask]()

    def add(columns: str, features: TrainingRows, views: Views, criteria: list[Criterion]) -> None:
        fold_searches = shared_search(features, views, folds)
        searches[columns] = fold_searches
        any_fold = next(filter(None, fold_searches), None)
        if any_fold is not None:
            tasks.append(SearchTask(columns, any_fold.shared, criteria))

    criteria = [criterion for name, criterion in CRITERIA.items() if name in models]
    if criteria:
        add(VECTORS, every, {}, criteria)
    for name in SUBSTITUTIONS:
        if name in models:
            _, features, views = residue_training(every, name)
            add(name, features, views, ["error"])
    for task in tasks:
        task.shared.threads = max(1, cores // len(tasks))
    searching = []
    for number, fold in enumerate(folds):
        fold_searches = {columns: by_fold[number] for columns, by_fold in searches.items()}
        searching.append(replace(fold, searches=fold_searches))
    return searching, tasks


def shared_search(
    features: TrainingRows, views: Views, folds: Sequence[TrainingRows]
) -> list[FoldSearch | None]:
    """Return the search of each fold; None for one that has too few pairs in the sample.

    Parameters
    ----------
    features : TrainingRows
        All pairs that any fold learns from, with the columns that the kernels see.
    views : mapping
        Sides whose columns need no scaling.
    folds : sequence of TrainingRows
        What each fold learns from, with its own labels of censored pairs.
    """
    order = np.random.default_rng(0).permutation(len(features.rows))[:SEARCH_PAIRS]
    sample = replace(features, rows=features.rows[order], fold=features.fold[order], shared={})
    solver = solved_kernels(sample, views, np.arange(len(order)))
    labels = [_labels_of(fold, sample.rows) for fold in folds]
    is_whole = len(order) == len(features.rows)
    used = [is_whole or fold.learned_C.sum() >= LEAST_LEARNED for fold in labels]
    shared = SharedSearch(solver, views, [*itertools.compress(labels, used)])
    numbers = np.cumsum(used) - 1
    searches: list[FoldSearch | None] = []
    for number, is_used in zip(numbers, used, strict=True):
        searches.append(FoldSearch(shared, int(number)) if is_used else None)
    return searches


def _labels_of(fold: TrainingRows, sampled: Ints) -> FoldLabels:
    learned_P = np.zeros(len(fold.pairs.pkd), np.bool_)
    learned_P[fold.rows] = True
    inner_P = np.full(len(learned_P), -1)
    inner_P[fold.rows] = fold.fold
    target_C = fold.pairs.pkd[sampled] - fold.mean
    share = fold.pairs.share
    weight_C = None if share is None else label_weights(share[sampled])
    return FoldLabels(learned_P[sampled], inner_P[sampled], target_C, weight_C)
