"""Search for the connected components of near-duplicates, exact, at several identities at once.

Two kinds of pairs are skipped without losing a near-duplicate: those that lower bounds exclude
(see `profiles` and `alignment.contained_bounds`), and those that already share a component at
every identity where they could be near-duplicates. Of strings of one length that differ in few
positions, such as point mutants, only one is compared with all others (`Families`).

Legend: N strings, K identities, C rows and B columns of a tile of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from abag.core.arrays import Bools, Ints
from abag.core.cores import count_cores
from abag.head.clustering.alignment import (
    Residues,
    Strings,
    contained_bounds,
    contained_distances,
    whole_distances,
)
from abag.head.clustering.profiles import (
    BITS_PER_EDIT,
    BITS_PER_LOSS,
    ROUNDING,
    Profiles,
    Projections,
    slices,
)

VARIANT_DIFFERENCE = 0.1
"""Largest share of positions at which a member differs from the parent of its family."""
FAMILIES = 512
"""Families of a tile, whose bounds take long: a few thousand antigens are enough for many cores."""
WORTH_BOUNDS = 0.1
"""Share of undecided pairs of a tile above which `contained_bounds` saves more than it takes."""
MEMBER_PAIRS = 1 << 20
"""Pairs with the members of families that are decided at a time."""


@dataclass(frozen=True, slots=True)
class Families:
    """N strings, each in one of F families."""

    parent: Ints
    """Index of the string that the others of a family were compared with, shape (F,)."""
    size: Ints
    """Number of members, the parent included, shape (F,)."""
    members: Ints
    """Indices of the strings, family by family and ascending, shape (N,)."""
    differing: Ints
    """Positions at which each of `members` differs from its parent, shape (N,)."""

    @classmethod
    def of(cls, strings: NDArray[np.object_]) -> Families:
        """Group strings that are sorted by length."""
        lengths = np.array([len(text) for text in strings])
        found: list[tuple[Ints, Ints]] = []
        for same_length in np.split(np.arange(len(strings)), np.flatnonzero(np.diff(lengths)) + 1):
            text = "".join(strings[same_length]).encode("ascii")
            residues = np.frombuffer(text, np.uint8).reshape(len(same_length), -1)
            found += [(same_length[of], differing) for of, differing in _families(residues)]
        members, differing = (np.concatenate(parts) for parts in zip(*found, strict=True))
        parents = np.array([family[0] for family, _ in found])
        return cls(parents, np.array([len(family) for family, _ in found]), members, differing)

    @property
    def last(self) -> Ints:
        """Index of the last member of each family, shape (F,)."""
        return self.members[np.cumsum(self.size) - 1]

    @property
    def radius(self) -> Ints:
        """Largest difference in each family, shape (F,)."""
        return np.maximum.reduceat(self.differing, np.cumsum(self.size) - self.size)

    def member_pairs(self, i: Ints, family: Ints) -> tuple[Ints, Ints]:
        """Pair each i with each member of its family; which pair, and where in `members`."""
        size = self.size[family]
        pair = np.repeat(np.arange(len(i)), size)
        begin = (np.cumsum(self.size) - self.size)[family] - (np.cumsum(size) - size)
        return pair, begin[pair] + np.arange(len(pair))


def _families(residues: NDArray[np.uint8]) -> Iterator[tuple[Ints, Ints]]:
    """Yield each family of strings of L residues, (N, L): members, and where each differs.

    The first string that is in no family yet is the parent of the next one.
    """
    most = int(VARIANT_DIFFERENCE * residues.shape[1])
    # so many positions differ at more than `most` in nearly all pairs of unrelated strings
    first_ones = np.ascontiguousarray(residues[:, : 2 * (most + 1)].T)
    is_free = np.ones(len(residues), np.bool_)
    for parent in range(len(residues)):
        if not is_free[parent]:
            continue
        differ = first_ones[:, parent:] != first_ones[:, parent, None]
        near = parent + np.flatnonzero(differ.sum(axis=0, dtype=np.int32) <= most)
        near = near[is_free[near]]
        differing = np.count_nonzero(residues[near] != residues[parent], axis=1)
        members, differing = near[differing <= most], differing[differing <= most]
        is_free[members] = False
        yield members, differing


Progress: TypeAlias = Callable[[int], object]
Pairs: TypeAlias = tuple[Ints, ...]
Tile: TypeAlias = tuple[slice, slice]

BATCH_PAIRS, QUEUE_PAIRS = 1 << 15, 1 << 17
"""Pairs, whole and contained, that are aligned before it is checked which others are worth it."""
BLOCK, CHUNK = 512, 4096
"""Sides of a tile, the pairs whose bounds are computed at a time; they limit memory."""


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

    def tiles(self) -> list[Tile]:
        """All pairs, in tiles."""
        raise NotImplementedError

    def run(self, progress: Progress) -> None:
        """Find all components; `progress` gets the number of tiles that are finished."""
        raise NotImplementedError

    def joins_up_to(self, i: Ints, j: Ints) -> Ints:
        """Edits up to which pairs i < j would join components, shape (pairs,); -1 if joined."""
        apart_K = self.labels_KN[:, i] != self.labels_KN[:, j]
        return np.asarray(np.where(apart_K, self.allowed(i, j), -1).max(axis=0))

    def undecided(self, i: Ints, j: Ints, least: Ints) -> Bools:
        """Which pairs, of at least `least` edits, could still join components, shape (pairs,)."""
        asked = self.is_query[i] | self.is_query[j]
        return np.asarray((np.maximum(least, 0) <= self.joins_up_to(i, j)) & asked)

    def join_similar(self, i: Ints, j: Ints) -> None:
        """Join the components of the pairs whose edit distance as whole strings is small enough."""
        most = int(self.joins_up_to(i, j).max(initial=0))
        self.join(i, j, whole_distances(self.strings, i, j, most))

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
        self._profiles = Profiles(strings.tolist())
        longest = max(len(text) for text in strings)
        self._projections = Projections(self._profiles, int((1 - min(identities)) * longest))
        # Every pair has a query first, so the blocks of the others are not needed.
        order = self._projections.sort(~is_query)
        self._profiles.sort(order)
        super().__init__(strings, identities, is_query, order)

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """See `Search`."""
        return np.maximum(self.edits_KN[:, i], self.edits_KN[:, j])

    def run(self, progress: Progress) -> None:
        """See `Search`."""
        found = _in_threads(self._possible, self.tiles())
        for i, j, least in joined(found, BATCH_PAIRS, progress):
            self._align(i, j, least)

    def tiles(self) -> list[Tile]:
        """See `Search`."""
        n, n_queries = len(self.strings), int(self.is_query.sum())
        return [
            (block, rest)
            for block in slices(0, n_queries, BLOCK)
            for rest in slices(block.start, n, CHUNK)
        ]

    def _possible(self, tile: Tile) -> Pairs:
        """Pairs that could be near-duplicates, and their least number of edits.

        Runs while components are joined; at worst, it finds a pair in vain.
        """
        block, rest = tile
        i, j = np.arange(block.start, block.stop), np.arange(rest.start, rest.stop)
        label = self.labels_N[block.start]
        if (self.labels_N[block] == label).all():
            j = j[self.labels_N[rest] != label]
        most = max(self.edits_N[i].max(), self.edits_N[j].max(initial=0))
        bounds_CB = self._projections.distances(j, i)
        near = np.flatnonzero(bounds_CB <= BITS_PER_EDIT * most + ROUNDING)
        at_C, at_B = np.divmod(near, len(i))
        i, j = i[at_B], j[at_C]
        apart = (i < j) & (self.labels_N[i] != self.labels_N[j])
        i, j = i[apart], j[apart]
        least = -(-self._profiles.differing(i, j) // BITS_PER_EDIT)
        wanted = self.undecided(i, j, least)
        return i[wanted], j[wanted], least[wanted]

    def _align(self, i: Ints, j: Ints, least: Ints) -> None:
        # First the likely near-duplicates, which make others superfluous.
        order = np.argsort(least, kind="stable")
        for some in slices(0, len(order), BATCH_PAIRS):
            batch = order[some]
            batch = batch[self.undecided(i[batch], j[batch], least[batch])]
            self.join_similar(i[batch], j[batch])


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
        self._residues = Residues.of(self.strings.tolist())

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """See `Search`."""
        return self.edits_KN[:, i]

    def run(self, progress: Progress) -> None:
        """See `Search`."""
        families = self._families
        parent = np.repeat(families.parent, families.size)  # the first member of each
        self.join(parent, families.members, families.differing)
        found = _in_threads(self._possible, self.tiles())
        for i, family, least in joined(found, QUEUE_PAIRS, progress):
            self._compare(i, family, least)

    def tiles(self) -> list[Tile]:
        """See `Search`. The second slice is of families."""
        lengths, families = np.array([len(text) for text in self.strings]), self._families
        of_families = lengths[families.parent]
        return [
            (rows, block)
            for rows in slices(0, len(lengths), BLOCK)
            for block in slices(
                int(np.searchsorted(of_families, lengths[rows.start])), len(of_families), FAMILIES
            )
            if rows.start < families.last[block].max()
        ]

    def _possible(self, tile: Tile) -> Pairs:
        """Pairs of a string and a family, and the least number of edits to its parent.

        Those that cannot contain near-duplicates that matter are left out.
        """
        rows, block = (np.arange(part.start, part.stop) for part in tile)
        parents = self._families.parent[block]
        lost_CB = self._profiles.lost(rows, parents).astype(np.int64)
        least_CB = -(-lost_CB // BITS_PER_LOSS)
        i_C1, family_1B = rows[:, None], block[None]
        possible_CB = i_C1 < self._families.last[family_1B]
        possible_CB &= self._open(i_C1, family_1B, least_CB)
        if possible_CB.mean() > WORTH_BOUNDS:
            bounds_CB = contained_bounds(self.strings[rows], self.strings[parents])
            np.maximum(least_CB, bounds_CB, out=least_CB)
            possible_CB &= self._open(i_C1, family_1B, least_CB)
        i, at = np.nonzero(possible_CB)
        return rows[i], block[at], least_CB[i, at]

    def _open(self, i: Ints, family: Ints, least: Ints) -> Bools:
        """Which strings could still join components with members of families.

        `least` are edits to the parent, from which a member differs by at most the radius. The
        shapes of `i` and `family` are such that they broadcast to that of `least`.
        """
        families = self._families
        labels = self.labels_N[families.members]
        differs = labels != self.labels_N[np.repeat(families.parent, families.size)]
        is_mixed = np.add.reduceat(differs, np.cumsum(families.size) - families.size) > 0
        parent, radius = families.parent[family], families.radius[family]
        most = np.where(is_mixed[family], self.edits_N[i], self.joins_up_to(i, parent))
        return np.asarray(np.maximum(least - radius, 0) <= most)

    def _compare(self, i: Ints, family: Ints, least: Ints) -> None:
        """Decide the pairs of strings and families."""
        parent = self._families.parent[family]
        # Whole strings are aligned faster, and those that are near-duplicates make others
        # superfluous, most of all the closest.
        order = np.argsort(least, kind="stable")
        for some in slices(0, len(order), BATCH_PAIRS):
            batch = order[some]
            batch = batch[self.undecided(i[batch], parent[batch], least[batch])]
            self.join_similar(i[batch], parent[batch])
        is_open = self._open(i, family, least)
        i, family = i[is_open], family[is_open]
        distance = contained_distances(self._residues, i, parent[is_open])
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
        self.join(i, j, contained_distances(self._residues, i, j))


def _in_threads(call: Callable[[Tile], Pairs], tiles: Sequence[Tile]) -> Iterator[Pairs]:
    """Yield what a call finds in each tile, in their order.

    Tiles side by side, one thread each, took 10 s for 110,000 antibodies on 16 cores; one after
    the other on all cores 24 s. Few are begun at a time, because all found pairs wait.
    """
    cores = count_cores()
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(cores) as threads:
        for first in range(0, len(tiles), cores):
            yield from threads.map(call, tiles[first : first + cores])


def joined(parts: Iterable[Pairs], enough: int, progress: Progress) -> Iterator[Pairs]:
    """Concatenate parts until they hold enough pairs; `progress` gets the number of parts."""
    held: list[Pairs] = []
    n_held = 0
    for part in parts:
        held.append(part)
        n_held += len(part[0])
        progress(1)
        if n_held >= enough:
            yield tuple(np.concatenate(ends) for ends in zip(*held, strict=True))
            held, n_held = [], 0
    if n_held:
        yield tuple(np.concatenate(ends) for ends in zip(*held, strict=True))
