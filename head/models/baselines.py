"""Closed-form baselines, fitted to the same split and rows as the head.

Each baseline learns from the exact rows of the training part and predicts all pairs. To add one,
write its function and register it in `BASELINES`. All ridges choose their strength by inner folds
that keep the groups of the split together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, Matrix, distinct
from abag.head.data.vectors import Standardizer
from abag.head.models.one_hot import ENCODED, OneHot, common_reference
from abag.head.models.ridge import FeatureBlock, ridge
from abag.head.regimes.clusters import distance_to_parent
from abag.head.regimes.splits import TRAIN, Split, grouped_folds

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Chains
    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.labels import LabelledPairs


INNER_FOLDS = 5
NEAREST_ROWS = 1024
"""Antibodies compared with the whole training set at a time."""
MAX_PRODUCTS = 2 * 10**11
"""Products of columns above which the ridge on residues, which would take minutes, is left out."""
MAX_COMPARISONS = 10**9
"""Comparisons above which the nearest antibodies, which take minutes, are not looked for."""


@dataclass(frozen=True)
class BaselineInputs:
    """What baselines learn from and predict, with the parts that several of them share."""

    pairs: LabelledPairs
    split: Split
    antibody_ND: NDArray[np.floating]
    """One vector per unique antibody."""
    antigen_ND: NDArray[np.floating]
    """One vector per unique antigen."""
    device: torch.device | None = None
    """A GPU on which ridges are fitted; None: with numpy."""
    residues: ResidueFeatures | None = None
    """Those of the table, if other splits use them, too."""

    @cached_property
    def fit_rows(self) -> Ints:
        """Exact pairs of the training part, shape (F,)."""
        return np.flatnonzero((self.split.part == TRAIN) & (self.pairs.censored == 0))

    @cached_property
    def trained(self) -> Ints:
        """Antibodies of these pairs, shape (T,)."""
        return distinct(self.pairs.antibody[self.fit_rows])

    @cached_property
    def fold(self) -> Ints:
        """Inner fold of each of the `fit_rows`, shape (F,)."""
        return inner_folds(self.split.group[self.fit_rows])

    @cached_property
    def mutations(self) -> Ints | None:
        """Mutations of each antibody, (N,); None where most do not share their lengths."""
        return None if self._reference is None else self._residues.mutations

    @cached_property
    def nearest(self) -> Ints | None:
        """The training antibody whose vector is nearest to that of each antibody, (N,).

        None where finding it would take minutes.
        """
        if len(self.antibody_ND) * len(self.trained) > MAX_COMPARISONS:
            return None
        return _nearest(standardised(self.antibody_ND, self.trained), self.trained)

    @cached_property
    def _residues(self) -> ResidueFeatures:
        return self.residues or ResidueFeatures(self.pairs.table)

    @cached_property
    def _reference(self) -> tuple[str, str] | None:
        """What the residues of antibodies are compared with; None if their lengths differ."""
        of_pair = self.pairs.antibody[self.fit_rows]
        return common_reference(self.pairs.table.antibodies.chains, of_pair)

    def ridge(self, *blocks: FeatureBlock) -> Floats:
        """Predict every pair by a ridge on the given features, (P,)."""
        return ridge(blocks, self.pairs.pkd, self.fit_rows, self.fold, self.device)


def predict_baselines(inputs: BaselineInputs) -> dict[str, Floats]:
    """Fit each baseline to the training part and predict every pair.

    Returns
    -------
    dict of NDArray, shape=(P,), dtype=float64
        Predicted pKd by name of the baseline, in the order of `BASELINES`, without those that do
        not apply to the table. NaN over a whole part where a baseline is undefined (the mean of
        an antigen that is not in training).
    """
    predicted = {name: baseline(inputs) for name, baseline in BASELINES.items()}
    return {name: pkd for name, pkd in predicted.items() if pkd is not None}


def standardised(table_ND: NDArray[np.floating], train: Ints) -> Matrix:
    """Standardise vectors, (N, D) to float32 (N, D), as the head does.

    `train` lists the rows of the table in training; the distinct ones give the statistics.
    """
    table_ND = np.asarray(table_ND, np.float32)
    return Standardizer.of(table_ND, train).apply(table_ND)


def inner_folds(group: Ints) -> Ints:
    """Assign rows, groups (F,), to folds (F,) for choosing a ridge's strength.

    Rows of one group stay together, unless there is only one group.
    """
    groups = len(distinct(group))
    if groups == 1:
        group, groups = np.arange(len(group)), len(group)
    return grouped_folds(group, min(INNER_FOLDS, groups), seed=0)


def group_mean(group: Ints, pkd: Floats, split: Split, fit_rows: Ints) -> Floats:
    """Predict the mean label of the training rows in the same group.

    Parameters
    ----------
    group : NDArray, shape=(P,), dtype=int64
    pkd : NDArray, shape=(P,), dtype=float64
    fit_rows : NDArray, shape=(F,), dtype=int64
        Pairs to learn from.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
        A group without training rows gets the mean of all training rows. In a part that has only
        such groups the baseline is undefined, and its rows are NaN.
    """
    size = int(group.max(initial=0)) + 1
    count = np.bincount(group[fit_rows], minlength=size)
    total = np.bincount(group[fit_rows], pkd[fit_rows], minlength=size)
    seen = count[group] > 0
    mean = np.where(seen, total[group] / np.maximum(1, count[group]), pkd[fit_rows].mean())
    for part in distinct(split.part):
        rows = split.part == part
        if not seen[rows].any():
            mean[rows] = np.nan
    return mean


def _train_mean(inputs: BaselineInputs) -> Floats:
    pkd = inputs.pairs.pkd
    return np.full(len(pkd), pkd[inputs.fit_rows].mean())


def _antigen_mean(inputs: BaselineInputs) -> Floats:
    return group_mean(inputs.pairs.antigen, inputs.pairs.pkd, inputs.split, inputs.fit_rows)


def _assay_mean(inputs: BaselineInputs) -> Floats | None:
    pairs = inputs.pairs
    column = pairs.table.columns.get("assay")
    if column is None:
        return None
    assay = pd.factorize(pairs.table.frame[column].iloc[pairs.row].astype(str))[0]
    return group_mean(assay.astype(np.int64), pairs.pkd, inputs.split, inputs.fit_rows)


def _mutation_count(inputs: BaselineInputs) -> Floats | None:
    """Ridge on the number of mutations, where most antibodies share their lengths."""
    if inputs.mutations is None:
        return None
    mutations = inputs.mutations[:, None].astype(np.float32)
    return inputs.ridge(FeatureBlock(mutations, inputs.pairs.antibody))


def _parent_distance(inputs: BaselineInputs) -> Floats | None:
    """Ridge on the edits from the nearest parent, where antibodies have several.

    A parent is the consensus of the training antibodies of one cluster; the nearest is that of the
    nearest training antibody. An antibody further away than any in training counts like the
    furthest of these: it has no parent there. With a single parent see `_mutation_count`.
    """
    pairs, nearest = inputs.pairs, inputs.nearest
    if nearest is None:
        return None
    of_pair = pairs.antibody_cluster
    if of_pair is None:
        return None
    cluster = np.zeros(len(nearest), np.int64)
    cluster[pairs.antibody] = of_pair
    parent, known = cluster[nearest], nearest == np.arange(len(nearest))
    if len(distinct(parent)) == 1:
        return None
    edits = distance_to_parent(pairs.table.antibodies.chains, parent, known)
    edits = np.minimum(edits, edits[known].max())
    return inputs.ridge(FeatureBlock(edits[:, None].astype(np.float32), pairs.antibody))


def columns_for_ridge(trained: Sequence[Chains], reference: tuple[str, str]) -> OneHot | None:
    """Return a column per residue of training antibodies, for a ridge.

    Returns
    -------
    OneHot or None
        None if nothing varies, or if the ridge would take minutes. Then even the columns of a few
        antibodies are often too many, and those of all are not collected.
    """
    for size in sorted({min(ENCODED, len(trained)), len(trained)}):
        one_hot = OneHot.of(trained[:size], reference, marks_new=False)
        if one_hot is not None and len(trained) * one_hot.width**2 > MAX_PRODUCTS:
            return None
    return one_hot


def _nearest_antibody(inputs: BaselineInputs) -> Floats | None:
    """Mean label of the nearest training antibody, with the same antigen where it has labels."""
    pairs, fit_rows = inputs.pairs, inputs.fit_rows
    if inputs.nearest is None:
        return None
    nearest = inputs.nearest[pairs.antibody]
    n_antigens = int(pairs.antigen.max()) + 1
    by_antibody = pd.Series(pairs.pkd[fit_rows]).groupby(pairs.antibody[fit_rows]).mean()
    both = pairs.antibody * n_antigens + pairs.antigen
    by_both = pd.Series(pairs.pkd[fit_rows]).groupby(both[fit_rows]).mean()
    same = by_both.reindex(nearest * n_antigens + pairs.antigen).to_numpy()
    other = by_antibody.reindex(nearest).to_numpy()
    return np.where(np.isnan(same), other, same)


def _nearest(table_ND: Matrix, train: Ints) -> Ints:
    """Find the nearest training row of each row of the table; a training row is its own."""
    train_ND = table_ND[train]
    half_N = (train_ND**2).sum(1) / 2
    nearest = np.empty(len(table_ND), np.int64)
    for start in range(0, len(table_ND), NEAREST_ROWS):
        score = table_ND[start : start + NEAREST_ROWS] @ train_ND.T - half_N
        nearest[start : start + NEAREST_ROWS] = train[np.argmax(score, axis=1)]
    nearest[train] = train
    return nearest


BASELINES: dict[str, Callable[[BaselineInputs], Floats | None]] = {
    "train_mean": _train_mean,
    "antigen_mean": _antigen_mean,
    "assay_mean": _assay_mean,
    "mutation_count": _mutation_count,
    "parent_distance": _parent_distance,
    "nearest_antibody": _nearest_antibody,
}
"""Predicted pKd of every pair, (P,), by name; None where a baseline does not apply."""


class ResidueFeatures:
    """Computed once, by the first of several threads that asks."""

    def __init__(self, table: SequenceTable) -> None:
        self._table, self._lock = table, Lock()

    @property
    def mutations(self) -> Ints:
        """Edits between each antibody and the consensus of all, (N,)."""
        with self._lock:
            return self._mutations

    @cached_property
    def _mutations(self) -> Ints:
        chains = self._table.antibodies.chains
        return distance_to_parent(chains, np.zeros(len(chains), np.int64))
