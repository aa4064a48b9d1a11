"""The test, unused and validation pairs of folds that hold out groups as a whole.

P pairs of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from abag.core.arrays import Bools, Ints, distinct
from abag.head.regimes.splits import TRAIN, VALIDATION, Parts, grouped_folds

FULLEST = 1.2
"""Most pairs of a fold in `_beside_folds`, relative to an equal share."""
HELD_OUT_SHARE = 0.1
"""Share of the pairs in the test part of a single split, and of the others in a validation part."""


def held_out_parts(
    held: Sequence[Ints], folds: int, repeats: int, seed: int
) -> Iterator[tuple[Bools, Bools]]:
    """Yield the test part of each fold, and pairs not used, (P,) each; `held` are kept whole."""
    first, *beside = held
    for repeat in range(repeats):
        first_fold = grouped_folds(first, folds, [seed, repeat, 0])
        fold_of_pairs = [first_fold]
        fold_of_pairs += [_beside_folds(group, first_fold, [seed, repeat, 1]) for group in beside]
        for number in range(folds):
            yield divide_held_out([fold_P == number for fold_P in fold_of_pairs])


def divide_held_out(sides: Sequence[Bools]) -> tuple[Bools, Bools]:
    """Test pairs that are held out on all sides; do not use those of some sides only."""
    test = np.all(sides, axis=0)
    return test, np.any(sides, axis=0) & ~test


def _beside_folds(group: Ints, beside: Ints, seed: Sequence[int]) -> Ints:
    """Assign groups to the folds of other groups with most of their pairs, but fill none, (P,)."""
    rng = np.random.default_rng(seed)
    folds = int(beside.max()) + 1
    _, dense, size = np.unique(group, return_inverse=True, return_counts=True)
    shared = np.zeros((len(size), folds))
    np.add.at(shared, (dense, beside), 1)
    load = np.zeros(folds)
    fold = np.empty(len(size), np.int64)
    full = FULLEST * len(group) / folds
    for g in np.argsort(-size * rng.uniform(0.5, 1.0, len(size)), kind="stable").tolist():
        fits = load + size[g] <= full
        fold[g] = np.lexsort((rng.random(folds), load, -shared[g] * fits))[0]
        load[fold[g]] += size[g]
    return fold[dense]


def with_validation(part: Parts, group: Ints, seed: Sequence[int]) -> Parts:
    """Turn groups with `HELD_OUT_SHARE` of the training pairs, or pairs, into validation pairs."""
    rows = np.flatnonzero(part == TRAIN)
    n_groups = len(distinct(group[rows]))
    wanted = round(1 / HELD_OUT_SHARE)
    fold = np.zeros(len(rows), np.int64)
    if n_groups >= 2:
        fold = grouped_folds(group[rows], min(wanted, n_groups), [*seed, 1])
    sizes = np.bincount(fold)
    chosen = np.abs(sizes - HELD_OUT_SHARE * len(rows)).argmin()
    if sizes[chosen] > 2 * HELD_OUT_SHARE * len(rows):
        fold = np.random.default_rng([*seed, 2]).permutation(len(rows)) % wanted
        chosen = 0
    part = part.copy()
    part[rows[fold == chosen]] = VALIDATION
    return part
