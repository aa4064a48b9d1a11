"""Clusters of clones: antibodies with similar CDR H3 of one length, and similar heavy chains.

Clones often bind alike although they are less identical than `clusters` asks for. Two antibodies
are clones if their CDR H3 have equal length and at least 80 % identical positions, and their heavy
chains are at least 70 % identical. Clusters are the connected components, found exactly. An
antibody whose heavy chain is missing or cannot be numbered is a cluster of its own.

CDR H3 that differ at D positions are equal in at least one of D + 1 disjoint sets of positions, so
only chains that are equal in one of the sets, a bucket, are compared.

N distinct heavy chains with CDR H3 of one length, L positions, K pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Bools, Ints
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import position_number
from abag.embed.sequences.numbering import Numbered, number_antibodies
from abag.head.clustering.alignment import Strings, whole_distances
from abag.head.clustering.clusters import number_by_appearance, rows_by_group

if TYPE_CHECKING:
    from pathlib import Path

LOOP_IDENTITY, HEAVY_IDENTITY = 0.8, 0.7
"""Smallest identities of the CDR H3 and of the heavy chains of clones."""
FIRST, LAST = 105, 117
"""IMGT positions of CDR H3."""
NEIGHBOURS = 8
"""Others in its bucket with which each chain is compared in one step for all buckets: all of them
in most buckets, and in a library of variants enough to join nearly all."""


def clone_clusters(antibodies: Sequence[Chains], numbering: Path | None = None) -> Ints:
    """Cluster N antibodies, (heavy, light), by clones: cluster numbers, shape (N,).

    `numbering` is the folder that keeps IMGT numbering; None: it is not kept.
    """
    loops = find_loops(number_antibodies(antibodies, numbering)["heavy"])
    heavies = np.array(list(loops), object)
    lengths = np.array([len(loop) for loop in loops.values()], np.int64)
    cluster_of: dict[str, int] = {}
    for rows in rows_by_group(lengths):
        base = len(antibodies) + len(cluster_of)
        same_length = heavies[rows]
        codes = "".join(loops[heavy] for heavy in same_length).encode("ascii")
        labels = _Clones(np.frombuffer(codes, np.uint8).reshape(len(rows), -1), same_length).run()
        cluster_of |= zip(same_length, (base + labels).tolist(), strict=True)
    own = [cluster_of.get(heavy, n) for n, (heavy, _) in enumerate(antibodies)]
    return number_by_appearance(np.array(own, np.int64))


def find_loops(numbered: Numbered) -> dict[str, str]:
    """Return the CDR3 of each chain that can be numbered and has one."""
    loops = {}
    for layout, rows, codes_RL in numbered.by_layout():
        inside = [FIRST <= position_number(position) <= LAST for position in layout]
        if any(inside):
            for row, codes in zip(rows.tolist(), codes_RL[:, inside], strict=True):
                loops[numbered.chains[row]] = codes.tobytes().decode("ascii")
    return loops


class _Clones:
    """Components of N heavy chains with CDR H3 of one length."""

    def __init__(self, loops_NL: NDArray[np.uint8], heavies: Strings) -> None:
        self.loops_NL, self.heavies = loops_NL, heavies
        self.labels = np.arange(len(heavies))
        self.most_changes = int((1 - LOOP_IDENTITY) * loops_NL.shape[1] + 1e-9)
        lengths = np.array([len(heavy) for heavy in heavies])
        self.edits = np.floor((1 - HEAVY_IDENTITY) * lengths + 1e-9).astype(np.int64)
        # By the triangle inequality, the edits from one chain tell unrelated chains apart.
        self.from_first = whole_distances(heavies, np.zeros_like(self.labels), self.labels)

    def run(self) -> Ints:
        """Return the component of each chain, (N,)."""
        # Each set gets its share of the positions that vary most, so that buckets are small.
        repeats = [int((np.bincount(codes) ** 2).sum()) for codes in self.loops_NL.T]
        positions, sets = np.argsort(repeats, kind="stable"), self.most_changes + 1
        for first in range(sets):
            codes = self.loops_NL[:, positions[first::sets]]
            bucket = np.unique(codes, axis=0, return_inverse=True)[1].ravel()
            order = np.lexsort((*self.loops_NL.T, bucket))
            for step in range(1, NEIGHBOURS + 1):
                i, j = order[:-step], order[step:]
                wanted = (bucket[i] == bucket[j]) & (self.labels[i] != self.labels[j])
                i, j = i[wanted], j[wanted]
                near = self._are_clones(i, j)
                self._join(i[near], j[near])
            for rows in rows_by_group(bucket):
                if len(rows) > NEIGHBOURS + 1:
                    self._join(*self._links(rows))
        return self.labels

    def _are_clones(self, i: Ints, j: Ints) -> Bools:
        """Tell which of K pairs are clones, (K,)."""
        allowed = np.maximum(self.edits[i], self.edits[j])
        maybe = np.flatnonzero(np.abs(self.from_first[i] - self.from_first[j]) <= allowed)
        changes = (self.loops_NL[i[maybe]] != self.loops_NL[j[maybe]]).sum(axis=1)
        maybe = maybe[changes <= self.most_changes]
        most = int(allowed[maybe].max(initial=0))
        near = np.zeros(len(i), np.bool_)
        near[maybe] = whole_distances(self.heavies, i[maybe], j[maybe], most) <= allowed[maybe]
        return near

    def _join(self, i: Ints, j: Ints) -> None:
        if len(i):
            n = len(self.labels)
            graph = sparse.coo_array((np.ones(len(i)), (self.labels[i], self.labels[j])), (n, n))
            self.labels = sparse.csgraph.connected_components(graph, directed=False)[1][self.labels]

    def _links(self, bucket: Ints) -> tuple[Ints, Ints]:
        """Return pairs of clones that connect the components in a bucket.

        Each chain outside the largest component is compared with all in other components.
        """
        labels = np.unique(self.labels[bucket], return_inverse=True)[1]
        is_open = np.ones(len(bucket), np.bool_)
        found = [(bucket[:0], bucket[:0])]
        while True:
            todo = is_open & (labels != np.bincount(labels).argmax())
            if not todo[one := int(todo.argmax())]:
                i, j = (np.concatenate(ends) for ends in zip(*found, strict=True))
                return i, j
            others = np.flatnonzero(is_open & (labels != labels[one]))
            near = self._are_clones(np.broadcast_to(bucket[one], others.shape), bucket[others])
            others = others[near]
            found.append((np.full(len(others), bucket[one]), bucket[others]))
            joined = np.bincount(labels[others], minlength=len(labels)) > 0
            labels[joined[labels]] = labels[one]
            is_open[one] = False
