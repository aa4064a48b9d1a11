"""Connected components of near-duplicates, exact.

Two kinds of pairs are skipped without losing a near-duplicate: those that lower bounds exclude (see
`alignment`), and those that already share a component. Strings are sorted so that neighbours are
similar, and neighbours are compared first: in a library of variants this joins nearly all.

Legend: N strings, K pairs, C rows and B columns of a block of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from abag.core.arrays import Bools, Ints
from abag.core.cores import count_cores
from abag.core.messages import bar
from abag.head.regimes.alignment import (
    BITS_PER_EDIT,
    ROUNDING,
    Profiles,
    Strings,
    contained_bounds,
    contained_distances,
    whole_distances,
)

NEIGHBOURS = 8
"""Others with which each string is compared before all pairs are."""
ROWS, COLUMNS = 512, 4096
"""Sides of a block of pairs; they limit memory."""
BATCH_PAIRS = 1 << 15
"""Pairs that are aligned before it is looked which others are still worth it."""
VARIANT_DIFFERENCE = 0.03
"""Largest share of positions at which a member differs from the parent of its family."""
MEMBER_PAIRS = 1 << 20
"""Pairs of members of families that are decided at a time."""


class Components:
    """Components of N strings, joined by the pairs i < j that are near-duplicates.

    A subclass says which pairs could be near-duplicates, and decides which of them are.
    """

    def __init__(self, strings: Strings, identity: float) -> None:
        self.strings = strings
        self.lengths = np.array([len(text) for text in strings])
        self.edits = np.floor((1 - identity) * self.lengths + 1e-9).astype(np.int64)
        self.labels = np.arange(len(strings))

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """Edits up to which pairs are near-duplicates: relative to the longer string."""
        return np.maximum(self.edits[i], self.edits[j])

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """Lower bounds on the edits between each of C strings i and each of B strings j, (C, B)."""
        raise NotImplementedError

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """Lower bounds for K pairs that take more time than `bounds`, but less than aligning."""
        return np.zeros(len(i), np.int64)

    def decide(self, i: Ints, j: Ints) -> None:
        """Join the components of the near-duplicates among K pairs."""
        allowed = self.allowed(i, j)
        found = whole_distances(self.strings[i], self.strings[j], int(allowed.max(initial=0)))
        self.join(i, j, found <= allowed)

    def join(self, i: Ints, j: Ints, near: Bools) -> None:
        """Join the components of those of K pairs that are near-duplicates."""
        if near.any():
            ends = self.labels[i[near]], self.labels[j[near]]
            graph = sparse.coo_array((np.ones(len(ends[0])), ends), 2 * self.labels.shape)
            joined = sparse.csgraph.connected_components(graph, directed=False)[1]
            self.labels = joined[self.labels]

    def find(self, first: int | None = None) -> Ints:
        """Return the component of each string, comparing the pairs with one of the first ones."""
        n = len(self.strings)
        first = n if first is None else first
        for step in range(1, NEIGHBOURS + 1):
            i = np.arange(min(first, n - step))
            self._decide_open(i, i + step)
        blocks = [
            (np.arange(row, min(row + ROWS, first)), np.arange(column, min(column + COLUMNS, n)))
            for row in range(0, first, ROWS)
            for column in range(row, n, COLUMNS)
        ]
        with bar(desc="clusters", total=len(blocks), unit=" tiles", delay=2) as drawn:
            for i, j, least in self._candidates(blocks, drawn):
                order = np.argsort(least, kind="stable")  # the closest make others superfluous
                for at in range(0, len(order), BATCH_PAIRS):
                    batch = order[at : at + BATCH_PAIRS]
                    self._decide_open(i[batch], j[batch])
        return self.labels

    def _decide_open(self, i: Ints, j: Ints) -> None:
        apart = self.labels[i] != self.labels[j]
        if apart.any():
            self.decide(i[apart], j[apart])

    def _candidates(
        self, blocks: Sequence[tuple[Ints, Ints]], drawn: object
    ) -> Iterator[tuple[Ints, ...]]:
        """Yield pairs that could be near-duplicates, with lower bounds, block after block.

        Blocks side by side, one thread each, took 10 s for 110,000 antibodies on 16 cores; one
        after the other on all cores 24 s. Few are begun at a time, because all found pairs wait.
        """
        cores = count_cores()
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(cores) as threads:
            for at in range(0, len(blocks), cores):
                for found in threads.map(self._possible, blocks[at : at + cores]):
                    drawn.update()  # type: ignore[attr-defined]
                    yield found

    def _possible(self, block: tuple[Ints, Ints]) -> tuple[Ints, ...]:
        rows, columns = block
        labels = self.labels  # others join meanwhile: at worst, a pair is found in vain
        if (labels[rows] == labels[rows[0]]).all():
            columns = columns[labels[columns] != labels[rows[0]]]
        if not len(columns):
            return (columns,) * 3
        most = self.allowed(rows[:, None], columns[None]).max()
        at_C, at_B = np.nonzero(self.bounds(rows, columns) <= most)
        i, j = rows[at_C], columns[at_B]
        apart = (i < j) & (labels[i] != labels[j])
        i, j = i[apart], j[apart]
        least = self.tighter(i, j)
        possible = least <= self.allowed(i, j)
        return i[possible], j[possible], least[possible]


class WholeStrings(Components):
    """Near-duplicates by the edit distance of whole strings, relative to the longer one."""

    def __init__(self, strings: Strings, identity: float) -> None:
        super().__init__(strings, identity)
        self._profiles = Profiles(strings, int(self.edits.max()))

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """See `Components`."""
        distance_CB = self._profiles.distances(i, j)
        distance_CB -= ROUNDING
        distance_CB /= BITS_PER_EDIT
        return distance_CB

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """See `Components`."""
        return np.asarray(-(-self._profiles.differing(i, j) // BITS_PER_EDIT))


class ContainedStrings(Components):
    """Near-duplicates by the edits that align the shorter string inside the longer one.

    `strings`, (N,), are sorted by length; of two of one length the first is aligned. Tables hold
    many point mutants of few antigens. So what is joined are families of near-duplicates: their
    parents are compared, and other members only where that decides nothing.
    """

    def __init__(self, strings: Strings, identity: float) -> None:
        self.members, self.differing = _families(strings, min(VARIANT_DIFFERENCE, 1 - identity))
        self.every = strings
        super().__init__(strings[[members[0] for members in self.members]], identity)
        self.radius = np.array([differing.max() for differing in self.differing])

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """See `Components`; relative to the shorter string, which comes first."""
        return self.edits[i]

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """See `Components`; of the closest members."""
        slack = self.radius[i][:, None] + self.radius[j]
        return np.asarray(contained_bounds(self.strings[i], self.strings[j]) - slack)

    def decide(self, i: Ints, j: Ints) -> None:
        """See `Components`."""
        super().decide(i, j)  # aligning whole strings is faster, and enough for most
        i, j = self._apart(i, j)
        distance = contained_distances(self.strings[i], self.strings[j])
        self.join(i, j, distance <= self.allowed(i, j))
        same = self.lengths[i] == self.lengths[j]  # members may come in the other order
        back = contained_distances(self.strings[j[same]], self.strings[i[same]])
        distance[same] = np.minimum(distance[same], back)
        slack = self.radius[i] + self.radius[j]
        unsure = (slack > 0) & (distance - slack <= self.allowed(i, j))
        for one, other in zip(i[unsure].tolist(), j[unsure].tolist(), strict=True):
            if self.labels[one] != self.labels[other] and self._have_near(one, other):
                self.join(np.array([one]), np.array([other]), np.ones(1, np.bool_))

    def of_members(self) -> Ints:
        """Return the component of each of the N strings."""
        labels = np.empty(len(self.every), np.int64)
        for label, members in zip(self.labels, self.members, strict=True):
            labels[members] = label
        return labels

    def _apart(self, i: Ints, j: Ints) -> tuple[Ints, Ints]:
        apart = self.labels[i] != self.labels[j]
        return i[apart], j[apart]

    def _have_near(self, one: int, other: int) -> bool:
        """Whether any members of two families are near-duplicates."""
        pairs = np.array(np.meshgrid(self.members[one], self.members[other])).reshape(2, -1)
        first, second = np.sort(pairs, axis=0)
        for at in range(0, len(first), MEMBER_PAIRS):
            part = slice(at, at + MEMBER_PAIRS)
            found = contained_distances(self.every[first[part]], self.every[second[part]])
            if (found <= self.edits[one]).any():
                return True
        return False


def _families(strings: Strings, share: float) -> tuple[list[Ints], list[Ints]]:
    """Group strings of one length that differ from the first of a family in few positions.

    Returns the members of each family, ascending, and in how many positions they differ.
    """
    families, differences = list[Ints](), list[Ints]()
    lengths = np.array([len(text) for text in strings])
    for length in np.unique(lengths).tolist():
        free = np.flatnonzero(lengths == length)
        text = "".join(strings[free]).encode("ascii")
        residues = np.frombuffer(text, np.uint8).reshape(len(free), length)
        most = int(share * length + 1e-9)
        # so many positions differ at more than `most` in nearly all pairs of unrelated strings
        few = np.ascontiguousarray(residues[:, : 2 * (most + 1)])
        while len(free):
            near = np.flatnonzero(np.count_nonzero(few != few[0], axis=1) <= most)
            differing = np.count_nonzero(residues[near] != residues[0], axis=1)
            near, differing = near[differing <= most], differing[differing <= most]
            families.append(free[near])
            differences.append(differing)
            free, residues = np.delete(free, near), np.delete(residues, near, axis=0)
            few = np.delete(few, near, axis=0)
    return families, differences


def cluster(
    strings: Sequence[str],
    identity: float,
    *,
    contained: bool = False,
    queries: Bools | None = None,
    joined: Ints | None = None,
) -> Ints:
    """Cluster N strings, none empty, by single linkage: numbers by first appearance, (N,).

    The identity of near-duplicates is one minus the edits over the length of the longer string; if
    `contained`, those that align the shorter string inside the longer one over its length. Of whole
    strings, `queries`, (N,), limit the comparison to pairs with at least one of them, and `joined`,
    (N,), are clusters that are joined anyway, so that pairs inside them are not compared.
    """
    if not len(strings):
        return np.zeros(0, np.int64)
    unique, first, index = np.unique(
        np.asarray(strings, dtype=object), return_index=True, return_inverse=True
    )
    labels = np.empty(len(unique), np.int64)
    if contained:
        order = np.argsort([len(text) for text in unique], kind="stable")
        families = ContainedStrings(unique[order], identity)
        families.find()
        labels[order] = families.of_members()
    else:
        is_query = np.ones(len(unique), np.bool_)
        if queries is not None:
            is_query[:] = False
            is_query[index[queries]] = True
        order = np.argsort(~is_query, kind="stable")
        search = WholeStrings(unique[order], identity)
        if joined is not None:
            search.labels = number_by_appearance(joined[first][order])
        labels[order] = search.find(int(is_query.sum()))
    return number_by_appearance(labels[index])


def number_by_appearance(labels: Ints) -> Ints:
    """Renumber labels in the order of their first appearance, shape (N,), dtype int64."""
    return pd.factorize(labels)[0].astype(np.int64)


def join_clusters(n: int, groupings: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Return the components of n items that are joined by any grouping: items, group ids."""
    items, nodes, used = list[Ints](), list[Ints](), n
    for members, labels in groupings:
        items.append(members)
        nodes.append(labels + used)
        used += int(labels.max(initial=-1)) + 1
    ends = (np.concatenate(items), np.concatenate(nodes))
    graph = sparse.coo_array((np.ones(len(ends[0])), ends), (used, used))
    _, found = sparse.csgraph.connected_components(graph, directed=False)
    return number_by_appearance(found[:n])
