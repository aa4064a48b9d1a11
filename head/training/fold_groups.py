"""Which folds of a cross-validation train together, as members of one stacked step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abag.head.splits.splits import TRAIN
from abag.head.training.stack import leaves_folds_out, pairs_per_epoch
from abag.head.training.step import steps_per_epoch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split

MAX_TABLE_BYTES = 2**30
"""Largest size of the vectors of a stack, which holds them once per fold."""


def group_folds(
    splits: Sequence[Split], config: FitConfig, table_bytes: int, alone: Collection[int] = ()
) -> list[list[int]]:
    """Group the folds whose steps have the same shapes.

    The groups depend on nothing that may differ when a run is resumed. Folds with several heads
    are stacks already, and early stopping ends each fold at its own step: both train one by one.

    Parameters
    ----------
    table_bytes : int
        Size of the vectors of one fold.
    alone : collection of int
        Folds that were begun one by one, by an earlier version.

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
    size = max(1, MAX_TABLE_BYTES // table_bytes)
    return [g[at : at + size] for g in groups.values() for at in range(0, len(g), size)]
