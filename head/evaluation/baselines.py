"""What a head must beat: predictions in closed form, from the same split and the same rows.

Each baseline learns from the exact rows of the training part and predicts every row. All ridges
are one method on different inputs, their strength chosen by inner folds that keep the split's
groups whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.head.clustering.linkage import distance_to_parent
from abag.head.data.scaling import Standardizer
from abag.head.data.splits import TRAIN, Split, grouped_folds
from abag.head.evaluation.ridge import FeatureBlock, Floats, Ints, Matrix, ridge, ridges

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

INNER_FOLDS = 5
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
SHARED_LENGTH = 0.5
"""Positions mean something where at least this share of the pairs has one length."""
NEAREST_ROWS = 1024
"""Antibodies compared with all of training at a time."""
MOST_SUMMED = 2 * 10**11
"""Above this many products of columns a ridge on residues is left out: it would take minutes."""
MOST_COMPARED = 10**9
"""Above this many comparisons the nearest antibody is not looked for: it would take minutes."""


class NothingToLearn(AbagError):
    """The training part holds no exact label."""


def baselines(
    pairs: LabelledPairs,
    split: Split,
    antibody_ND: NDArray[np.floating],
    antigen_ND: NDArray[np.floating],
) -> dict[str, Floats]:
    """Predict every pair with each baseline.

    Parameters
    ----------
    pairs : LabelledPairs
    split : Split
    antibody_ND : NDArray, shape=(unique antibodies, D)
    antigen_ND : NDArray, shape=(unique antigens, D)

    Returns
    -------
    dict of NDArray, shape=(P,), dtype=float64
        Predicted pKd by name of the baseline; NaN over a whole part where it is not defined
        (the mean of an antigen that training never saw).
    """
    fit_rows = np.flatnonzero((split.part == TRAIN) & (pairs.censored == 0))
    if not len(fit_rows):
        msg = f"split {split.name}: training holds censored labels only; expected exact ones too."
        raise NothingToLearn(msg)
    antibody = FeatureBlock(standardised(antibody_ND, pairs.antibody[fit_rows]), pairs.antibody)
    antigen = FeatureBlock(standardised(antigen_ND, pairs.antigen[fit_rows]), pairs.antigen)
    fold = inner_folds(split.group[fit_rows])
    of_vectors = {"ridge": (0, 1), "antibody_ridge": (0,), "antigen_ridge": (1,)}
    ridges_of_vectors = ridges([antibody, antigen], pairs.pkd, fit_rows, fold, of_vectors.values())
    others = {
        "composition_ridge": _composition(pairs, fit_rows),
        **_of_variants(pairs, fit_rows),
    }
    return {
        "train_mean": np.full(len(pairs.pkd), pairs.pkd[fit_rows].mean()),
        **_group_means(pairs, split, fit_rows),
        **dict(zip(of_vectors, ridges_of_vectors, strict=True)),
        **{name: ridge(blocks, pairs.pkd, fit_rows, fold) for name, blocks in others.items()},
        **_nearest_antibody(pairs, fit_rows, antibody.table_ND),
    }


def standardised(table_ND: NDArray[np.floating], seen: Ints) -> Matrix:
    """Standardise a table as the head does: statistics over the unique sequences in ``seen``."""
    table_ND = np.asarray(table_ND, np.float32)
    return Standardizer.of(table_ND[np.unique(seen)]).apply(table_ND)


def inner_folds(group: Ints) -> Ints:
    """Folds for choosing a strength, groups whole; by single rows when there is one group."""
    groups = len(np.unique(group))
    if groups == 1:
        group, groups = np.arange(len(group)), len(group)
    return grouped_folds(group, min(INNER_FOLDS, groups), seed=0)


def _group_means(pairs: LabelledPairs, split: Split, fit_rows: Ints) -> dict[str, Floats]:
    groups = {"antigen_mean": pairs.antigen}
    assay = pairs.table.columns.get("assay")
    if assay is not None:
        values = pairs.table.frame[assay].iloc[pairs.row].astype(str)
        groups["assay_mean"] = pd.factorize(values)[0].astype(np.int64)
    return {n: group_mean(group, pairs.pkd, split, fit_rows) for n, group in groups.items()}


def _composition(pairs: LabelledPairs, fit_rows: Ints) -> list[FeatureBlock]:
    """Share of each residue and length of each chain: what needs no model at all."""
    blocks = []
    sides = ((pairs.table.antibodies, pairs.antibody), (pairs.table.antigens, pairs.antigen))
    for unique, index in sides:
        # Antibody chains keep their places; an antigen's are counted together.
        places = range(2) if unique.kind == "antibody" else (slice(None),)
        counts = [
            np.array([[text.count(letter) for letter in RESIDUES] for text in texts], np.float32)
            for place in places
            for texts in [["".join(chains[place]) for chains in unique.chains]]
        ]
        lengths = [count.sum(1, keepdims=True) for count in counts]
        shares = [c / np.maximum(1, n) for c, n in zip(counts, lengths, strict=True)]
        table = standardised(np.hstack([*shares, *lengths]), index[fit_rows])
        blocks.append(FeatureBlock(table, index))
    return blocks


def _of_variants(pairs: LabelledPairs, fit_rows: Ints) -> dict[str, list[FeatureBlock]]:
    """Residues by position, and the number of mutations, where most variants share a length."""
    chains = pairs.table.antibodies.chains
    lengths = [tuple(map(len, antibody)) for antibody in chains]
    usual, count = Counter(lengths[i] for i in pairs.antibody).most_common(1)[0]
    if count < SHARED_LENGTH * len(pairs.pkd):
        return {}
    seen = np.unique(pairs.antibody[fit_rows])
    one_hot = _one_hot(chains, np.array([length == usual for length in lengths]), seen)
    mutations = distance_to_parent(chains, np.zeros(len(chains), np.int64))
    counted = mutations[:, None].astype(np.float32)
    found = {"mutation_count": [FeatureBlock(counted, pairs.antibody)]}
    if len(seen) * one_hot.shape[1] ** 2 <= MOST_SUMMED:
        found["one_hot_ridge"] = [FeatureBlock(one_hot, pairs.antibody)]
    return found


def _one_hot(chains: Sequence[tuple[str, ...]], usual: NDArray[np.bool_], seen: Ints) -> Matrix:
    """One column for each residue that varies in training at a position.

    Antibodies of another length share one column of their own: what the residues mean there is
    not known.
    """
    rows = np.flatnonzero(usual)
    text = "".join("".join(chains[i]) for i in rows.tolist()).encode()
    residues = np.frombuffer(text, np.uint8).reshape(len(rows), -1)
    known = residues[np.isin(rows, seen)]
    column_of, count = np.full((residues.shape[1], 256), -1), 0
    for position in range(residues.shape[1] if len(known) else 0):
        letters = np.unique(known[:, position])
        if len(letters) > 1:
            column_of[position, letters] = count + np.arange(len(letters))
            count += len(letters)
    table = np.zeros((len(chains), count + 1), np.float32)
    for position, letters in enumerate(residues.T):
        columns = column_of[position, letters]
        table[rows[columns >= 0], columns[columns >= 0]] = 1
    table[~usual, -1] = 1
    return table


def _nearest_antibody(
    pairs: LabelledPairs, fit_rows: Ints, antibody_ND: Matrix
) -> dict[str, Floats]:
    """Mean label of the training antibody nearest by vector, for the same antigen if it has one."""
    seen = np.unique(pairs.antibody[fit_rows])
    if len(antibody_ND) * len(seen) > MOST_COMPARED:
        return {}
    nearest = _nearest(antibody_ND, seen)[pairs.antibody]
    n_antigens = int(pairs.antigen.max()) + 1
    by_antibody = pd.Series(pairs.pkd[fit_rows]).groupby(pairs.antibody[fit_rows]).mean()
    both = pairs.antibody * n_antigens + pairs.antigen
    by_both = pd.Series(pairs.pkd[fit_rows]).groupby(both[fit_rows]).mean()
    same = by_both.reindex(nearest * n_antigens + pairs.antigen).to_numpy()
    other = by_antibody.reindex(nearest).to_numpy()
    return {"nearest_antibody": np.where(np.isnan(same), other, same)}


def _nearest(table_ND: Matrix, seen: Ints) -> Ints:
    """For each row of the table the closest of the rows ``seen``, itself if it is one."""
    train_ND = table_ND[seen]
    half_N = (train_ND**2).sum(1) / 2
    nearest = np.empty(len(table_ND), np.int64)
    for start in range(0, len(table_ND), NEAREST_ROWS):
        score = table_ND[start : start + NEAREST_ROWS] @ train_ND.T - half_N
        nearest[start : start + NEAREST_ROWS] = seen[np.argmax(score, axis=1)]
    nearest[seen] = seen
    return nearest


def group_mean(group: Ints, pkd: Floats, split: Split, fit_rows: Ints) -> Floats:
    """Mean of the training rows of the same group.

    A group that training never saw gets the training mean, but a part without any seen group is
    NaN throughout: there the baseline is not defined.
    """
    size = int(group.max(initial=0)) + 1
    count = np.bincount(group[fit_rows], minlength=size)
    total = np.bincount(group[fit_rows], pkd[fit_rows], minlength=size)
    seen = count[group] > 0
    mean = np.where(seen, total[group] / np.maximum(1, count[group]), pkd[fit_rows].mean())
    for part in np.unique(split.part):
        rows = split.part == part
        if not seen[rows].any():
            mean[rows] = np.nan
    return mean
