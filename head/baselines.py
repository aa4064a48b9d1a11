"""What a head must beat: predictions in closed form, from the same split and the same rows.

Each baseline learns from the exact rows of the training part and predicts every row. All ridges
are one method on different inputs, their strength chosen by inner folds that keep the split's
groups whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import linalg, sparse

from abag import AbagError
from abag.head.clusters import distance_to_parent
from abag.head.splits import TRAIN, Split, grouped_folds
from abag.head.table import Statistics

if TYPE_CHECKING:
    from abag.head.table import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Matrix: TypeAlias = NDArray[np.float32]

INNER_FOLDS = 5
CHUNK = 8192
"""Unique sequences taken to float64 at a time."""
STRENGTHS = np.logspace(-4, 3, 8)
"""Ridge strengths, in units of the mean eigenvalue of the training rows' scatter matrix."""


RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
SHARED_LENGTH = 0.5
"""Positions mean something where at least this share of the pairs has one length."""
NEAREST_ROWS = 1024
"""Antibodies compared with all of training at a time."""
MOST_COMPARED = 10**9
"""Above this many comparisons the nearest antibody is not looked for: it would take minutes."""


class NothingToLearn(AbagError):
    """The training part holds no exact label."""


@dataclass(frozen=True, slots=True)
class Block:
    """One input of a ridge: a vector for each unique sequence and the sequence of each pair."""

    table_ND: Matrix
    index: Ints


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
    antibody = Block(standardised(antibody_ND, pairs.antibody[fit_rows]), pairs.antibody)
    antigen = Block(standardised(antigen_ND, pairs.antigen[fit_rows]), pairs.antigen)
    fold = inner_folds(split.group[fit_rows])
    inputs = {
        "ridge": [antibody, antigen],
        "antibody_ridge": [antibody],
        "antigen_ridge": [antigen],
        "composition_ridge": _composition(pairs, fit_rows),
        **_of_variants(pairs, fit_rows),
    }
    return {
        "train_mean": np.full(len(pairs.pkd), pairs.pkd[fit_rows].mean()),
        **_group_means(pairs, split, fit_rows),
        **{name: ridge(blocks, pairs.pkd, fit_rows, fold) for name, blocks in inputs.items()},
        **_nearest_antibody(pairs, fit_rows, antibody.table_ND),
    }


def standardised(table_ND: NDArray[np.floating], seen: Ints) -> Matrix:
    """Standardise a table as the head does: statistics over the unique sequences in ``seen``."""
    table_ND = np.asarray(table_ND, np.float32)
    return Statistics.of(table_ND[np.unique(seen)]).apply(table_ND)


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


def _composition(pairs: LabelledPairs, fit_rows: Ints) -> list[Block]:
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
        blocks.append(Block(table, index))
    return blocks


def _of_variants(pairs: LabelledPairs, fit_rows: Ints) -> dict[str, list[Block]]:
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
    return {
        "one_hot_ridge": [Block(one_hot, pairs.antibody)],
        "mutation_count": [Block(counted, pairs.antibody)],
    }


def _one_hot(chains: Sequence[tuple[str, ...]], usual: NDArray[np.bool_], seen: Ints) -> Matrix:
    """One column for each residue that varies in training at a position.

    Antibodies of another length share one column of their own: what the residues mean there is
    not known.
    """
    rows = np.flatnonzero(usual)
    text = "".join("".join(chains[i]) for i in rows.tolist()).encode()
    residues = np.frombuffer(text, np.uint8).reshape(len(rows), -1)
    columns = []
    known = residues[np.isin(rows, seen)]
    for position in range(residues.shape[1] if len(known) else 0):
        letters = np.unique(known[:, position])
        columns += [residues[:, position] == x for x in (letters if len(letters) > 1 else ())]
    table = np.zeros((len(chains), len(columns) + 1), np.float32)
    table[rows, :-1] = np.array(columns, np.float32).T.reshape(len(rows), len(columns))
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


def ridge(blocks: Sequence[Block], pkd: Floats, fit_rows: Ints, fold: Ints) -> Floats:
    """Ridge regression on the joined vectors of each pair, its strength chosen by inner folds.

    Parameters
    ----------
    blocks : sequence of Block
        The inputs, standardised. No row per pair is ever built from them.
    pkd : NDArray, shape=(P,), dtype=float64
    fit_rows : NDArray, shape=(F,), dtype=int64
        Pairs to learn from.
    fold : NDArray, shape=(F,), dtype=int64
        Inner fold of each of them.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
        Prediction for every pair.
    """
    blocks = [_rotated(block, fit_rows) for block in blocks]
    n_folds = int(fold.max()) + 1
    parts = [_moments(blocks, pkd, fit_rows[fold == k]) for k in range(n_folds)]
    total = sum(parts[1:], parts[0])
    error = np.zeros(len(STRENGTHS))
    for k in range(n_folds if n_folds > 1 else 0):
        rows = fit_rows[fold == k]
        predicted = _predict(blocks, *(total - parts[k]).solve(STRENGTHS), rows)
        error += ((predicted - pkd[rows, None]) ** 2).sum(0)
    # The strongest of equals: with one fold or pure noise, the mean.
    best = len(STRENGTHS) - 1 - int(np.argmin(error[::-1]))
    weights, intercept = total.solve(STRENGTHS[[best]])
    return _predict(blocks, weights, intercept, np.arange(len(pkd)))[:, 0]


@dataclass(frozen=True, slots=True)
class _Moments:
    """Sums over rows from which a ridge of any strength follows; they add over folds."""

    n: int
    x_D: Floats
    y: float
    xx_DD: Floats
    xy_D: Floats

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.n + other.n,
            self.x_D + other.x_D,
            self.y + other.y,
            self.xx_DD + other.xx_DD,
            self.xy_D + other.xy_D,
        )

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.n - other.n,
            self.x_D - other.x_D,
            self.y - other.y,
            self.xx_DD - other.xx_DD,
            self.xy_D - other.xy_D,
        )

    def solve(self, strengths: Floats) -> tuple[Floats, Floats]:
        """Weights (D, S) and intercepts (S,), the intercept free of the penalty."""
        x_mean, y_mean = self.x_D / self.n, self.y / self.n
        scatter = self.xx_DD - self.n * np.outer(x_mean, x_mean)
        target = self.xy_D - self.n * x_mean * y_mean
        unit = np.trace(scatter) / min(self.n, len(target)) or 1.0
        identity = np.eye(len(target))
        weights = np.stack(
            [
                linalg.solve(scatter + s * unit * identity, target, assume_a="pos")
                for s in strengths
            ],
            axis=1,
        )
        return weights, y_mean - x_mean @ weights


def _rotated(block: Block, fit_rows: Ints) -> Block:
    """Express vectors in the span of the training sequences, when those are fewer than columns.

    Ridge gives directions outside that span no weight, so nothing is lost.
    """
    train_ND = block.table_ND[np.unique(block.index[fit_rows])]
    if len(train_ND) >= train_ND.shape[1]:
        return block
    basis_DN, _ = np.linalg.qr(train_ND.T)
    return Block(block.table_ND @ basis_DN, block.index)


def _moments(blocks: Sequence[Block], pkd: Floats, rows: Ints) -> _Moments:
    """Sum over the rows by way of the unique sequences: no vector per pair, ever."""
    y = pkd[rows]
    # A third block of one constant column makes the plain sums cross products too.
    ones = Block(np.ones((1, 1), np.float32), np.zeros(len(pkd), np.int64))
    full = [*blocks, ones]
    xx_DD = np.block([[_cross(a, b, rows, None) for b in full] for a in blocks])
    xy_D = np.concatenate([_cross(a, ones, rows, y)[:, 0] for a in blocks])
    return _Moments(len(rows), xx_DD[:, -1], float(y.sum()), xx_DD[:, :-1], xy_D)


def _cross(left: Block, right: Block, rows: Ints, weight: Floats | None) -> Floats:
    """Sum over rows of the outer product of their left and right vectors, in float64."""
    ends = (left.index[rows], right.index[rows])
    values = np.ones(len(rows)) if weight is None else weight
    pairs = sparse.coo_array((values, ends), (len(left.table_ND), len(right.table_ND))).tocsr()
    total = np.zeros((left.table_ND.shape[1], right.table_ND.shape[1]))
    for start in range(0, len(left.table_ND), CHUNK):
        chunk = pairs[start : start + CHUNK]
        seen, at = np.unique(chunk.indices, return_inverse=True)
        chunk = sparse.csr_array((chunk.data, at, chunk.indptr), (chunk.shape[0], len(seen)))
        left_ND = left.table_ND[start : start + CHUNK].astype(np.float64)
        total += left_ND.T @ (chunk @ right.table_ND[seen].astype(np.float64))
    return total


def _predict(
    blocks: Sequence[Block], weights_DS: Floats, intercept_S: Floats, rows: Ints
) -> Floats:
    predicted = np.tile(intercept_S, (len(rows), 1))
    start = 0
    for block in blocks:
        stop = start + block.table_ND.shape[1]
        seen, at = np.unique(block.index[rows], return_inverse=True)
        predicted += (block.table_ND[seen] @ weights_DS[start:stop])[at]
        start = stop
    return predicted
