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
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from abag.core.arrays import Bools, Floats, Ints, weights_of
from abag.core.cores import thread_pool
from abag.core.messages import tell_share
from abag.head.models.kernels import (
    CRITERIA,
    SEARCH_PAIRS,
    VECTORS,
    Chosen,
    ColumnViews,
    Criterion,
    KernelSteps,
    PairKernel,
    SolvedKernels,
    blas_threads,
    kernel_steps,
    most_kernels,
    solve_triangle,
    solved_kernels,
    sum_squares,
    tried_weights,
)
from abag.head.models.residue_kernel import SUBSTITUTIONS, residue_training

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind
    from abag.head.models.kernels import PairSet
    from abag.head.models.pair_vectors import TrainingRows

Views: TypeAlias = "Mapping[Kind, ColumnViews]"
LEAST_LEARNED = 200
"""Training pairs of a fold in a sample from which it chooses a kernel by them; in a table of no
more than `SEARCH_PAIRS` pairs all of them are in the sample."""
LEAST_SHARED = 200
"""Pairs of a sample from which threads share the folds of a kernel: smaller ones take less time
than a thread to start."""


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


@dataclass(frozen=True, slots=True)
class SortedFold:
    """Hold the pairs of a fold in an order in which those left out together are neighbours."""

    held_out: Ints
    learned: Ints
    """Sorted by inner fold, (L,)."""
    inner: Sequence[slice]
    """The inner folds among the learned pairs."""
    others_mean: Floats
    """Mean label of the other inner folds, for each."""

    @classmethod
    def of(cls, fold: FoldLabels) -> SortedFold:
        """Sort the pairs of a fold."""
        learned = np.flatnonzero(fold.learned_C)
        learned = learned[np.argsort(fold.inner_C[learned], kind="stable")]
        _, first, counts = np.unique(fold.inner_C[learned], return_index=True, return_counts=True)
        inner = [slice(start, start + count) for start, count in zip(first, counts, strict=True)]
        labels = fold.target_C[learned]
        others_mean = []
        for rows in inner:
            others = np.delete(labels, rows)
            others_mean.append(others.mean() if len(others) else 0.0)
        return cls(np.flatnonzero(~fold.learned_C), learned, inner, np.array(others_mean))


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


@dataclass
class Choice:
    """Hold the choice of a kernel by one fold and criterion while it is made."""

    fold: int
    criterion: Criterion
    steps: KernelSteps
    asked: Chosen
    """Whose cost it waits for."""
    kernels: int = 0
    """How many it has asked for before."""


@dataclass
class SharedSearch:
    """Hold errors of kernels in all folds, each computed when its fold asks for it."""

    solver: SolvedKernels
    views: Views
    folds: Sequence[FoldLabels]
    threads: int = 1
    """Threads that share the folds of a kernel."""
    _costs: dict[Chosen, dict[tuple[int, Criterion], float]] = field(default_factory=dict)
    _inverted: dict[Chosen, Inverted] = field(default_factory=dict)
    """Of the last kernel that was asked for, with its noises."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _sorted(self) -> list[SortedFold]:
        return [SortedFold.of(fold) for fold in self.folds]

    @property
    def seconds(self) -> float:
        """Return about how long the choice takes on the cores of a server."""
        return (1.2 + 0.11 * len(self.folds)) * len(self.solver) / SEARCH_PAIRS

    def cost(self, fold: int, chosen: Chosen, criterion: Criterion) -> float:
        """Return the squared error on a fold's inner folds, or minus twice its evidence."""
        with self._lock:
            costs = self._costs.setdefault(chosen, {})
            if (fold, criterion) not in costs:
                self._costs_of(chosen, {fold: [criterion]})
            return costs[fold, criterion]

    def choose(self, criteria: Sequence[Criterion]) -> None:
        """Choose the kernels of all folds; afterwards their costs are known."""
        train = self.solver.train
        weights = tried_weights(self.solver, self.views)
        # by the kernel that they ask for, in the order in which kernels were first asked for
        waiting = dict[PairKernel, list[Choice]]()
        for fold, criterion in itertools.product(range(len(self.folds)), criteria):
            steps = kernel_steps(train, weights)
            choice = Choice(fold, criterion, steps, next(steps))
            waiting.setdefault(choice.asked.kernel, []).append(choice)
        most = most_kernels(train, weights)
        total = most * len(self.folds) * len(criteria)
        done = 0
        with blas_threads(len(self.solver)):
            while waiting:
                # a kernel is inverted for all choices that ask for it: none is far ahead of others
                kernel, choices = next(iter(waiting.items()))
                waiting[kernel] = []
                self._compute(choices)
                for choice in choices:
                    cost = self._costs[choice.asked][choice.fold, choice.criterion]
                    try:
                        choice.asked = choice.steps.send(cost)
                    except StopIteration:
                        done += most - choice.kernels
                        continue
                    if choice.asked.kernel != kernel:
                        choice.kernels += 1
                        done += 1
                    waiting.setdefault(choice.asked.kernel, []).append(choice)
                if not waiting[kernel]:
                    del waiting[kernel]
                tell_share(done / total)
        self._inverted.clear()

    def _compute(self, choices: Sequence[Choice]) -> None:
        """Compute the costs that choices ask for, but for those that are known."""
        asked: dict[Chosen, dict[int, list[Criterion]]] = {}
        for choice in choices:
            if (choice.fold, choice.criterion) not in self._costs.setdefault(choice.asked, {}):
                by_fold = asked.setdefault(choice.asked, {})
                by_fold.setdefault(choice.fold, []).append(choice.criterion)
        for chosen, criteria_of in asked.items():
            self._costs_of(chosen, criteria_of)

    def _costs_of(self, chosen: Chosen, criteria_of: Mapping[int, Sequence[Criterion]]) -> None:
        """Compute costs of a kernel by the criteria that folds ask for."""
        inverted = self._invert(chosen)

        def of_fold(at: int) -> None:
            costs = _costs_of_fold(
                self.folds[at],
                self._sorted[at],
                inverted,
                inverted.solved_CF[:, at],
                criteria_of[at],
            )
            for criterion, cost in costs.items():
                self._costs[chosen][at, criterion] = cost

        if self.threads == 1 or len(self.solver) < LEAST_SHARED:
            for at in criteria_of:
                of_fold(at)
            return
        with thread_pool(self.threads) as pool:
            for _ in pool.map(of_fold, criteria_of):  # raises what a thread raised
                pass

    def _invert(self, chosen: Chosen) -> Inverted:
        """Invert a kernel matrix with its noise, or take it from the last noises of this kernel."""
        import torch

        if any(known.kernel != chosen.kernel for known in self._inverted):
            self._inverted.clear()
        if chosen not in self._inverted:
            matrix = self.solver.matrix(chosen.kernel)
            matrix[np.diag_indices_from(matrix)] += chosen.noise * self.solver.share
            lower = torch.from_numpy(matrix)
            torch.linalg.cholesky(lower, out=lower)
            log_determinant = 2 * float(lower.diagonal().log().sum())
            inverse_CC = torch.cholesky_inverse(lower).numpy()
            targets_CF = np.stack([fold.target_C for fold in self.folds], axis=1)
            self._inverted[chosen] = Inverted(
                inverse_CC, log_determinant, inverse_CC @ targets_CF, inverse_CC.sum(axis=1)
            )
        return self._inverted[chosen]


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
    pairs: SortedFold,
    inverted: Inverted,
    solved_C: Floats,
    criteria: Sequence[Criterion],
) -> dict[Criterion, float]:
    """Return the costs of a kernel in a fold by these criteria.

    Parameters
    ----------
    fold, pairs : FoldLabels and SortedFold
        What the fold knows, and the order of its pairs.
    inverted : Inverted
        The kernel.
    solved_C : ndarray, shape=(C,)
        The inverse times the labels of the fold.
    criteria : sequence of {"error", "evidence"}
        Those that are asked for.
    """
    costs: dict[Criterion, float] = {}
    learned = pairs.learned
    held_out = pairs.held_out
    inverse_CC = inverted.inverse_CC
    both_C2 = np.stack([solved_C, inverted.of_one_C], axis=1)
    # the held-out pairs are taken out of the inverse: what is left is that of the others
    from_held_out_HC = inverse_CC[held_out]
    root = cholesky(from_held_out_HC[:, held_out])
    gone_H2 = solve_triangle(root, both_C2[held_out])
    if "evidence" in criteria:
        mean = fold.target_C[learned].mean()
        gone_H = gone_H2[:, 0] - mean * gone_H2[:, 1]
        weight_C = solved_C - mean * inverted.of_one_C
        fit = float((fold.target_C - mean) @ weight_C - gone_H @ gone_H)
        log_determinant = inverted.log_determinant + 2 * float(np.log(root.diagonal()).sum())
        costs["evidence"] = len(learned) * float(np.log(max(fit, 1e-300))) + log_determinant
    if "error" in criteria:
        away_HL = solve_triangle(root, from_held_out_HC[:, learned])
        error = 0.0
        for tested, others_mean in zip(pairs.inner, pairs.others_mean, strict=True):
            rows = learned[tested]
            away_HR = away_HL[:, tested]
            block = inverse_CC[rows][:, rows] - away_HR.T @ away_HR
            weight_R2 = both_C2[rows] - away_HR.T @ gone_H2
            weight_R = weight_R2[:, 0] - others_mean * weight_R2[:, 1]
            counts_R = None if fold.weight_C is None else fold.weight_C[rows]
            error += sum_squares(np.linalg.solve(block, weight_R), counts_R)
        costs["error"] = error
    return costs


def cholesky(matrix: Floats) -> Floats:
    """Return the lower Cholesky factor of a matrix."""
    import torch

    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrix)))


def with_searches(
    every: TrainingRows, folds: Sequence[TrainingRows], models: Sequence[str], cores: int = 1
) -> tuple[list[TrainingRows], list[tuple[SharedSearch, list[Criterion]]]]:
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
    shared : list of tuple
        The search of each kind of columns, and the criteria by which it is to choose the kernels
        of all folds.
    """
    searches = dict[str, list[FoldSearch | None]]()
    all_shared = list[tuple[SharedSearch, list[Criterion]]]()

    def add(columns: str, features: TrainingRows, views: Views, criteria: list[Criterion]) -> None:
        fold_searches = shared_search(features, views, folds)
        searches[columns] = fold_searches
        any_fold = next(filter(None, fold_searches), None)
        if any_fold is not None:
            all_shared.append((any_fold.shared, criteria))

    criteria = [criterion for name, criterion in CRITERIA.items() if name in models]
    if criteria:
        add(VECTORS, every, {}, criteria)
    for name in SUBSTITUTIONS:
        if name in models:
            _, features, views = residue_training(every, name)
            add(name, features, views, ["error"])
    for shared, _ in all_shared:
        shared.threads = max(1, cores // len(all_shared))
    searching = []
    for number, fold in enumerate(folds):
        fold_searches = {columns: by_fold[number] for columns, by_fold in searches.items()}
        searching.append(replace(fold, searches=fold_searches))
    return searching, all_shared


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
    weight_C = weights_of(share, sampled)
    return FoldLabels(learned_P[sampled], inner_P[sampled], target_C, weight_C)
