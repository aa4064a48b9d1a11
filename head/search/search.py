"""What a sweep tries, and how a batch of trials is scored in one stacked training.

The test part is not here: a problem is made of the pairs outside it, dealt to inner folds by
group. A trial is one head a fold, trained on the others and scored on it; all heads of all trials
of a batch have one shape and one loss and so train as one stack, each with its own learning rate,
weight decay and dropout. Nothing here knows who proposes the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from abag import AbagError
from abag.core.messages import reporting
from abag.head.data.labels import LabelledPairs
from abag.head.data.splits import TRAIN, VALIDATION, Split, grouped_folds
from abag.head.evaluation import metrics
from abag.head.model.config import FitConfig
from abag.head.training.stack import Member, Scaling, StackedHeads
from abag.head.training.step import step_seed

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind

Params: TypeAlias = Mapping[str, Any]

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "mlp 64": {"head": "mlp", "widths": (64,)},
    "mlp 256": {"head": "mlp", "widths": (256,)},
    "mlp 320-128 (small)": {"head": "mlp", "widths": (320, 128)},
    "mlp 512-256-128": {"head": "mlp", "widths": (512, 256, 128)},
    "mlp 1280-640-256 (medium)": {"head": "mlp", "widths": (1280, 640, 256)},
    "lowrank 16": {"head": "lowrank", "rank": 16},
    "lowrank 64": {"head": "lowrank", "rank": 64},
}
"""Heads that are tried. ``large`` is left out: it takes as long as all the others together."""
LOSSES = ("mse", "huber", "rank")
RANGES: Mapping[str, tuple[float, float]] = {
    "dropout": (0.0, 0.5), "lr": (1e-4, 1e-2), "weight_decay": (1e-3, 1.0),
}  # fmt: skip
LOGARITHMIC = frozenset({"lr", "weight_decay"})
SHARED = ("shape", "loss", "antibody_pooling", "antigen_pooling")
"""What the trials of a batch have in common."""
RUNGS = 8
"""Scorings of a trial, evenly over its epochs: the last chance to stop a bad one is the seventh."""
FOLD_SUBSET = 6  # stream of the seed, beside those of step.py, loop.py and ensemble.py


class TooFewGroups(AbagError):
    """There are fewer groups outside the test part than inner folds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything that scoring a trial needs, without the test part."""

    pairs: LabelledPairs
    fold: NDArray[np.int64]
    """(P,) inner fold of each pair."""
    vectors: Callable[[Kind, str], NDArray[np.float32]]
    """Reads the vectors of a pooling, one row a unique sequence."""
    poolings: Mapping[Kind, tuple[str, ...]]
    config: FitConfig
    """What is not searched: batch, epochs, selecting metric, seed ..."""
    device: torch.device

    @property
    def folds(self) -> int:
        """Number of inner folds."""
        return int(self.fold.max()) + 1

    def choices(self) -> dict[str, tuple[str, ...]]:
        """Return what each categorical parameter may be."""
        return {
            "shape": tuple(SHAPES),
            "loss": LOSSES,
            "antibody_pooling": self.poolings["antibody"],
            "antigen_pooling": self.poolings["antigen"],
        }


def unlocked(pairs: LabelledPairs, split: Split) -> tuple[LabelledPairs, NDArray[np.int64]]:
    """Return the training and validation pairs alone, and their groups.

    The labels of the test part are not in what comes out: no later mistake can look at them.
    """
    rows = np.flatnonzero((split.part == TRAIN) | (split.part == VALIDATION))
    columns = ("antibody", "antigen", "pkd", "censored", "row")
    own = replace(pairs, **{name: getattr(pairs, name)[rows] for name in columns})
    return own, split.group[rows]


def inner_folds(group: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Deal whole groups to the inner folds.

    Raises
    ------
    TooFewGroups
    """
    found = len(np.unique(group))
    if found < folds:
        msg = (
            f"--inner-folds {folds}: only {found} groups lie outside the test part; expected at "
            "least one a fold. Give fewer --inner-folds or another --split."
        )
        raise TooFewGroups(msg)
    return grouped_folds(group, folds, seed)


def draw(problem: Problem, rng: np.random.Generator, count: int) -> list[Params]:
    """Draw a batch of trials at random, all of one shape: the plainest proposer."""
    shared = {name: str(rng.choice(values)) for name, values in problem.choices().items()}
    batch: list[Params] = []
    for _ in range(count):
        own: dict[str, Any] = {}
        for name, (low, high) in RANGES.items():
            if name in LOGARITHMIC:
                own[name] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            else:
                own[name] = float(rng.uniform(low, high))
        batch.append(shared | own)
    return batch


def fit_options(params: Params) -> dict[str, Any]:
    """Spell a trial as options of ``fit``."""
    options = {name: params[name] for name in (*RANGES, *SHARED) if name != "shape"}
    return {**options, **SHAPES[params["shape"]]}


def score_batch(
    problem: Problem,
    batch: Sequence[Params],
    keep: Callable[[int, int, float | None], bool] = lambda _trial, _epoch, _value: True,
) -> list[list[float | None]]:
    """Train all trials of a batch in one stack and score each on every inner fold.

    Parameters
    ----------
    problem : Problem
    batch : sequence of dict
        Trials that agree in `SHARED`.
    keep : callable
        Told (number in the batch, epochs done, value) at each rung; tells whether to go on.

    Returns
    -------
    list of list of float
        The selecting metric of each trial at its rungs, averaged over the inner folds in which it
        is defined; None where it is in none.
    """
    stacked = list(range(len(batch)))
    going = set(stacked)
    stack = _make_stack(problem, batch)
    values: list[list[float | None]] = [[] for _ in batch]
    rungs = {round(stack.epochs * (k + 1) / RUNGS) for k in range(RUNGS)}
    for epoch in range(stack.epochs):
        stack.begin_epoch(epoch)
        for at in range(stack.steps):
            stack.training_step.run(at, step_seed(problem.config.seed, epoch * stack.steps + at))
        if epoch + 1 not in rungs:
            continue
        for trial, value in zip(stacked, _score(problem, stack), strict=True):
            if trial in going:
                values[trial].append(value)
                if not keep(trial, epoch + 1, value):
                    going.remove(trial)
        if not going:
            break
        # A GPU takes as long for a smaller stack, and seconds to capture its step.
        if len(going) <= len(stacked) / 2 and problem.device.type == "cpu":
            heads = np.flatnonzero(np.tile([t in going for t in stacked], problem.folds))
            stacked = sorted(going)
            stack = _cut(stack, _make_stack(problem, [batch[t] for t in stacked]), heads)
    return values


def _make_stack(problem: Problem, batch: Sequence[Params]) -> StackedHeads:
    """Stack the heads of a batch, fold by fold: those of a fold read the same pairs."""
    configs = [replace(problem.config, **fit_options(params)) for params in batch]
    training = [np.flatnonzero(problem.fold != fold) for fold in range(problem.folds)]
    n_training = max(map(len, training))
    size, accumulate = problem.config.fitting_batch(n_training)
    antibody_ND = problem.vectors("antibody", configs[0].antibody_pooling)
    antigen_ME = problem.vectors("antigen", configs[0].antigen_pooling)
    members = [
        Member(
            seed=config.seed + fold,
            lr=config.peak_lr(size * accumulate),
            weight_decay=config.filled().weight_decay,
            dropout=config.filled().dropout,
        )
        for fold in range(problem.folds)
        for config in configs
    ]
    everything = np.arange(len(problem.pairs))
    with reporting(silent=True):  # else every batch reports where its vectors are
        return StackedHeads(
            problem.pairs,
            antibody_ND,
            antigen_ME,
            Scaling.of(problem.pairs, everything, antibody_ND, antigen_ME),
            training,
            members,
            config=configs[0],
            n_training=n_training,
            device=problem.device,
        )


def _score(problem: Problem, stack: StackedHeads) -> list[float | None]:
    """Score each trial of a stack: its mean over the inner folds, each by its own head."""
    pairs, select = problem.pairs, problem.config.select
    held = [_scored_rows(problem, fold) for fold in range(problem.folds)]
    longest = max(map(len, held))
    predicted_MR = stack.predict(np.stack([np.resize(rows, longest) for rows in held]))
    predicted_FTR = predicted_MR.reshape(problem.folds, -1, longest)
    found = []
    for predicted_FR in predicted_FTR.swapaxes(0, 1):
        values = [
            metrics.score_one(
                select, pairs.pkd[rows], one[: len(rows)], pairs.antigen[rows], pairs.censored[rows]
            )
            for rows, one in zip(held, predicted_FR, strict=True)
        ]
        known = [value for value in values if value is not None]
        found.append(float(np.mean(known)) if known else None)
    return found


def _scored_rows(problem: Problem, fold: int) -> NDArray[np.int64]:
    """Return the pairs of an inner fold that are scored: all, or a fixed random subset."""
    rows, size = np.flatnonzero(problem.fold == fold), problem.config.validate_pairs
    if size == 0 or size >= len(rows):
        return rows
    rng = np.random.default_rng([problem.config.seed, FOLD_SUBSET, fold])
    return np.sort(rng.permutation(rows)[:size])


def _cut(stack: StackedHeads, smaller: StackedHeads, heads: NDArray[np.int64]) -> StackedHeads:
    """Bring some heads of a stack, where training stands, into a smaller one."""
    saved = {name: tensor[heads] for name, tensor in stack.training_step.tensors().items()}
    smaller.training_step.load(saved)
    return smaller


def best_value(select: str, values: Sequence[float | None]) -> float | None:
    """Return the best of a trial's rungs: where early stopping would end, with all folds as one."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return min(known) if metrics.METRICS[select].lower_is_better else max(known)
