"""The pairs that an adapter learns from, which are left to the head, and their batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag import AbagError
from abag.adapt.config import AdaptConfig
from abag.core.options import BadOption
from abag.head.data.split_files import read_splits, split_frame
from abag.head.data.splits import TRAIN, VALIDATION, Split, grouped_folds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from abag.head.data.labels import LabelledPairs

    Ints = NDArray[np.int64]

BUCKET = 16  # batches among which pairs are sorted by length
ORDER, DEAL = 0, 1  # streams of the seed


class NothingToAdaptOn(AbagError):
    """No training pair is left for the adapter, or for the head."""


@dataclass(frozen=True, slots=True)
class AdapterSplit:
    """One split, its training pairs dealt to the adapter and to the head."""

    split: Split
    adapter: Ints
    """Pairs that the adapter learns from."""
    head: Ints
    """Training pairs that it never sees."""
    validation: Ints
    """Pairs that say when to stop."""

    def frame(self, pairs: LabelledPairs) -> pd.DataFrame:
        """Write the split down as ``--split file=`` reads it, with the column ``adapter``.

        The column says ``train`` where the adapter learned from a pair, ``validation`` where the
        pair told it when to stop, and nothing elsewhere.
        """
        use = np.full(len(pairs), "", dtype=object)
        use[self.adapter], use[self.validation] = "train", "validation"
        keys = ["antibody_key", "antigen_key", "split", "fold", "group"]
        frame = split_frame(pairs, [replace(self.split, fold=0)])[keys]
        # --replicates keep and censored twins: rows of one pair have one part
        both = np.unique(np.stack([pairs.antibody, pairs.antigen]), axis=1, return_index=True)[1]
        return frame.assign(adapter=use[np.sort(both)])


def split_for_adapter(pairs: LabelledPairs, config: AdaptConfig) -> AdapterSplit:
    """Read the split and deal its training groups, whole, to the adapter and to the head.

    A head that trained on vectors whose labels shaped them would trust them more than the
    vectors of new sequences deserve.

    Raises
    ------
    BadOption, NothingToAdaptOn, BadSplit
    """
    split = _chosen(pairs, config)
    training = split.rows(TRAIN)
    groups = split.group[training]
    share = config.head_share
    head = np.zeros(len(training), bool)
    if share > 0:
        folds = min(20, len(np.unique(groups)))
        if folds < 2:
            msg = (
                f"--head-share {share}: the {len(training)} training pairs form {folds} group, "
                "which cannot be dealt to adapter and head. Give --head-share 0 and train the "
                "head with abag fit --adapter-rows train, or another split."
            )
            raise NothingToAdaptOn(msg)
        fold = grouped_folds(groups, folds, [config.seed, DEAL])
        head = fold < min(max(round(share * folds), 1), folds - 1)
    return AdapterSplit(split, training[~head], training[head], split.rows(VALIDATION))


def _chosen(pairs: LabelledPairs, config: AdaptConfig) -> Split:
    path = Path(config.split_from)
    if not path.exists():
        msg = (
            f"--split-from {path}: does not exist; expected a run, or a file like its "
            "splits.parquet. Check the path."
        )
        raise BadOption(msg)
    splits = read_splits(path / "splits.parquet" if path.is_dir() else path, pairs)
    if config.fold is None and len(splits) == 1:
        return splits[0]
    if config.fold is None or not 0 <= config.fold < len(splits):
        asked = "--fold: not given" if config.fold is None else f"--fold {config.fold}"
        msg = (
            f"{asked}; {path} holds folds 0 to {len(splits) - 1}; expected one of "
            "them, since an adapter belongs to one. Give its number."
        )
        raise BadOption(msg)
    return splits[config.fold]


def steps_per_epoch(n: int, config: AdaptConfig) -> int:
    """Count optimiser steps."""
    batches = -(-n // config.batch_size)
    return -(-batches // config.accumulate)


def make_epoch_batches(
    rows: Ints, lengths: Ints, config: AdaptConfig, epoch: int
) -> Iterator[list[Ints]]:
    """Yield each step's batches of pairs: all pairs once, like lengths together.

    Parameters
    ----------
    rows : ndarray, shape=(R,), dtype=int64
    lengths : ndarray, shape=(P,), dtype=int64
        Tokens of every pair.
    epoch : int
        With the seed it fixes the order.
    """
    rng = np.random.default_rng([config.seed, ORDER, epoch])
    shuffled, size = rng.permutation(rows), config.batch_size
    batches: list[Ints] = []
    for at in range(0, len(shuffled), BUCKET * size):
        bucket = shuffled[at : at + BUCKET * size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    mixed = [batches[i] for i in rng.permutation(len(batches))]
    for at in range(0, len(mixed), config.accumulate):
        yield mixed[at : at + config.accumulate]
