"""A split: which pairs are training, validation and test pairs.

Pairs of one group belong to one part. A group is a cluster of similar antigens or antibodies, the
value of a column, or, under ``random``, a single (antibody, antigen) pair.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Ints

Parts: TypeAlias = NDArray[np.int8]

TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
PART_NAMES = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "unused": UNUSED}


class BadSplit(AbagError):
    """The table cannot be split as requested."""


class TooFewGroups(BadSplit):
    """There are fewer groups than folds."""


class EmptyPart(BadSplit):
    """The training, validation or test part would be empty."""


class SplitFileMismatch(BadSplit):
    """A split file and the table hold different pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part and the group of each of P pairs."""

    name: str
    part: Parts
    """Shape (P,), dtype int8: `TRAIN`, `VALIDATION`, `TEST` or `UNUSED`."""
    group: Ints
    """Shape (P,), dtype int64; also the unit of inner folds and of the bootstrap."""
    fold: int = 0
    """Number of the fold, counted over all repeats."""
    description: dict[str, Any] = field(default_factory=dict)
    """How and why the pairs were split, and the leaks, for the summary and the report."""

    def rows(self, part: int) -> Ints:
        """Indices of the pairs of one part, shape (N,), dtype int64."""
        return np.flatnonzero(self.part == part)

    def rows_per_part(self) -> dict[str, int]:
        """Number of pairs in each part, by its name."""
        return {name: int((self.part == part).sum()) for name, part in PART_NAMES.items()}


def total_leaks(splits: Sequence[Split]) -> dict[str, dict[str, int]]:
    """Sum the leaks of all folds, by kind and closeness; empty if they were not counted."""
    return {
        kind: {at: sum(s.description["leaks"][kind][at] for s in splits) for at in levels}
        for kind, levels in splits[0].description.get("leaks", {}).items()
    }


def thinned(split: Split, share: float, seed: int) -> Split:
    """Keep a random share of the training groups, at least one; smaller shares are subsets."""
    train = split.rows(TRAIN)
    groups = np.random.default_rng([seed, split.fold]).permutation(np.unique(split.group[train]))
    kept = groups[: max(1, round(share * len(groups)))]
    part = split.part.copy()
    part[train[~np.isin(split.group[train], kept)]] = UNUSED
    return replace(split, part=part)


def grouped_folds(group: Ints, folds: int, seed: int | Sequence[int]) -> Ints:
    """Assign whole groups to folds of about equally many rows.

    Large groups are assigned first, each to the fold with the fewest rows. The seed perturbs the
    order, so that repeats differ even if all groups differ in size.

    Parameters
    ----------
    group : NDArray, shape=(P,), dtype=int64
        Group of each row. Only equality and the order of the ids matter.

    Returns
    -------
    NDArray, shape=(P,), dtype=int64
        Fold of each row, in ``range(folds)``.

    Raises
    ------
    TooFewGroups
        If there are fewer groups than folds.
    """
    _, dense, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(sizes) < folds:
        msg = (
            f"{folds} folds: the rows form only {len(sizes)} groups; expected at least one group "
            "per fold. Use fewer --folds or another --split."
        )
        raise TooFewGroups(msg)
    rng = np.random.default_rng(seed)
    if len(sizes) == len(group):  # groups of one row, maybe a million: no need to balance
        return rng.permutation(len(group))[dense] % folds
    order = np.argsort(-sizes * rng.uniform(0.5, 1.0, len(sizes)), kind="stable")
    fold_of_group = np.empty(len(sizes), np.int64)
    loads = [(0, fold) for fold in rng.permutation(folds).tolist()]
    heapq.heapify(loads)
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        load, fold = loads[0]
        fold_of_group[index] = fold
        heapq.heapreplace(loads, (load + size, fold))
    return fold_of_group[dense]
