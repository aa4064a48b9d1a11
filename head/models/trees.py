"""Extremely randomised trees: the mean of regression trees whose splits are drawn at random.

Trees find which of many columns count, and what these do together, where a kernel takes all columns
for alike. They read the residues of a side that consists of variants, as columns of 0 and 1, the
shares of residues and the lengths of another, and the features of pairs. scikit-learn grows them;
a model holds them as arrays, which predict without it. Where trees disagree, their mean is less
sure.

P pairs, F of them in training, C columns, T trees, N nodes of all trees.

References
----------
Geurts, Ernst and Wehenkel, Extremely randomized trees, Machine Learning 63, 2006.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, Matrix, checked_array
from abag.embed.tables.chains import KINDS
from abag.head.models.pair_vectors import (
    Arrays,
    FeatureScaling,
    Index,
    PairModel,
    PairVectors,
    TrainingRows,
    given_features,
)
from abag.head.models.residue_kernel import (
    LossesOf,
    SideColumns,
    columns_of,
    sides_of,
    with_residues,
)

TREES = 50
LEAST_LEAF = 2
"""Training pairs of a leaf, at least."""
MOST_TRIED = 100
"""Columns that are tried at a node, each with a random threshold, at most; a third of all if these
are fewer."""
LEAF = -1
"""Column of a node that is a leaf."""
GROWN = 6
"""Stream of the seed, beside those of `training.stack`."""
MOST_TREES = 1_000
MOST_WALKS = 1 << 18
"""Pairs x trees that are walked at a time."""
MOST_VALUES = 1 << 24
"""Pairs x columns that are joined at a time."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Hold the part of a `Trees` that is no array."""

    sides: tuple[SideColumns, ...]
    """Sides that are compared by residues; the others are shares of residues and lengths."""
    width: int
    """Number of columns."""


class _Block(NamedTuple):
    """Hold columns of the pairs that share rows of a table, such as those of antibodies."""

    table_NC: Matrix
    row_P: NDArray[np.integer]
    """Row of each pair."""


class _Passed(NamedTuple):
    """Hold the nodes that some walks pass, (Q,): the walk, the node, and its column."""

    walk_Q: Ints
    node_Q: NDArray[np.int32]
    column_Q: NDArray[np.int32]

    @classmethod
    def by_column(cls, steps: Sequence[_Passed], columns: slice) -> _Passed:
        """Join the nodes of steps that ask for some columns, in the order of these."""
        asking = []
        for step in steps:
            is_here = (step.column_Q >= columns.start) & (step.column_Q < columns.stop)
            asking.append([part[is_here] for part in step])
        joined = [np.concatenate(parts) for parts in zip(*asking, strict=True)]
        order = np.argsort(joined[-1], kind="stable")
        return cls(*(part[order] for part in joined))

    def first(self, columns: slice) -> tuple[Ints, NDArray[np.int32]]:
        """Return the walks that ask for some columns, ascending, and the first node of each, (W,).

        The nodes must be in the order of columns.
        """
        here = slice(*np.searchsorted(self.column_Q, [columns.start, columns.stop]))
        walk_Q, node_Q = self.walk_Q[here], self.node_Q[here]
        order = np.lexsort((node_Q, walk_Q))  # the next node of a tree is behind
        walk_Q, node_Q = walk_Q[order], node_Q[order]
        is_first = np.diff(walk_Q, prepend=-1) > 0
        return walk_Q[is_first], node_Q[is_first]


@dataclass(frozen=True, slots=True)
class Trees(PairModel):
    """Predict the mean of the leaves to which trees lead."""

    settings: TreeSettings
    root_T: NDArray[np.int32]
    """First node of each tree, ascending; the nodes of a tree follow one another."""
    column_N: NDArray[np.int32]
    """Column that decides at each node, or `LEAF`."""
    left_N: NDArray[np.int32]
    """Next node if the column is not above the number, behind the node itself; 0 of leaves."""
    right_N: NDArray[np.int32]
    """Next node if it is above the number."""
    number_N: Floats
    """What the column is compared with; of a leaf, the prediction in pKd."""
    features: FeatureScaling | None = None

    @property
    def compared(self) -> tuple[SideColumns, ...]:
        """Return the sides that are compared by residues."""
        return self.settings.sides

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); ValueError if the pairs have another number of columns."""
        return np.concatenate([np.zeros(0), *(leaf.mean(1) for leaf in self._leaves(vectors))])

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance between trees, (P,) in pKd^2."""
        return np.concatenate([np.zeros(0), *(leaf.var(1) for leaf in self._leaves(vectors))])

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance between trees of each pair's difference from another, (P,)."""
        leaf_PT = np.concatenate([*self._leaves(vectors)])
        return np.asarray(np.var(leaf_PT - leaf_PT[other], axis=1))

    def _leaves(self, vectors: PairVectors) -> Iterator[Floats]:
        """Yield the leaves to which trees lead P pairs, (R, T) of some pairs after the others."""
        blocks = column_blocks(vectors, self.settings.sides, self.features)
        width = sum(block.table_NC.shape[1] for block in blocks)
        if width != self.settings.width:
            msg = f"trees of {self.settings.width} columns, and pairs of {width}"
            raise ValueError(msg)
        trees = len(self.root_T)
        step = max(1, min(MOST_WALKS // trees, MOST_VALUES // width))
        for at in range(0, len(vectors), step):
            rows = np.arange(at, min(at + step, len(vectors)))
            walk_W = np.arange(len(rows) * trees)
            leaf_W = self._walk(joined_columns(blocks, rows), walk_W, self.root_T[walk_W % trees])
            yield leaf_W.reshape(-1, trees)

    def _walk(
        self,
        x_PC: Matrix,
        walk_W: Ints,
        start_W: NDArray[np.int32],
        passed: list[_Passed] | None = None,
    ) -> Floats:
        """Follow trees from some nodes to the leaves, add the nodes to `passed`; return the leaves.

        The number of a walk, (W,), is that of its pair times that of trees, plus that of its tree.
        """
        value = x_PC.reshape(-1)
        first_W = walk_W // len(self.root_T) * x_PC.shape[1]
        node_W = start_W.copy()
        walking = np.arange(len(node_W))
        while len(walking):  # by `take`, which is faster than an index
            here = node_W.take(walking)
            column = self.column_N.take(here)
            is_inside = column != LEAF
            if not is_inside.all():
                walking, here, column = walking[is_inside], here[is_inside], column[is_inside]
            if passed is not None:
                passed.append(_Passed(walk_W[walking], here, column))
            is_left = value.take(first_W.take(walking) + column) <= self.number_N.take(here)
            node_W[walking] = np.where(is_left, self.left_N.take(here), self.right_N.take(here))
        return self.number_N.take(node_W)

    def exchange_losses(self, encoded: PairVectors, side: SideColumns) -> LossesOf:
        """Return a function of what predictions lose by exchanged letters of one side.

        Trees are walked again from the first node that an exchange can change: without the letter
        of the pair, from that which asks for the place; with another, for that letter.
        """
        trees = len(self.root_T)
        blocks = column_blocks(encoded, self.settings.sides, self.features)
        x_PC = joined_columns(blocks, np.arange(len(encoded)))
        before = blocks[: KINDS.index(side.kind)]
        first = sum(block.table_NC.shape[1] for block in before)
        walk_W = np.arange(len(x_PC) * trees)
        steps = list[_Passed]()
        leaf_W = self._walk(x_PC, walk_W, self.root_T[walk_W % trees], steps)
        asking = _Passed.by_column(steps, slice(first, first + side.one_hot.width))

        def losses_of(
            own_P: NDArray[np.uint8], seen_V: NDArray[np.uint8], columns: slice
        ) -> Floats:
            here = slice(first + columns.start, first + columns.stop)
            walk_W, start_W = asking.first(here)
            if not len(walk_W):
                return np.zeros((len(own_P), len(seen_V)))
            own_PC = x_PC[:, here].copy()
            x_PC[:, here] = 0
            steps = list[_Passed]()
            without_W = self._walk(x_PC, walk_W, start_W, steps)
            asking_without = _Passed.by_column(steps, here)
            lost_P = np.bincount(walk_W // trees, leaf_W[walk_W] - without_W, len(own_P))
            loss_PV = np.repeat(lost_P[:, None], len(seen_V), axis=1)
            for number in range(len(seen_V)):  # each letter of training has a column
                column = here.start + number
                again_W, start_again_W = asking_without.first(slice(column, column + 1))
                x_PC[:, column] = 1
                with_W = self._walk(x_PC, again_W, start_again_W)
                x_PC[:, column] = 0
                lost_W = without_W[np.searchsorted(walk_W, again_W)] - with_W
                loss_PV[:, number] += np.bincount(again_W // trees, lost_W, len(own_P))
            x_PC[:, here] = own_PC
            return loss_PV / trees

        return losses_of

    def arrays(self) -> Arrays:
        """Return the nodes of the trees, and the scaling of features."""
        arrays: dict[str, NDArray[Any]] = {
            "root": self.root_T,
            "column": self.column_N,
            "left": self.left_N,
            "right": self.right_N,
            "number": self.number_N,
        }
        return arrays if self.features is None else {**arrays, **self.features.arrays()}

    @classmethod
    def load(cls, arrays: Arrays, settings: TreeSettings) -> Trees:
        """Restore from the `arrays` of a predictor; ValueError for what no fit gives."""
        root_T = checked_array(arrays, "root", (None,), np.int32)
        column_N = checked_array(arrays, "column", (None,), np.int32)
        nodes = (len(column_N),)
        left_N = checked_array(arrays, "left", nodes, np.int32)
        right_N = checked_array(arrays, "right", nodes, np.int32)
        number_N = checked_array(arrays, "number", nodes, np.float64)
        end_T = np.append(root_T[1:], len(column_N))  # int64, in which no difference overflows
        size_T = end_T - root_T
        has_roots = 0 < len(root_T) <= MOST_TREES and root_T[0] == 0
        if not has_roots or size_T.min() < 1:
            msg = (
                f"{len(root_T)} trees, whose first nodes are not in {len(column_N)} nodes in order"
            )
            raise ValueError(msg)
        node_N = np.arange(len(column_N))
        end_N = np.repeat(end_T, size_T)
        is_leaf_N = column_N == LEAF
        is_valid_N = is_leaf_N | ((column_N >= 0) & (column_N < settings.width))
        for next_N in (left_N, right_N):
            is_behind_N = (next_N > node_N) & (next_N < end_N)  # or a walk might not end
            is_valid_N &= np.where(is_leaf_N, next_N == 0, is_behind_N)
        if not is_valid_N.all():
            msg = f"node {int(is_valid_N.argmin())} of the trees leads back, out or to no column"
            raise ValueError(msg)
        features = FeatureScaling.load(arrays) if "features.mean" in arrays else None
        return cls(settings, root_T, column_N, left_N, right_N, number_N, features)


def column_blocks(
    vectors: PairVectors, sides: Sequence[SideColumns], features: FeatureScaling | None
) -> list[_Block]:
    """Return the columns of both sequences of pairs, and of their features if these are read."""
    residues = with_residues(vectors, sides)
    compared = {side.kind for side in sides}
    blocks = []
    for kind in vectors.sides:
        source = residues if kind in compared else vectors.composition
        side = source.sides[kind]
        blocks.append(_Block(side.x_ND, side.index))
    if features is not None:
        z_PK = features.apply(given_features(vectors))
        blocks.append(_Block(z_PK, np.arange(len(z_PK))))
    return blocks


def joined_columns(blocks: Sequence[_Block], rows: Ints) -> Matrix:
    """Return the columns of some pairs, (R, C)."""
    return np.hstack([block.table_NC[block.row_P[rows]] for block in blocks])


def fit_trees(training: TrainingRows) -> Trees:
    """Grow trees on training rows; they are the same on any number of cores."""
    from sklearn import config_context  # takes 0.6 s
    from sklearn.tree import ExtraTreeRegressor

    vectors = training.vectors
    rows = training.rows
    kinds, _ = sides_of(training)
    sides = columns_of(vectors, rows, kinds, marks_new=False)
    scaling = None
    if vectors.features is not None:
        scaling = FeatureScaling.of(vectors.features.take(rows))
    x_FC = joined_columns(column_blocks(vectors, sides, scaling), rows)
    y_F = training.pkd
    weight_F = training.weight
    tried = min(MOST_TRIED, -(-x_FC.shape[1] // 3))
    grown = []
    seeds = np.random.default_rng([training.seed, GROWN]).integers(2**31, size=TREES)
    with config_context(skip_parameter_validation=True):  # a quarter of the time of small trees
        for seed in seeds.tolist():
            tree = ExtraTreeRegressor(
                min_samples_leaf=LEAST_LEAF, max_features=tried, random_state=seed
            )
            grown.append(tree.fit(x_FC, y_F, weight_F, check_input=False).tree_)
    size_T = np.array([tree.node_count for tree in grown])
    root_T = np.cumsum(size_T) - size_T
    first_N = np.repeat(root_T, size_T)
    is_leaf_N = np.concatenate([tree.children_left for tree in grown]) < 0

    def nodes_of(name: str) -> NDArray[np.int32]:
        child_N = np.concatenate([getattr(tree, name) for tree in grown])
        return np.where(is_leaf_N, 0, child_N + first_N).astype(np.int32)

    column_N = np.concatenate([tree.feature for tree in grown])
    threshold_N = np.concatenate([tree.threshold for tree in grown])
    value_N = np.concatenate([tree.value[:, 0, 0] for tree in grown])
    return Trees(
        TreeSettings(sides, x_FC.shape[1]),
        root_T.astype(np.int32),
        np.where(is_leaf_N, LEAF, column_N).astype(np.int32),
        nodes_of("children_left"),
        nodes_of("children_right"),
        np.where(is_leaf_N, value_N, threshold_N),
        scaling,
    )
