"""Single-linkage clusters of near-duplicate strings of residues, exact.

Two strings are near-duplicates if the number of edits between them is small enough for the
identity asked for. Clusters are the connected components: no string has a near-duplicate outside
its cluster. The search skips pairs without losing any near-duplicate: each edit destroys at most
one of a string's disjoint words, and strings that already share a cluster are not compared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.head.clustering.alignment import Residues, edit_distances, hamming
from abag.head.clustering.word_index import WORD, WordIndex

Ints: TypeAlias = NDArray[np.int64]

EXTRA_WORDS = 8
"""Words looked up beyond the minimum; more of them exclude more candidates."""
BATCH_PAIRS = 16384
"""Pairs per call of the alignment, which amortises numpy's overhead."""
CHUNK_RESIDUES = 1 << 22
"""Residues compared at a time; bounds memory."""
VARIANT_DIFFERENCE = 0.1
"""Largest share of differing residues at which a string counts as a variant of another."""


def cluster(
    strings: Sequence[str],
    identity: float,
    *,
    contained: bool = False,
    queries: NDArray[np.bool_] | None = None,
) -> Ints:
    """Cluster strings by single linkage.

    Parameters
    ----------
    strings : sequence of str, length N
        Residues in upper case, none empty.
    identity : float
        Smallest identity of near-duplicates, above 0 and up to 1: one minus the edits over the
        length of the longer string, or of the shorter one if `contained`.
    contained : bool
        Align the shorter string inside the longer one; unaligned ends of the longer are free.
    queries : NDArray, shape=(N,), dtype=bool, optional
        Compare only pairs that include at least one of these strings.

    Returns
    -------
    NDArray, shape=(N,), dtype=int64
        Cluster of each string, numbered by first appearance.
    """
    if not len(strings):
        return np.zeros(0, np.int64)
    unique, index = np.unique(np.asarray(strings, dtype=object), return_inverse=True)
    is_query = np.ones(len(unique), bool)
    if queries is not None:
        is_query[:] = False
        is_query[index[queries]] = True
    order = np.argsort([len(text) for text in unique], kind="stable")
    residues = Residues.of([unique[i] for i in order])
    labels = np.empty(len(unique), np.int64)
    labels[order] = _ClusterSearch(residues, identity, contained, is_query[order]).run()
    return number_by_appearance(labels[index])


def number_by_appearance(labels: Ints) -> Ints:
    """Renumber labels in the order of their first appearance, shape (N,), dtype int64."""
    return pd.factorize(labels)[0].astype(np.int64)


def rows_by_group(group: Ints) -> list[Ints]:
    """Row indices of each group, for `group` of shape (N,); groups in ascending order of id."""
    if not len(group):
        return []
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def allowed_edits(lengths: Ints, identity: float) -> Ints:
    """Largest number of edits, shape (N,), over `lengths` residues that keeps the identity."""
    edits: Ints = np.floor((1 - identity) * lengths + 1e-9).astype(np.int64)
    return edits


class _ClusterSearch:
    """Search for connected components of strings sorted by length (i < j: j is not shorter)."""

    def __init__(
        self, residues: Residues, identity: float, contained: bool, is_query: NDArray[np.bool_]
    ) -> None:
        self.residues, self.identity, self.contained = residues, identity, contained
        self.is_query = is_query
        self.labels = np.arange(len(residues.lengths))
        self.members = [[i] for i in range(len(residues.lengths))]
        self.words = WordIndex.of(residues)
        self.bounds = _VariantBounds(residues) if contained else None

    def run(self) -> Ints:
        """Return the component of each string, shape (N,)."""
        pending: list[tuple[Ints, Ints]] = []
        n_pending = 0
        for i in range(len(self.labels)):
            candidates = self._candidates(i)
            for chunk in self._chunks(candidates):
                j = self._compare_without_alignment(i, candidates[chunk])
                pending.append((np.full(len(j), i), j))
                n_pending += len(j)
            if n_pending >= BATCH_PAIRS:
                self._align(pending)
                pending, n_pending = [], 0
        self._align(pending)
        return self.labels

    def _allowed_edits(self, i: Ints, j: Ints) -> Ints:
        """Edits up to which strings i and j, shape (K,) each, are near-duplicates."""
        return allowed_edits(self.residues.lengths[i if self.contained else j], self.identity)

    def _candidates(self, i: int) -> Ints:
        """Find later strings that could be near-duplicates of i, outside its component."""
        length = self.residues.lengths[i]
        longest = np.iinfo(np.int64).max if self.contained else int(length / self.identity + 1e-9)
        stop = int(np.searchsorted(self.residues.lengths, longest, side="right"))
        eligible = self.labels[i + 1 : stop] != self.labels[i]
        if not self.is_query[i]:
            eligible &= self.is_query[i + 1 : stop]
        n_eligible = np.count_nonzero(eligible)
        if not n_eligible:
            return np.zeros(0, np.int64)
        compared = np.array([length if self.contained else longest])
        edits = int(allowed_edits(compared, self.identity)[0])
        seeds = self.words.rare_disjoint(i)[: edits + 1 + EXTRA_WORDS]
        # Reading a posting is about 100 times cheaper than comparing a candidate.
        if len(seeds) > edits and self.words.count[seeds].sum() < 100 * n_eligible:
            eligible &= self.words.hits(seeds)[i + 1 : stop] >= len(seeds) - edits
        return np.flatnonzero(eligible) + i + 1

    def _compare_without_alignment(self, i: int, j: Ints) -> Ints:
        """Join i with those that differ in few positions; return those that need an alignment."""
        same_length = j[self.residues.lengths[j] == self.residues.lengths[i]]
        if len(same_length):
            distance = hamming(self.residues, np.array([i]), same_length)
            edits = self._allowed_edits(np.full(len(same_length), i), same_length)
            for near_duplicate in same_length[distance <= edits]:
                self._join(i, near_duplicate)
        j = j[self.labels[j] != self.labels[i]]
        if self.contained or not len(j):
            return j
        missing = self.words.lengths[j] - self.words.shared(i, j)
        return j[missing <= WORD * self._allowed_edits(np.full(len(j), i), j)]

    def _align(self, pending: list[tuple[Ints, Ints]]) -> None:
        if not pending:
            return
        i, j = (np.concatenate([pair[end] for pair in pending]) for end in (0, 1))
        for chunk in self._chunks(j):
            left, right = i[chunk], j[chunk]
            apart = self.labels[left] != self.labels[right]
            left, right = left[apart], right[apart]
            if len(left):
                for k in np.flatnonzero(self._are_near_duplicates(left, right)):
                    self._join(left[k], right[k])

    def _are_near_duplicates(self, left: Ints, right: Ints) -> NDArray[np.bool_]:
        edits = self._allowed_edits(left, right)
        if self.bounds is None:
            return edit_distances(self.residues, left, right) <= edits
        low, high = self.bounds.of(left, right)
        near = high <= edits
        unsure = np.flatnonzero((low <= edits) & ~near)
        if len(unsure):
            distance = edit_distances(self.residues, left[unsure], right[unsure], contained=True)
            near[unsure] = distance <= edits[unsure]
        return near

    def _chunks(self, j: Ints) -> list[Ints]:
        """Split indices into j so that memory is bounded whatever the lengths."""
        total = np.cumsum(self.residues.lengths[j])
        return np.split(np.arange(len(j)), np.flatnonzero(np.diff(total // CHUNK_RESIDUES)) + 1)

    def _join(self, i: int, j: int) -> None:
        small, large = self.labels[i], self.labels[j]
        if small == large:
            return
        if len(self.members[small]) > len(self.members[large]):
            small, large = large, small
        self.labels[self.members[small]] = large
        self.members[large] += self.members[small]
        self.members[small] = []


class _VariantBounds:
    """Bounds on the distance of two variants, from the distance of their parents.

    Tables hold many point mutants of few antigens. An edit of either string changes a distance by
    at most one, so one alignment decides most pairs of mutants of the same two antigens.
    """

    def __init__(self, residues: Residues) -> None:
        self.residues = residues
        self.parent = np.arange(len(residues.lengths))
        self.edits = np.zeros(len(residues.lengths), np.int64)
        """Edits between each string and its parent."""
        self.known: dict[tuple[int, int], int] = {}
        for same_length in rows_by_group(residues.lengths):
            self._assign_parents(same_length)

    def _assign_parents(self, rest: Ints) -> None:
        while len(rest):
            distance = hamming(self.residues, rest[:1], rest)
            near = distance <= VARIANT_DIFFERENCE * self.residues.lengths[rest[0]]
            self.parent[rest[near]], self.edits[rest[near]] = rest[0], distance[near]
            rest = rest[~near]

    def of(self, left: Ints, right: Ints) -> tuple[Ints, Ints]:
        """Smallest and largest possible distance of each pair, shape (K,) each."""
        ends = np.stack([self.parent[left], self.parent[right]], axis=1)
        parents, index = np.unique(ends, axis=0, return_inverse=True)
        new = np.array([pair for pair in map(tuple, parents.tolist()) if pair not in self.known])
        if len(new):
            found = edit_distances(self.residues, new[:, 0], new[:, 1], contained=True)
            self.known |= dict(zip(map(tuple, new.tolist()), found.tolist(), strict=True))
        distance = np.array([self.known[a, b] for a, b in parents.tolist()], np.int64)[index]
        slack = self.edits[left] + self.edits[right]
        return distance - slack, distance + slack
