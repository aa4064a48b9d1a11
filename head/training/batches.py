"""The order of training pairs, the batches of an epoch, and the learning rate of each step.

S steps of an epoch, A batches per step, B pairs per batch, G training sets, N training pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abag.head.regimes.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.head.models.config import FitConfig
    from abag.head.regimes.splits import Split

# streams of the seed, beside those of stack.py and heads.py
ORDER = 1
BOOTSTRAP = 5
WARMUP = 0.05
"""Share of all steps in which the learning rate rises."""


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
    """Draw as many groups as there are, with replacement; repeat each row as often as its group."""
    _, dense = np.unique(group, return_inverse=True)
    n_groups = int(dense.max()) + 1
    drawn = np.random.default_rng([seed, BOOTSTRAP]).integers(0, n_groups, n_groups)
    return np.repeat(rows, np.bincount(drawn, minlength=n_groups)[dense])


def steps_per_epoch(n_pairs: int, batch_size: int, accumulate: int) -> int:
    """Return the optimizer steps that take every pair once; the last may be smaller."""
    return -(-n_pairs // (batch_size * accumulate))


def epoch_permutation(epoch: int, count: int) -> NDArray[np.int64]:
    """Return a random permutation, (count,); without its larger numbers that of a smaller count."""
    # as fast as a shuffle: random numbers are sorted with the index in their low bits
    random = np.random.default_rng([ORDER, epoch]).bit_generator.random_raw(count)
    keyed = (random << np.uint64(32)) | np.arange(count, dtype=np.uint64)
    keyed.sort()
    return (keyed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def make_epoch_batches(
    training_sets: Sequence[NDArray[np.int64]],
    epoch: int,
    batch_size: int,
    accumulate: int,
    epoch_pairs: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Order the training pairs of an epoch: rows and weights, (S, A, G, B) each.

    The order depends on the epoch alone. A sum with the weights is a step's mean; padding has 0.
    """
    steps = steps_per_epoch(epoch_pairs[0], batch_size, accumulate)
    shape = (steps, accumulate, batch_size)
    size = np.prod(shape)
    permutation = epoch_permutation(epoch, max(map(len, training_sets)))
    sets = []
    weights = []
    for training, n_pairs in zip(training_sets, epoch_pairs, strict=True):
        order = np.resize(permutation[permutation < len(training)], n_pairs)
        rows = np.full(size, training[order[0]])
        rows[:n_pairs] = training[order]
        sets.append(rows.reshape(shape))
        weight = (np.arange(size) < n_pairs).astype(np.float32).reshape(steps, -1)
        weight /= weight.sum(axis=1, keepdims=True)
        weights.append(weight.reshape(shape))
    return np.stack(sets, axis=2), np.stack(weights, axis=2)


def cosine_rates(first: int, count: int, total: int, lr: float) -> NDArray[np.float32]:
    """Return the rates, (count,), from a step on: a linear rise to `lr`, then half a cosine."""
    step = np.arange(first, first + count) + 1.0
    rising = max(1.0, round(WARMUP * total))
    fallen = np.clip((step - rising) / max(1.0, total + 1 - rising), 0, 1)
    cosine = 0.5 * (1 + np.cos(np.pi * fallen))
    share = np.where(step < rising, step / rising, cosine).astype(np.float32)
    return np.float32(lr) * share
