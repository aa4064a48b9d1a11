"""The search space of a sweep, and the scoring of a batch of trials in one stacked training.

The problem consists of the pairs outside the test part, assigned to inner folds by group. A trial
trains one head per inner fold on the other folds and scores it on that fold. All networks of a
batch have the same shape and loss, so they train as one stack, each with its own learning rate,
weight decay and dropout. A head in closed form is a batch of its own, and chooses its kernel and
penalty itself. Labels that are classes are learned on their latent scale, and a trial predicts them
by the link that the other inner folds fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from abag.core.arrays import distinct, weights_of
from abag.core.errors import SplitError
from abag.core.messages import reporting
from abag.embed.tables.chains import KINDS, Kind
from abag.head.evaluation.metrics import MeasuredRows, find_metric
from abag.head.labels.labelled_pairs import LabelledPairs, encoded_features
from abag.head.models.config import VALIDATION_PAIRS, FitConfig, is_used
from abag.head.models.network import LOSSES
from abag.head.models.pair_vectors import Fit, PairVectors, SideVectors, TrainingRows
from abag.head.models.probit import HeldOutClasses, latent_labels, latent_pairs
from abag.head.models.registry import MODELS
from abag.head.models.ridge import impute_censored
from abag.head.predictor.parts import inner_folds
from abag.head.regimes.splits import Split, grouped_folds, learned_rows
from abag.head.training.inputs import read_vectors
from abag.head.training.networks import matrix_threads
from abag.head.training.stack import PairStandardizer, StackedHeads, step_seed

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from abag.core.arrays import Floats
    from abag.embed.store.store import Store

Params: TypeAlias = Mapping[str, Any]
ON_VECTORS = ("ridge", "kernel", "gp")
"""Heads in closed form whose results depend on the pooling of both vectors."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "mlp 64": {"head": "mlp", "widths": (64,)},
    "mlp 256": {"head": "mlp", "widths": (256,)},
    "mlp 320-128 (small)": {"head": "mlp", "widths": (320, 128)},
    "mlp 512-256-128": {"head": "mlp", "widths": (512, 256, 128)},
    "mlp 1280-640-256 (medium)": {"head": "mlp", "widths": (1280, 640, 256)},
    **{name: {"head": name} for name in ON_VECTORS},
}
RANGES: Mapping[str, tuple[float, float]] = {
    "dropout": (0.0, 0.5),
    "lr": (1e-4, 1e-2),
    "weight_decay": (1e-3, 1.0),
}
LOGARITHMIC = frozenset({"lr", "weight_decay"})
POOLINGS = ("antibody_pooling", "antigen_pooling")
BATCH_PARAMETERS = ("shape", "loss", *POOLINGS)
"""Parameters that all trials of a batch share."""
RUNGS = 8
LOG_LOSS = "log_loss"
"""Objective of two or more classes unless a metric is asked for."""
FOLD_SUBSET = 6  # stream of the seed, beside those of stack.py and networks.py


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProblem:
    """Everything needed to score trials, without the test part."""

    pairs: LabelledPairs
    fold: NDArray[np.int64]
    """Shape (P,); inner fold of each pair."""
    store: Store
    poolings: Mapping[Kind, tuple[str, ...]]
    group: NDArray[np.int64]
    """Shape (P,); group of each pair, which the inner folds keep together."""
    config: FitConfig
    device: torch.device
    objective: str
    """Key of the metric, or `LOG_LOSS`."""
    views: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)
    """Columns of each view of the sides that have several."""

    read: dict[tuple[Kind, str], NDArray[np.float32]] = field(default_factory=dict)

    def vectors(self, kind: Kind, pooling: str) -> NDArray[np.float32]:
        """Read the vectors of a kind and pooling, one row per unique sequence of the table."""
        if (kind, pooling) not in self.read:
            views = self.config.views_of(kind)
            if getattr(self.config, f"{kind}_vectors") is None:  # else nothing is left to choose
                views = [{**views[0], "pooling": pooling}]
            stored = read_vectors(self.store, self.pairs.table, kind, views)
            self.read[kind, pooling] = stored.x_ND
        return self.read[kind, pooling]

    @property
    def folds(self) -> int:
        """Number of folds that each trial is scored on."""
        return int(self.fold.max()) + 1

    def choices(self) -> dict[str, tuple[str, ...]]:
        """Return the values to choose from, by the name of a categorical parameter."""
        return {
            "shape": tuple(SHAPES),
            "loss": tuple(LOSSES),
            "antibody_pooling": self.poolings["antibody"],
            "antigen_pooling": self.poolings["antigen"],
        }


def without_test_part(
    pairs: LabelledPairs, split: Split
) -> tuple[LabelledPairs, NDArray[np.int64]]:
    """Return the other pairs than the test part, whose labels are then lost, and their groups."""
    rows = learned_rows(split)
    columns = ("antibody", "antigen", "pkd", "censored", "row", "measurements")
    other_pairs = replace(
        pairs,
        **{name: getattr(pairs, name)[rows] for name in columns},
        cells=None if pairs.cells is None else pairs.cells.take(rows),
        share=None if pairs.share is None else pairs.share[rows],
    )
    return other_pairs, split.group[rows]


def is_lower_better(objective: str) -> bool:
    """Tell whether lower values of an objective are better."""
    return objective == LOG_LOSS or find_metric(objective).lower_is_better


def assign_folds(
    group: NDArray[np.int64], folds: int, seed: int, level: Floats | None = None
) -> NDArray[np.int64]:
    """Assign whole groups to inner folds; `group` and the result have shape (P,).

    With the class of each pair, `level` (P,), each fold has about equally many of each class.
    """
    groups = len(distinct(group))
    if groups < folds:
        msg = (
            f"--inner-folds {folds}: only {groups} groups are outside the test part; expected at "
            "least one per fold. Use fewer --inner-folds or another --split."
        )
        raise SplitError(msg)
    return grouped_folds(group, folds, seed, level)


def is_closed_form(params: Params) -> bool:
    """Tell whether a trial fits a head in closed form, for which only the poolings count."""
    return MODELS[SHAPES[params["shape"]]["head"]].fit is not None


def used_parameters(params: Params) -> dict[str, Any]:
    """Leave out the parameters of a trial that its head does not use."""
    if not params:  # of a trial that ended before any was drawn
        return {}
    head = SHAPES[params["shape"]]["head"]
    return {name: value for name, value in params.items() if is_used(name, head)}


def fit_options(params: Params) -> dict[str, Any]:
    """Convert the parameters of a trial to options of ``fit``."""
    used = used_parameters(params)
    shape = SHAPES[used.pop("shape")]
    return {**used, **shape}


def score_batch(problem: SearchProblem, batch: Sequence[Params]) -> list[float | None]:
    """Score trials with the same `BATCH_PARAMETERS`, which train in one stack.

    A score is the best mean over the inner folds of all rungs; None if it is not defined.
    """
    if is_closed_form(batch[0]):
        return [_score_closed_form(problem, params) for params in batch]
    stack = _make_stack(problem, batch)
    sign = 1 if is_lower_better(problem.objective) else -1
    best: list[float | None] = [None] * len(batch)
    rungs = {round(stack.epochs * rung / RUNGS) for rung in range(1, RUNGS + 1)}
    for epoch in range(stack.epochs):
        stack.begin_epoch(epoch)
        for at in range(stack.steps):
            stack.training_step.run(step_seed(problem.config.seed, epoch * stack.steps + at))
        if epoch + 1 in rungs:
            for trial, value in enumerate(_score(problem, stack)):
                before = best[trial]
                if value is not None and (before is None or sign * value < sign * before):
                    best[trial] = value
    return best


def _score_closed_form(problem: SearchProblem, params: Params) -> float | None:
    pairs = problem.pairs
    scored, labels = _scored(problem)
    fit = cast("Fit", MODELS[fit_options(params)["head"]].fit)
    vectors = _vectors(problem, params)
    predicted = []
    for fold in range(problem.folds):
        rows = np.flatnonzero(problem.fold != fold)
        inner = inner_folds(problem.group[rows])
        training = impute_censored(latent_labels(TrainingRows(pairs, vectors, rows, inner)))
        with matrix_threads(len(rows)):
            fitted = fit(training)
        predicted.append(fitted.predict(vectors)[scored[fold]])
    return _mean_score(problem, scored, labels, predicted)


def _vectors(problem: SearchProblem, params: Params) -> PairVectors:
    pairs = problem.pairs
    sides = {}
    for kind in KINDS:
        x_ND = problem.vectors(kind, params[f"{kind}_pooling"])
        sides[kind] = SideVectors(x_ND, pairs.index(kind), views=problem.views.get(kind, ()))
    return PairVectors(sides, encoded_features(pairs))


def _make_stack(problem: SearchProblem, batch: Sequence[Params]) -> StackedHeads:
    """Stack the heads of a batch ordered by fold, because those of a fold read the same pairs."""
    configs = [replace(problem.config, **fit_options(params)) for params in batch]
    training = []
    members = []
    for fold in range(problem.folds):
        training.append(np.flatnonzero(problem.fold != fold))
        members += [replace(config, seed=config.seed + fold) for config in configs]
    n_training = max(map(len, training))
    vectors = _vectors(problem, batch[0])
    every = np.arange(len(problem.pairs))
    learned = latent_pairs(problem.pairs, every)
    scaling = PairStandardizer.of(learned, every, vectors)
    with reporting(silent=True):  # else every batch reports where its vectors are
        return StackedHeads(
            [learned],
            vectors,
            [scaling],
            training,
            members,
            epoch_pairs=[n_training] * len(training),
            device=problem.device,
        )


def _score(problem: SearchProblem, stack: StackedHeads) -> list[float | None]:
    scored, labels = _scored(problem)
    by_trial = zip(*stack.predict_parts(scored), strict=True)
    return [_mean_score(problem, scored, labels, of_folds) for of_folds in by_trial]


def _mean_score(
    problem: SearchProblem,
    scored: Sequence[NDArray[np.int64]],
    labels: Sequence[MeasuredRows],
    predicted: Sequence[NDArray[np.float64]],
) -> float | None:
    pairs = problem.pairs
    if pairs.quantity.classes:
        latent = np.concatenate(predicted)
        if not np.isfinite(latent).all():
            return None
        rows = np.concatenate(scored)
        held_out = HeldOutClasses.of(pairs, rows, latent[:, None], problem.group[rows])
        fold = problem.fold[rows]
        if problem.objective == LOG_LOSS:
            weight = weights_of(pairs.share, rows)
            return float(np.average(held_out.log_losses(fold), weights=weight))
        expected = held_out.expected(fold)
        predicted = np.split(expected, np.cumsum([len(part) for part in predicted])[:-1])
    scores = []
    for labels_of_fold, predicted_of_fold in zip(labels, predicted, strict=True):
        score = labels_of_fold.score_one(problem.objective, predicted_of_fold)
        if score is not None:
            scores.append(score)
    return float(np.mean(scores)) if scores else None


def _scored(problem: SearchProblem) -> tuple[list[NDArray[np.int64]], list[MeasuredRows]]:
    """Return at most `VALIDATION_PAIRS` pairs on which each fold is scored, and their labels."""
    pairs = problem.pairs
    sign = pairs.quantity.sign
    rows = []
    labels = []
    for fold in range(problem.folds):
        rng = np.random.default_rng([problem.config.seed, FOLD_SUBSET, fold])
        drawn = rng.permutation(np.flatnonzero(problem.fold == fold))[:VALIDATION_PAIRS]
        scored = np.sort(drawn)
        rows.append(scored)
        columns = (pairs.pkd[scored], pairs.antigen[scored], pairs.censored[scored])
        weight = weights_of(pairs.share, scored)
        labels.append(MeasuredRows.of(*columns, sign, weight))
    return rows, labels
