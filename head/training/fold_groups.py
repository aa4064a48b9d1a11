"""Which folds of a cross-validation train together, as members of one stacked step."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import torch

from abag.head.model.config import STACK_NETWORKS
from abag.head.model.heads import build_head
from abag.head.splits.splits import TRAIN
from abag.head.training.stack import leaves_folds_out, pairs_per_epoch
from abag.head.training.step import steps_per_epoch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split

MAX_TABLE_BYTES = 2**30
"""Largest size of the vectors of a stack, which holds them once per fold."""
MAX_CPU_BYTES = 2**26
"""Largest size, on a CPU, of all that a stack holds: vectors, weights, gradients, two moments and
best weights. Larger stacks are not faster there."""


def folds_per_stack(
    config: FitConfig, vectors: tuple[NDArray[np.float32], NDArray[np.float32]], cpu: bool
) -> int:
    """Return how many folds train in one step at most.

    Parameters
    ----------
    vectors : (NDArray, NDArray), shape=(N, D) and (M, E), dtype=float32
        Of the antibodies and antigens of one fold.
    cpu : bool
        Whether they train on a CPU. Stacks of a GPU are as large as possible, because its steps are
        bound by kernel launches.
    """
    table_bytes = sum(x_ND.nbytes for x_ND in vectors)
    if not cpu:
        return max(1, MAX_TABLE_BYTES // table_bytes)
    with torch.device("meta"):
        head = build_head(config, *(x_ND.shape[1] for x_ND in vectors))
    heads = STACK_NETWORKS if config.stacks else 1
    weight_bytes = heads * sum(parameter.nbytes for parameter in head.parameters())
    return max(1, MAX_CPU_BYTES // (table_bytes + 5 * weight_bytes))


def group_folds(
    splits: Sequence[Split],
    config: FitConfig,
    size: int,
    alone: Collection[int] = (),
    begun: Mapping[int, int] | None = None,
) -> list[list[int]]:
    """Group the folds whose steps have the same shapes.

    Groups that were begun stay as they are when a run is resumed. Folds with several heads
    are stacks already, and early stopping ends each fold at its own step: both train one by one.

    Parameters
    ----------
    size : int
        Most folds of a group, see `folds_per_stack`; they are divided evenly.
    alone : collection of int
        Folds that were begun one by one.
    begun : mapping, optional
        How many folds a group has that was begun, by its first one.

    Returns
    -------
    list of list of int
        Every fold once.
    """
    one_by_one = config.members > 1 or config.patience > 0
    groups: dict[tuple[int, ...], list[int]] = {}
    for fold, split in enumerate(splits):
        n_pairs = len(split.rows(TRAIN))
        batch = config.fitting_batch(n_pairs)
        sets = leaves_folds_out(config, n_pairs)
        steps = steps_per_epoch(pairs_per_epoch(config, n_pairs), *batch)
        shape = (*batch, steps, sets)
        groups.setdefault((fold,) if one_by_one or fold in alone else shape, []).append(fold)
    return [stack for group in groups.values() for stack in _divide(group, size, begun or {})]


def _divide(group: list[int], size: int, begun: Mapping[int, int]) -> list[list[int]]:
    """Divide a group evenly, but for the parts that were begun."""
    stacks = []
    while group:
        if (count := begun.get(group[0])) is None:
            fresh = len(list(takewhile(lambda fold: fold not in begun, group)))
            count = -(-fresh // -(-fresh // size))
        stacks.append(group[:count])
        group = group[count:]
    return stacks
