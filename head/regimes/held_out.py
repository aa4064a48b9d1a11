"""The test, unused and validation pairs of folds that hold out groups as a whole.

P pairs of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from abag.core.arrays import Bools, Ints, distinct
from abag.head.regimes.splits import TEST, TRAIN, UNUSED, VALIDATION, Parts, grouped_folds

FULLEST = 1.2
"""Most pairs of a fold in `_beside_folds`, relative to an equal share."""
HELD_OUT_SHARE = 0.1
"""Share of the pairs in the test part of a single split, and of the others in a validation part."""


class HeldOut(NamedTuple):
    """Hold what one fold does not train on, (P,) each."""

    test: Bools
    """Pairs that are held out on all sides."""
    unused: Bools
    """Pairs that are held out on some sides only: they are neither known nor new."""

    @classmethod
    def of(cls, sides: Sequence[Bools]) -> HeldOut:
        """Divide pairs that some sides hold out, (P,) each."""
        test = np.all(sides, axis=0)
        return cls(test, np.any(sides, axis=0) & ~test)

    def parts(self, tested: int = TEST) -> Parts:
        """Return the part of each pair, without a validation part; `tested` is that of `test`."""
        part = np.full(len(self.test), TRAIN, np.int8)
        part[self.unused] = UNUSED
        part[self.test] = tested
        return part


def held_out_parts(held: Sequence[Ints], folds: int, repeats: int, seed: int) -> Iterator[HeldOut]:
    """Yield what each fold holds out; groups of `held`, (P,) each, are kept whole."""
    first, *beside = held
    for repeat in range(repeats):
        first_fold = grouped_folds(first, folds, [seed, repeat, 0])
        fold_of_pairs = [first_fold]
        for group in beside:
            fold_of_pairs.append(_beside_folds(group, first_fold, [seed, repeat, 1]))
        for number in range(folds):
            yield HeldOut.of([fold_P == number for fold_P in fold_of_pairs])


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
    order = np.argsort(-size * rng.uniform(0.5, 1.0, len(size)), kind="stable")
    for g in order.tolist():
        fits = load + size[g] <= full
        # most shared pairs first, then the lowest load, then by chance
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
    if sizes[chosen] > 2 * HELD_OUT_SHARE * len(rows):  # groups are too large: single pairs then
        fold = np.random.default_rng([*seed, 2]).permutation(len(rows)) % wanted
        chosen = 0
    part = part.copy()
    part[rows[fold == chosen]] = VALIDATION
    return part
