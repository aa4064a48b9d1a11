"""Which pairs train the adapter, which are left to the head, and the adapter's batches."""

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
    from abag.head.data.labels import LabelledPairs


BUCKET_BATCHES = 16
"""Batches whose pairs are sorted by length together."""
MAX_SHARES = 20
"""Parts into which the training groups are divided between adapter and head."""
ORDER, ASSIGNMENT = 0, 1  # streams of the seed


@dataclass(frozen=True, slots=True)
class PairAssignment:
    """A split whose training pairs are divided between the adapter and the head."""

    split: Split
    adapter: Ints  # training pairs of the adapter
    head: Ints  # training pairs that the adapter does not see
    validation: Ints  # pairs that decide when to stop

    def to_frame(self, pairs: LabelledPairs) -> pd.DataFrame:
        """Return the split as ``--split file=`` reads it; ``adapter``: part of its pairs."""
        # ``validation`` pairs decided when to stop; others than these and ``train`` are empty
        use = np.full(len(pairs), "", dtype=object)
        use[self.adapter], use[self.validation] = "train", "validation"
        frame = split_frame(pairs, [replace(self.split, fold=0)])
        # With --replicates keep, or a bound beside a label, several rows are one pair.
        both = np.unique(np.stack([pairs.antibody, pairs.antigen]), axis=1, return_index=True)[1]
        return frame.assign(adapter=use[np.sort(both)])


def assign_pairs(pairs: LabelledPairs, config: AdaptConfig) -> PairAssignment:
    """Divide a split's training groups: the head must not rely on vectors that saw its labels."""
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
        is_head = fold < min(max(round(share * folds), 1), folds - 1)
    return PairAssignment(split, training[~is_head], training[is_head], split.rows(VALIDATION))


def _read_split(pairs: LabelledPairs, config: AdaptConfig) -> Split:
    path = Path(config.split_from)
    if not path.exists():
        msg = (
            f"--split-from {path}: does not exist; expected a run folder, or a file like its "
            "splits.parquet. Check the path."
        )
        raise OptionError(msg)
    splits = read_splits(path / "splits.parquet" if path.is_dir() else path, pairs)
    if config.fold is None and len(splits) == 1:
        return splits[0]
    if config.fold is None or not 0 <= config.fold < len(splits):
        given = "--fold: not given" if config.fold is None else f"--fold {config.fold}"
        msg = (
            f"{given}; {path} has folds 0 to {len(splits) - 1}; expected one of them, because an "
            "adapter belongs to one fold. Give its number."
        )
        raise OptionError(msg)
    return splits[config.fold]


def make_epoch_batches(rows: Ints, lengths: Ints, config: AdaptConfig, epoch: int) -> list[Ints]:
    """Divide the pairs of an epoch into batches, one per step, of pairs of similar length."""
    rng = np.random.default_rng([config.seed, ORDER, epoch])
    shuffled, size = rng.permutation(rows), config.batch_size
    batches: list[Ints] = []
    for at in range(0, len(shuffled), BUCKET_BATCHES * size):
        bucket = shuffled[at : at + BUCKET_BATCHES * size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    return [batches[i] for i in rng.permutation(len(batches))]
