"""Divide pairs between adapter and head, and those of the adapter into batches.

Draws depend only on the split, the options and the seed, so that a resumed adaptation sees the
batches of an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Ints, distinct
from abag.core.errors import OptionError, SplitError
from abag.head.regimes.splits import (
    TRAIN,
    VALIDATION,
    Split,
    grouped_folds,
    read_splits,
    split_frame,
)

if TYPE_CHECKING:
    import pandas as pd

    from abag.adapt.config import AdaptConfig
    from abag.head.labels.labelled_pairs import LabelledPairs


BUCKET_BATCHES = 16
"""Batches whose pairs are sorted by length together."""
MAX_SHARES = 20
"""Parts into which the training groups are divided between adapter and head."""
ORDER = 0
"""Stream of the seed that orders the pairs of an epoch."""
ASSIGNMENT = 1
"""Stream of the seed that divides the training groups."""


@dataclass(frozen=True, slots=True)
class PairAssignment:
    """A split whose training pairs are divided between the adapter and the head."""

    split: Split
    adapter: Ints
    """Indices of the training pairs of the adapter."""
    head: Ints
    """Indices of the training pairs that the adapter does not see."""
    validation: Ints
    """Indices of the pairs that decide when to stop."""

    def to_frame(self, pairs: LabelledPairs) -> pd.DataFrame:
        """Return the split as ``--split file=`` reads it, with a column ``adapter``.

        Its values are ``train`` for pairs that trained the adapter, ``validation`` for those that
        decided when to stop, and empty for all others.
        """
        use = np.full(len(pairs), "", dtype=object)
        use[self.adapter] = "train"
        use[self.validation] = "validation"
        frame = split_frame(pairs, [replace(self.split, fold=0)])
        # With --replicates keep, or a bound beside a label, several rows are one pair.
        ids = np.stack([pairs.antibody, pairs.antigen])
        _, first_rows = np.unique(ids, axis=1, return_index=True)
        return frame.assign(adapter=use[np.sort(first_rows)])


def assign_pairs(pairs: LabelledPairs, config: AdaptConfig) -> PairAssignment:
    """Divide a split's training groups between adapter and head.

    The head must not rely on vectors that saw its labels. No group is divided.

    Raises
    ------
    OptionError
        If the split does not exist, or has not the fold asked for.
    SplitError
        If its training or validation part is empty, or too few groups can be divided.
    """
    split = _read_split(pairs, config)
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation")):
        if not len(split.rows(part)):
            msg = (
                f"--split-from {config.split_from}: the {name} part is empty; expected at least "
                "one pair. Use another split."
            )
            raise SplitError(msg)
    training = split.rows(TRAIN)
    groups = split.group[training]
    share = config.head_share
    is_head = np.zeros(len(training), bool)
    if share > 0:
        folds = min(MAX_SHARES, len(distinct(groups)))
        if folds < 2:
            msg = (
                f"--head-share {share}: the {len(training)} training pairs form {folds} group, "
                "which cannot be divided between adapter and head. Use --head-share 0 and train "
                "the head with abag fit --adapter-rows train, or use another split."
            )
            raise SplitError(msg)
        fold = grouped_folds(groups, folds, [config.seed, ASSIGNMENT])
        head_folds = min(max(round(share * folds), 1), folds - 1)
        is_head = fold < head_folds
    return PairAssignment(split, training[~is_head], training[is_head], split.rows(VALIDATION))


def _read_split(pairs: LabelledPairs, config: AdaptConfig) -> Split:
    path = Path(config.split_from)
    if not path.exists():
        msg = (
            f"--split-from {path}: does not exist; expected a run folder, or a file like its "
            "splits.parquet. Check the path."
        )
        raise OptionError(msg)
    file = path / "splits.parquet" if path.is_dir() else path
    splits = read_splits(file, pairs)
    if config.fold is None and len(splits) == 1:
        return splits[0]
    if config.fold is None or not 0 <= config.fold < len(splits):
        option = "--fold: not given" if config.fold is None else f"--fold {config.fold}"
        msg = (
            f"{option}; {path} has folds 0 to {len(splits) - 1}; expected one of them, because an "
            "adapter belongs to one fold. Give its number."
        )
        raise OptionError(msg)
    return splits[config.fold]


def batch_pairs(rows: Ints, lengths: Ints, config: AdaptConfig, epoch: int) -> list[Ints]:
    """Divide the pairs of an epoch into batches, one per step, of pairs of similar length.

    Parameters
    ----------
    rows : ndarray, dtype=int64
        Indices of the training pairs.
    lengths : ndarray, dtype=int64
        Tokens of every pair.
    epoch : int
        Number of the epoch; with the seed, it decides the order.
    """
    rng = np.random.default_rng([config.seed, ORDER, epoch])
    shuffled = rng.permutation(rows)
    size = config.batch_size
    bucket_size = BUCKET_BATCHES * size
    batches: list[Ints] = []
    for start in range(0, len(shuffled), bucket_size):
        bucket = shuffled[start : start + bucket_size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    return [batches[i] for i in rng.permutation(len(batches))]
