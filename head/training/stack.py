"""Several heads of one shape that train in one step: their members, training sets and stack.

P pairs, M members, G training sets, F folds, R rows. Member k of ``fit --members K`` has the
initial weights of a single run with ``--seed`` seed + k. Its training set is a bootstrap sample: as
many groups as there are, drawn with replacement, each with all its pairs. The heads of one fold of
a sweep read the same pairs in the same order, so each batch is gathered once for all of them.

The folds of a cross-validation have statistics of their own, so the same pair has other inputs and
another target in each. The tables hold all pairs once per fold: pair p of fold f is row p + f P.
Folds whose steps have the same shapes train together, see `group_folds`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abag.core.messages import detail
from abag.head.data.labels import training_labels
from abag.head.data.vectors import Standardizer
from abag.head.models.layers import Mlp, build_stacked_heads, plain_layers
from abag.head.regimes.splits import TRAIN
from abag.head.training.step import (
    TrainingPairs,
    TrainingStep,
    VectorTables,
    cosine_rates,
    make_epoch_batches,
    predict_rows,
    steps_per_epoch,
    uses_bf16,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.head.data.labels import LabelledPairs
    from abag.head.models.config import FitConfig
    from abag.head.regimes.splits import Split
    from abag.head.training.step import EpochBatches

INITIAL, BOOTSTRAP = 3, 5  # streams of the seed, beside those of step.py and train.py
MAX_TABLE_BYTES = 2**30
"""Largest size of the vectors of a stack on a GPU, which holds them once per fold."""
MAX_CPU_BYTES = 2**26
"""Largest size, on a CPU, of all that a stack holds: vectors, weights, gradients, two moments and
best weights. Larger stacks are not faster there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What distinguishes one head of a stack."""

    seed: int
    """Of the initial weights."""
    lr: float
    """Peak learning rate."""
    weight_decay: float
    dropout: float

    @classmethod
    def of(cls, config: FitConfig, seed: int) -> Member:
        """Return the head that a configuration describes."""
        filled = config.filled()
        return cls(
            seed=seed, lr=filled.lr, weight_decay=filled.weight_decay, dropout=filled.dropout
        )


@dataclass(frozen=True, slots=True)
class PairStandardizer:
    """Conversion of stored vectors to inputs, and of outputs to pKd."""

    antibody: Standardizer
    antigen: Standardizer
    pkd_mean: float
    pkd_scale: float

    @classmethod
    def of(
        cls,
        pairs: LabelledPairs,
        training: NDArray[np.int64],
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
        views: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> PairStandardizer:
        """Measure the training pairs; each unique sequence and each exact label counts once.

        `views` has the columns of each view of both sides, see `Standardizer.of`.
        """
        labels, (antibody, antigen) = training_labels(pairs, training), views or ((), ())
        return cls(
            Standardizer.of(antibody_ND, pairs.antibody[training], antibody),
            Standardizer.of(antigen_ME, pairs.antigen[training], antigen),
            float(labels.mean()),
            float(labels.std()),
        )


def make_training_sets(config: FitConfig, split: Split) -> list[NDArray[np.int64]]:
    """Return all training pairs, shape (N,), as one set, or a bootstrap sample per head."""
    training = split.rows(TRAIN)
    if config.members == 1:
        return [training]
    seeds = range(config.seed, config.seed + config.members)
    return [draw_bootstrap_sample(training, split.group[training], seed) for seed in seeds]


def draw_bootstrap_sample(
    rows: NDArray[np.int64], group: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Draw as many groups as there are, with replacement; repeat each row as often as its group.

    `rows` and the `group` of each have shape (R,), int64. About 37 % of the groups are not drawn.
    """
    _, dense = np.unique(group, return_inverse=True)
    n_groups = int(dense.max()) + 1
    drawn = np.random.default_rng([seed, BOOTSTRAP]).integers(0, n_groups, n_groups)
    return np.repeat(rows, np.bincount(drawn, minlength=n_groups)[dense])


class StackedHeads:
    """M heads, their shared step, and the pairs and vectors that it uses.

    Parameters
    ----------
    pairs : sequence of LabelledPairs
        The same pairs with the labels of each fold.
    antibody_ND, antigen_ME : NDArray, dtype=float32
        One vector per unique sequence.
    scalings : sequence of PairStandardizer
        Of each fold; the training sets are G / F of the first fold, then those of the second ...
    training_sets : sequence of NDArray, dtype=int64
        G sets of pairs, each read in one order by M / G members; a set may contain a pair several
        times.
    members : sequence of Member
        Those of the first training set, then those of the second, and so on.
    config : FitConfig
        What the members share: shape, epochs, loss, precision.
    epoch_pairs : sequence of int
        Pairs per epoch of each training set. Of a larger set each epoch uses a different part; a
        smaller one is repeated.
    """

    def __init__(
        self,
        pairs: Sequence[LabelledPairs],
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
        scalings: Sequence[PairStandardizer],
        training_sets: Sequence[NDArray[np.int64]],
        members: Sequence[Member],
        *,
        config: FitConfig,
        epoch_pairs: Sequence[int],
        device: torch.device,
    ) -> None:
        self.scalings, self.members, self.config, self.device = scalings, members, config, device
        self.training_sets, self.epoch_pairs = training_sets, epoch_pairs
        self.batch_size, self.accumulate = config.fitting_batch(epoch_pairs[0])
        self.steps = steps_per_epoch(epoch_pairs[0], self.batch_size, self.accumulate)
        self.epochs = config.filled().epochs
        self.stacked = len(members) > 1
        axis = (len(training_sets),) if self.stacked else ()
        shape = (self.steps, self.accumulate, *axis, self.batch_size)
        folds, sets_per_fold = range(len(scalings)), len(training_sets) // len(scalings)
        self.first_row_G = np.repeat([fold * len(pairs[0]) for fold in folds], sets_per_fold)
        targets = [
            ((one.pkd - s.pkd_mean) / s.pkd_scale).astype(np.float32)
            for one, s in zip(pairs, scalings, strict=True)
        ]
        columns = (
            _join([pairs[0].antibody + fold * len(antibody_ND) for fold in folds]),
            _join([pairs[0].antigen + fold * len(antigen_ME) for fold in folds]),
            _join(targets),
            _join([one.censored for one in pairs]),
        )
        on_device = TrainingPairs(*(torch.from_numpy(column).to(device) for column in columns))
        vectors = [
            torch.from_numpy(_join([scaling.antibody.apply(antibody_ND) for scaling in scalings])),
            torch.from_numpy(_join([scaling.antigen.apply(antigen_ME) for scaling in scalings])),
        ]
        needed = sum(x_ND.nbytes for x_ND in vectors)
        fits = fit_on_device(needed, device)
        if device.type != "cpu":
            detail(f"vectors: {needed / 2**20:.0f} MiB on the {'device' if fits else 'host'}")
        self.tables = VectorTables(vectors[0], vectors[1], on_device, device, on_host=not fits)
        self.model = build_stacked_heads(
            antibody_ND.shape[1],
            antigen_ME.shape[1],
            config.filled().widths,
            [initial_seed(member.seed) for member in members],
            [member.dropout for member in members],
        ).to(device)
        self.training_step = TrainingStep(
            self.model, self.tables, on_device, config,
            [member.weight_decay for member in members], shape, device,
            # Folds are in the precision of separate training.
            in_bf16=uses_bf16(config, device, stacked=len(members) > len(scalings)),
            alike=len({(member.lr, member.weight_decay) for member in members}) == 1,
        )  # fmt: skip
        self.rates_S = np.zeros(0, np.float32)
        self.thread = ThreadPoolExecutor(1)
        self.planned: dict[int, Future[EpochBatches]] = {}

    def epoch_batches(self, epoch: int) -> EpochBatches:
        """Order the rows of every training set for one epoch."""
        sets = [rows + at for rows, at in zip(self.training_sets, self.first_row_G, strict=True)]
        return make_epoch_batches(sets, epoch, self.batch_size, self.accumulate, self.epoch_pairs)

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the steps of an epoch from `first_step` on."""
        total = self.epochs * self.steps
        rates_MS = [cosine_rates(epoch * self.steps, self.steps, total, m.lr) for m in self.members]
        self.rates_S = np.stack(rates_MS, axis=-1) if self.stacked else rates_MS[0]
        planned = self.planned.pop(epoch, None) or self.thread.submit(self.epoch_batches, epoch)
        self.training_step.begin_epoch(planned.result(), self.rates_S, first_step)
        # Ordering many training sets takes a large part of an epoch on a GPU: prepare the next now.
        self.planned = {epoch + 1: self.thread.submit(self.epoch_batches, epoch + 1)}

    def predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Predict pKd with the current weights, (M, R) in float64.

        The rows, int64, have shape (R,), or (G, R) if they differ between training sets.
        """
        if self.stacked:
            rows = np.atleast_2d(rows)
        if len(self.scalings) > 1:
            rows = rows + self.first_row_G[:, None]
        scores = predict_rows(self.model, self.tables, rows, self.device, len(self.members))
        units = np.array([(s.pkd_scale, s.pkd_mean) for s in self.scalings])
        scale_M, mean_M = np.repeat(units, len(self.members) // len(self.scalings), axis=0).T
        return np.asarray(scores.astype(np.float64) * scale_M[:, None] + mean_M[:, None])

    def predict_parts(self, parts: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
        """Predict other rows, (R,), for each part of the members: all of them, or one per set.

        The results have shape (M / parts, R).
        """
        if len(parts) == 1:
            return [self.predict(parts[0])]
        longest, sets_per_part = max(map(len, parts)), len(self.training_sets) // len(parts)
        rows_GR = np.stack([np.resize(rows, longest) for rows in parts]).repeat(sets_per_part, 0)
        each = np.split(self.predict(rows_GR), len(parts))
        return [one[:, : len(rows)] for one, rows in zip(each, parts, strict=True)]


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def initial_seed(seed: int) -> int:
    """Derive torch's seed for the initial weights of a head."""
    return int(np.random.SeedSequence([seed, INITIAL]).generate_state(1)[0])


def fit_on_device(needed_bytes: int, device: torch.device) -> bool:
    """Whether vectors fit in half of a GPU's free memory; a CPU has them in memory already."""
    return device.type != "cuda" or needed_bytes <= torch.cuda.mem_get_info(device)[0] / 2


def folds_per_stack(
    config: FitConfig, vectors: tuple[NDArray[np.float32], NDArray[np.float32]], cpu: bool
) -> int:
    """Return how many folds train in one step at most; `vectors` are those of both sides.

    Stacks of a GPU are as large as possible, because its steps are bound by kernel launches.
    """
    table_bytes = sum(x_ND.nbytes for x_ND in vectors)
    if not cpu:
        return max(1, MAX_TABLE_BYTES // table_bytes)
    with torch.device("meta"):
        antibody_width, antigen_width = (x_ND.shape[1] for x_ND in vectors)
        layers = plain_layers(dropout=0.0)
        head = Mlp(antibody_width, antigen_width, config.filled().widths, layers)
    weight_bytes = sum(parameter.nbytes for parameter in head.parameters())
    return max(1, MAX_CPU_BYTES // (table_bytes + 5 * weight_bytes))


def group_folds(splits: Sequence[Split], config: FitConfig, size: int) -> list[list[int]]:
    """Group the folds whose steps have the same shapes, at most `size` each, divided evenly.

    Folds with several heads are stacks already, and early stopping ends each fold at its own step:
    both train one by one.
    """
    one_by_one = config.members > 1 or config.patience > 0
    groups: dict[tuple[int, ...], list[int]] = {}
    for fold, split in enumerate(splits):
        n_pairs = len(split.rows(TRAIN))
        batch = config.fitting_batch(n_pairs)
        shape = (*batch, steps_per_epoch(n_pairs, *batch))
        groups.setdefault((fold,) if one_by_one else shape, []).append(fold)
    return [
        stack.tolist()
        for group in groups.values()
        for stack in np.array_split(group, -(-len(group) // size))
    ]
