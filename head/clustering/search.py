"""Search for the connected components of near-duplicates, exact, at several identities at once.

Two kinds of pairs are skipped without losing a near-duplicate: those whose profiles differ too much
(see `profiles`), and those that already share a component at every identity where they could be
near-duplicates.

Legend: N strings, K identities, C rows and B columns of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.head.clustering.alignment import Aligners, whole_distances
from abag.head.clustering.families import Families
from abag.head.clustering.profiles import BITS_PER_EDIT, BITS_PER_LOSS, Neighbours, Profiles

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Strings: TypeAlias = NDArray[np.object_]
Progress: TypeAlias = Callable[[int], object]

BATCH_PAIRS = 1 << 17
"""Pairs that are aligned before it is checked which others are still worth it."""
CHUNK, BLOCK = 4096, 128
"""Rows and columns of pairs whose profiles are compared at a time; they bound memory."""
MEMBER_PAIRS = 1 << 20
"""Pairs with the members of families that are decided at a time."""


class Search:
    """Components of N strings at K identities.

    Attributes
    ----------
    order : NDArray, shape=(N,), dtype=int64
        Where the strings of this object were in the argument; all indices refer to this order.
    labels_KN : NDArray, shape=(K, N), dtype=int64
        Component of each string at each identity.
    """

    def __init__(
        self, strings: Strings, identities: Sequence[float], is_query: Bools, order: Ints
    ) -> None:
        self.order, self.strings, self.is_query = order, strings[order], is_query[order]
        lengths = np.array([len(text) for text in self.strings])
        shares = 1 - np.array(identities)
        self.edits_KN: Ints = np.floor(shares[:, None] * lengths + 1e-9).astype(np.int64)
        self.edits_N: Ints = self.edits_KN.max(axis=0)
        self.labels_KN = np.tile(np.arange(len(order)), (len(identities), 1))
        # Strings that share their component here share it at all identities.
        self.labels_N = self.labels_KN[np.argmax(identities)]

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """Edits up to which the pairs i < j are near-duplicates, shape (K, pairs)."""
        raise NotImplementedError

    def undecided(self, i: Ints, j: Ints, least: Ints) -> Bools:
        """Which pairs, of at least `least` edits, could still join components, shape (pairs,)."""
        apart_K = self.labels_KN[:, i] != self.labels_KN[:, j]
        apart_K &= least <= self.allowed(i, j)
        return np.asarray(apart_K.any(axis=0) & (self.is_query[i] | self.is_query[j]))

    def join(self, i: Ints, j: Ints, distance: Ints) -> None:
        """Join the components of the pairs that are near-duplicates."""
        for labels, allowed in zip(self.labels_KN, self.allowed(i, j), strict=True):
            near = (distance <= allowed) & (labels[i] != labels[j])
            if not near.any():
                continue
            used, ends = np.unique(labels[np.stack([i[near], j[near]])], return_inverse=True)
            graph = sparse.coo_array((np.ones(ends.shape[1]), tuple(ends)), 2 * used.shape)
            _, joined = sparse.csgraph.connected_components(graph, directed=False)
            _, first = np.unique(joined, return_index=True)
            rename = np.arange(len(labels))
            rename[used] = used[first][joined]
            labels[:] = rename[labels]


class WholeSearch(Search):
    """Near-duplicates by the edit distance of whole strings, relative to the longer one."""

    def __init__(self, strings: Strings, identities: Sequence[float], is_query: Bools) -> None:
        self._neighbours = Neighbours(Profiles(strings.tolist()), len(strings))
        super().__init__(strings, identities, is_query, self._neighbours.order)

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """See `Search`."""
        return np.maximum(self.edits_KN[:, i], self.edits_KN[:, j])

    def run(self, progress: Progress) -> None:
        """Find all components; `progress` gets the number of strings that are finished."""
        most = int(self.edits_N.max())
        for block, rest in self._neighbours.blocks(most):
            label = self.labels_N[block[0]]
            if (self.labels_N[block] == label).all():
                rest = rest[self.labels_N[rest] != label]
            for start in range(0, len(rest), CHUNK):
                self._compare(block, rest[start : start + CHUNK], most)
            progress(len(block))

    def _compare(self, block: Ints, rest: Ints, most: int) -> None:
        differing_CB = self._neighbours.profiles.differing(rest, block)
        possible_CB = differing_CB <= BITS_PER_EDIT * most
        possible_CB &= self.labels_N[rest][:, None] != self.labels_N[block]
        possible_CB &= rest[:, None] > block
        j, i = np.nonzero(possible_CB)
        least = -(-differing_CB[j, i].astype(np.int64) // BITS_PER_EDIT)
        # First the likely near-duplicates, which make others superfluous.
        closest = np.argsort(least, kind="stable")
        i, j, least = block[i[closest]], rest[j[closest]], least[closest]
        for start in range(0, len(i), BATCH_PAIRS):
            left, right = i[start : start + BATCH_PAIRS], j[start : start + BATCH_PAIRS]
            wanted = self.undecided(left, right, least[start : start + BATCH_PAIRS])
            left, right = left[wanted], right[wanted]
            self.join(left, right, whole_distances(self.strings, left, right, most))


class ContainedSearch(Search):
    """Near-duplicates by the edits that align the shorter string inside the longer one.

    Tables hold many point mutants of few antigens. Each string is compared with one parent per
    family of mutants, and with the other members only where that decides nothing.
    """

    def __init__(self, strings: Strings, identities: Sequence[float], is_query: Bools) -> None:
        lengths = [len(text) for text in strings]
        super().__init__(strings, identities, is_query, np.argsort(lengths, kind="stable"))
        self._profiles = Profiles(self.strings.tolist())
        self._families = Families.of(self.strings)
        self._aligners = Aligners(self.strings.tolist())

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """See `Search`."""
        return self.edits_KN[:, i]

    def run(self, progress: Progress) -> None:
        """Find all components; `progress` gets the number of strings that are finished."""
        families = self._families
        parent = np.repeat(families.parent, families.size)  # the first member of each
        self.join(parent, families.members, families.differing)
        queue: list[tuple[Ints, Ints]] = []
        with self._aligners:
            for start in range(0, len(families.parent), BLOCK):
                block = np.arange(start, min(start + BLOCK, len(families.parent)))
                stop = int(families.last[block].max())
                for first in range(0, stop, CHUNK):
                    queue.append(self._possible(np.arange(first, min(first + CHUNK, stop)), block))
                    if sum(len(i) for i, _ in queue) >= BATCH_PAIRS:
                        self._compare(queue)
                progress(int(families.size[block].sum()))
            if queue:
                self._compare(queue)

    def _possible(self, rows: Ints, block: Ints) -> tuple[Ints, Ints]:
        """Pairs of a string and a family that may contain near-duplicates."""
        families = self._families
        parents = families.parent[block]
        lost_CB = self._profiles.lost(rows, parents)
        possible_CB = lost_CB <= BITS_PER_LOSS * (
            self.edits_N[rows][:, None] + self._families.radius[block]
        )
        possible_CB &= rows[:, None] < families.last[block]
        mixed_B = ~self._uniform(block)
        possible_CB &= (self.labels_N[rows][:, None] != self.labels_N[parents]) | mixed_B
        i, at = np.nonzero(possible_CB)
        return rows[i], block[at]

    def _uniform(self, block: Ints) -> Bools:
        """Which families lie within one component, shape (B,)."""
        pair, at = self._families.member_pairs(block, block)
        labels = self.labels_N[self._families.members[at]]
        differs = labels != self.labels_N[self._families.parent[block]][pair]
        return np.asarray(np.bincount(pair, differs, len(block)) == 0)

    def _compare(self, queue: list[tuple[Ints, Ints]]) -> None:
        """Align the queued strings with the parents, and empty the queue."""
        i, family = (np.concatenate(ends) for ends in zip(*queue, strict=True))
        queue.clear()
        distance = self._aligners.distances(i, self._families.parent[family])
        pairs = np.cumsum(self._families.size[family])
        for part in np.split(np.arange(len(i)), np.flatnonzero(np.diff(pairs // MEMBER_PAIRS)) + 1):
            self._compare_members(i[part], family[part], distance[part])

    def _compare_members(self, i: Ints, family: Ints, to_parent: Ints) -> None:
        """Decide the pairs of strings and members of families, given the distance to the parent."""
        pair, at = self._families.member_pairs(i, family)
        i, j = i[pair], self._families.members[at]
        # An edit of either string changes their distance by at most one.
        slack, distance = self._families.differing[at], to_parent[pair]
        wanted = (i < j) & self.undecided(i, j, distance - slack)
        i, j, slack, distance = i[wanted], j[wanted], slack[wanted], distance[wanted]
        self.join(i, j, distance + slack)
        unsure = np.flatnonzero(slack)
        unsure = unsure[self.undecided(i[unsure], j[unsure], (distance - slack)[unsure])]
        i, j = i[unsure], j[unsure]
        self.join(i, j, self._aligners.distances(i, j))
