"""Baselines that describe a table rather than new pairs, fitted to the same rows as the models.

Each learns from the training part of a split, by the weights of its labels, and predicts all pairs
of the table. To add one, write its function and register it in `BASELINES`. Baselines that can
predict new pairs are models, see `registry`. N antibodies, T of them in training, F training pairs,
P pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, distinct
from abag.head.labels.stored_vectors import FeatureScaling, Standardizer
from abag.head.models.pair_vectors import TrainingRows
from abag.head.models.residue_kernel import common_reference
from abag.head.models.ridge import FeatureBlock, fit_ridge
from abag.head.regimes.relations import distance_to_parent
from abag.head.regimes.splits import Split, grouped_folds

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs

INNER_FOLDS = 5
"""Folds within the training pairs of a fold, at most."""
NEAREST_ROWS = 128
"""Antibodies compared with the whole training set at a time, whose scores stay in the cache."""
MAX_COMPARISONS = 10**9
"""Comparisons above which the nearest antibodies, which take minutes, are not looked for."""


@dataclass(frozen=True)
class BaselineInputs:
    """Hold what baselines learn from, and what several of them compute."""

    training: TrainingRows
    split: Split
    mutations: Ints | None
    """Edits of each antibody from the consensus, (N,); None: their lengths differ."""

    @property
    def pairs(self) -> LabelledPairs:
        """Return all pairs of the table."""
        return self.training.pairs

    @property
    def fit_rows(self) -> Ints:
        """Return the rows that baselines learn from, (F,)."""
        return self.training.rows

    @cached_property
    def nearest(self) -> Ints | None:
        """Find the training antibody with the nearest vector, (N,); None if it takes minutes."""
        antibodies = self.training.vectors.sides["antibody"]
        trained = distinct(self.pairs.antibody[self.fit_rows])
        x_ND = antibodies.x_ND
        if len(x_ND) * len(trained) > MAX_COMPARISONS:
            return None
        z_ND = Standardizer.of(x_ND, trained, antibodies.widths).apply(x_ND)
        z_TD = z_ND[trained]
        # of several equal vectors, its own
        nearest = np.arange(len(z_ND))
        others = np.setdiff1d(nearest, trained)
        # the nearest has the largest x t - t^2 / 2: squared distances share x^2
        half_T = (z_TD**2).sum(1) / 2
        for start in range(0, len(others), NEAREST_ROWS):
            rows = others[start : start + NEAREST_ROWS]
            score = z_ND[rows] @ z_TD.T - half_T
            nearest[rows] = trained[np.argmax(score, axis=1)]
        return nearest

    def ridge(self, values: NDArray[np.integer]) -> Floats:
        """Predict every pair, (P,), by a ridge on one number per antibody, (N,)."""
        return self.ridge_of(FeatureBlock(values[:, None].astype(np.float32), self.pairs.antibody))

    def ridge_of(self, block: FeatureBlock) -> Floats:
        """Predict every pair, (P,), by a ridge on one block."""
        training = self.training
        fit = fit_ridge(
            [block], self.pairs.pkd, training.rows, training.fold, training.device, training.weight
        )
        return np.asarray(fit.intercept + (block.table_ND @ fit.weights[0])[block.index])

    def mean_of(self, group: Ints) -> Floats:
        """Predict the mean label of the same group, (P,), see `group_mean`."""
        return group_mean(group, self.pairs.pkd, self.split, self.fit_rows, self.training.weight)


def count_mutations(pairs: LabelledPairs) -> Ints | None:
    """Count the edits from the consensus, (N,); None for antibodies of different lengths."""
    chains = pairs.table.antibodies.chains
    if common_reference(chains, pairs.antibody) is None:
        return None
    return distance_to_parent(chains, np.zeros(len(chains), np.int64))


def predict_baselines(inputs: BaselineInputs) -> dict[str, Floats]:
    """Fit each baseline that applies to the training part and predict every pair, by name."""
    predicted = {name: baseline(inputs) for name, baseline in BASELINES.items()}
    return {name: pkd for name, pkd in predicted.items() if pkd is not None}


def inner_folds(group: Ints) -> Ints:
    """Assign rows, (F,), to inner folds; those of a group stay together, if there are several."""
    groups = len(distinct(group))
    if groups == 1:
        group = np.arange(len(group))
        groups = len(group)
    return grouped_folds(group, min(INNER_FOLDS, groups), seed=0)


def group_mean(
    group: Ints, pkd: Floats, split: Split, fit_rows: Ints, weight: Floats | None = None
) -> Floats:
    """Predict the mean label of the training rows in the same group, else of all, (P,).

    Rows of the group -1 are in none. `weight`, (F,), is that of the labels; None: all are alike.
    """
    size = int(group.max(initial=0)) + 1
    weight = np.ones(len(fit_rows)) if weight is None else weight
    inside = group[fit_rows] >= 0
    grouped = fit_rows[inside]
    count = np.bincount(group[grouped], weight[inside], minlength=size)
    total = np.bincount(group[grouped], weight[inside] * pkd[grouped], minlength=size)
    seen = (group >= 0) & (count[group] > 0)
    mean_of_all = np.average(pkd[fit_rows], weights=weight)
    mean = np.where(seen, total[group] / np.where(count, count, 1.0)[group], mean_of_all)
    for part in distinct(split.part):  # the mean of all would score as a mean of groups
        rows = split.part == part
        if not seen[rows].any():
            mean[rows] = np.nan
    return mean


def _antigen_mean(inputs: BaselineInputs) -> Floats | None:
    return inputs.mean_of(inputs.pairs.antigen) if "antigen" in inputs.pairs.kinds else None


def _assay_mean(inputs: BaselineInputs) -> Floats | None:
    return None if inputs.pairs.assay is None else inputs.mean_of(inputs.pairs.assay)


def _mutation_count(inputs: BaselineInputs) -> Floats | None:
    return None if inputs.mutations is None else inputs.ridge(inputs.mutations)


def _parent_distance(inputs: BaselineInputs) -> Floats | None:
    """Fit a ridge on the edits from the consensus of the nearest training antibody's cluster."""
    pairs = inputs.pairs
    nearest = inputs.nearest
    if nearest is None or pairs.antibody_cluster is None:
        return None
    cluster = np.zeros(len(nearest), np.int64)
    cluster[pairs.antibody] = pairs.antibody_cluster
    parent = cluster[nearest]
    is_trained = nearest == np.arange(len(nearest))
    if len(distinct(parent)) == 1:
        return None
    edits = distance_to_parent(pairs.table.antibodies.chains, parent, is_trained)
    return inputs.ridge(np.minimum(edits, edits[is_trained].max()))


def _features_ridge(inputs: BaselineInputs) -> Floats | None:
    """Fit a ridge on the features of pairs alone: what the vectors add is the rest."""
    features = inputs.training.vectors.features
    if features is None:
        return None
    scaling = FeatureScaling.of(features.take(inputs.fit_rows))
    z_PK = scaling.apply(features)
    return inputs.ridge_of(FeatureBlock(z_PK, np.arange(len(z_PK))))


def _nearest_antibody(inputs: BaselineInputs) -> Floats | None:
    """Predict the mean label of the nearest training antibody, with the same antigen if it can."""
    pairs = inputs.pairs
    fit_rows = inputs.fit_rows
    if inputs.nearest is None:
        return None
    nearest = inputs.nearest[pairs.antibody]
    n_antigens = int(pairs.antigen.max()) + 1
    both = pairs.antibody * n_antigens + pairs.antigen
    weight = inputs.training.weight
    labels = pd.DataFrame({"weight": 1.0 if weight is None else weight, "pkd": pairs.pkd[fit_rows]})
    labels["pkd"] *= labels["weight"]

    def means_by(group: Ints, wanted: Ints) -> Floats:
        sums = labels.groupby(group[fit_rows]).sum()
        return (sums["pkd"] / sums["weight"]).reindex(wanted).to_numpy()

    same = means_by(both, nearest * n_antigens + pairs.antigen)
    return np.where(np.isnan(same), means_by(pairs.antibody, nearest), same)


BASELINES: dict[str, Callable[[BaselineInputs], Floats | None]] = {
    "antigen_mean": _antigen_mean,
    "assay_mean": _assay_mean,
    "features_ridge": _features_ridge,
    "mutation_count": _mutation_count,
    "parent_distance": _parent_distance,
    "nearest_antibody": _nearest_antibody,
}
"""Predicted pKd of every pair, (P,), by name; None where a baseline does not apply."""
