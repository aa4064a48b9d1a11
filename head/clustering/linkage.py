"""Which sequences are so alike that one in training gives the other in test away.

Two sequences are mates when enough of their residues agree, and clusters are the connected
components of mates (single linkage): no sequence has a mate outside its cluster.

- Antibodies: identity = 1 - edit distance / length of the longer, over the chains that both have.
- Antigens: identity = 1 - edits that place the shorter inside the longer / length of the shorter,
  so that a domain is a mate of the protein that holds it (of two equally long, the first in the
  alphabet goes inside). Chains are compared one by one, and an
  antigen joins the clusters of all its chains; peptides are compared with peptides only.

This is exact. What makes it fast loses no mate: each edit destroys at most one of a sequence's
disjoint words, and pairs already in one cluster are not compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from abag.head.clustering.alignment import LETTERS, Residues, edit_distances, hamming, ragged_rows

Ints: TypeAlias = NDArray[np.int64]
Chains: TypeAlias = tuple[str, ...]
Method: TypeAlias = Callable[..., Ints]

WORD = 5
"""Residues in a word: long enough to be rare, short enough that many disjoint ones fit."""
SPARE = 8
BATCH_PAIRS = 16384
"""Pairs aligned together, so that numpy's cost of a call is spread thin."""
CHUNK_RESIDUES = 1 << 22
"""Residues laid side by side at a time; bounds memory."""
ALIKE = 0.1
"""Share of differing residues up to which a string is a variant of another of its length."""
PEPTIDE = 50
"""Antigen chains below this length are peptides: they fit somewhere into almost any protein."""
PEPTIDE_IDENTITY = 0.6
"""Least identity of peptides: by chance short ones agree to 0.4; windows that overlap, to 0.6."""


def antibody_clusters(
    antibodies: Sequence[Chains], identity: float, method: Method | None = None
) -> Ints:
    """Cluster (heavy, light) pairs, either chain possibly empty, by the identity of their Fv.

    Parameters
    ----------
    antibodies : sequence of (str, str), length N
    identity : float
        Least identity of mates, above 0 and up to 1.
    method : callable, optional
        Stands in for `cluster` where strings are whole Fv.

    Returns
    -------
    NDArray, shape=(N,), dtype=int64
        Cluster of each antibody, numbered by first appearance.
    """
    paired = np.array([bool(heavy and light) for heavy, light in antibodies], bool)
    whole = np.flatnonzero(paired)
    texts = ["".join(antibodies[i]) for i in whole.tolist()]
    groups = [(whole, (method or cluster)(texts, identity))]
    for chain in (0, 1):
        having = np.array([i for i, chains in enumerate(antibodies) if chains[chain]], np.int64)
        alone = ~paired[having]
        if alone.any():
            texts = [antibodies[i][chain] for i in having]
            found = cluster(texts, identity, only_with=alone)
            # Two pairs are never mates by one chain alone, even by the very same one.
            keep = np.isin(found, found[alone])
            groups.append((having[keep], found[keep]))
    return _joined(len(antibodies), groups)


def antigen_clusters(
    antigens: Sequence[Chains], identity: float, method: Method | None = None
) -> Ints:
    """Cluster antigens by their chains: sharing one cluster of chains is enough.

    Parameters
    ----------
    antigens : sequence of tuple of str, length N
    identity : float
        Least identity of mates, above 0 and up to 1; for peptides at least ``PEPTIDE_IDENTITY``.
    method : callable, optional
        Stands in for `cluster` where chains are longer than peptides.

    Returns
    -------
    NDArray, shape=(N,), dtype=int64
        Cluster of each antigen, numbered by first appearance.
    """
    owner = np.array([i for i, chains in enumerate(antigens) for _ in chains], np.int64)
    texts = [chain for chains in antigens for chain in chains]
    short = np.array([len(text) < PEPTIDE for text in texts], bool)
    groups = []
    long = np.flatnonzero(~short)
    groups.append(
        (owner[long], (method or cluster)([texts[i] for i in long], identity, inside=True))
    )
    peptides, least = np.flatnonzero(short), max(identity, PEPTIDE_IDENTITY)
    groups.append((owner[peptides], cluster([texts[i] for i in peptides], least, inside=True)))
    return _joined(len(antigens), groups)


def cdrh3_clusters(antibodies: Sequence[Chains], identity: float) -> Ints:
    """Cluster antibodies by the identity of their CDRH3, end to end.

    One whose CDRH3 is not found (a light chain alone, say) is compared by all it has, with others
    of that sort only.
    """
    from immunum import Annotator

    annotator = Annotator(["IGH"], "imgt")
    loops = [str(annotator.segment(heavy).cdr3 or "") if heavy else "" for heavy, _ in antibodies]
    found = np.array([bool(loop) for loop in loops], bool)
    groups = []
    for which, texts in ((found, loops), (~found, ["".join(chains) for chains in antibodies])):
        chosen = np.flatnonzero(which)
        groups.append((chosen, cluster([texts[i] for i in chosen], identity)))
    return _joined(len(antibodies), groups)


def distance_to_parent(antibodies: Sequence[Chains], clusters: Ints) -> Ints:
    """Edits between each antibody and the consensus of its cluster, over both chains.

    The consensus has the cluster's commonest lengths, and at each place its commonest residue (the
    first in the alphabet where there is a tie).
    """
    distance = np.zeros(len(antibodies), np.int64)
    for members in rows_by_group(clusters):
        if len(members) == 1:
            continue
        for chain in (0, 1):
            texts = [antibodies[i][chain] for i in members]
            distance[members] += _edits_to(consensus(texts), texts)
    return distance


def consensus(texts: Sequence[str]) -> str:
    """Commonest residue at each place of the texts of the commonest length."""
    lengths = np.array([len(text) for text in texts])
    length = int(np.argmax(np.bincount(lengths)))
    kept = [text.encode() for text in texts if len(text) == length]
    residues = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), length)
    return "".join(chr(np.argmax(np.bincount(column))) for column in residues.T)


def _edits_to(parent: str, texts: Sequence[str]) -> Ints:
    unique, index = np.unique(np.asarray(texts, dtype=object), return_inverse=True)
    if not parent:
        return np.array([len(text) for text in texts], np.int64)
    residues = Residues.of([parent, *unique])
    first = np.zeros(len(unique), np.int64)
    return edit_distances(residues, first, 1 + np.arange(len(unique)))[index]


def cluster(
    strings: Sequence[str],
    identity: float,
    *,
    inside: bool = False,
    only_with: NDArray[np.bool_] | None = None,
) -> Ints:
    """Connected components of mates.

    Parameters
    ----------
    strings : sequence of str, length N
        Residues in upper case, none empty.
    identity : float
        Least identity of mates, above 0 and up to 1.
    inside : bool
        Measure the shorter inside the longer, rather than end to end.
    only_with : NDArray, shape=(N,), dtype=bool, optional
        Pairs without any of these strings are not compared.

    Returns
    -------
    NDArray, shape=(N,), dtype=int64
        Cluster of each string, numbered by first appearance.
    """
    if not len(strings):
        return np.zeros(0, np.int64)
    unique, index = np.unique(np.asarray(strings, dtype=object), return_inverse=True)
    marked = np.ones(len(unique), bool) if only_with is None else np.zeros(len(unique), bool)
    if only_with is not None:
        marked[index[only_with]] = True
    order = np.argsort([len(text) for text in unique], kind="stable")
    residues = Residues.of([unique[i] for i in order])
    labels = np.empty(len(unique), np.int64)
    labels[order] = _Search(residues, identity, inside, marked[order]).components()
    return _by_first_appearance(labels[index])


def _joined(n: int, groups: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Components of ``n`` things, given groupings of some of them: (things, their groups)."""
    things, nodes, used = [], [], n
    for members, labels in groups:
        things.append(members)
        nodes.append(labels + used)
        used += int(labels.max(initial=-1)) + 1
    ends = (np.concatenate(things), np.concatenate(nodes))
    graph = sparse.coo_array((np.ones(len(ends[0])), ends), (used, used))
    _, found = sparse.csgraph.connected_components(graph, directed=False)
    return _by_first_appearance(found[:n].astype(np.int64))


def _by_first_appearance(labels: Ints) -> Ints:
    _, first, dense = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[dense]


class _Search:
    """One search for components, over strings sorted by length (so that i < j is not longer)."""

    def __init__(
        self, residues: Residues, identity: float, inside: bool, marked: NDArray[np.bool_]
    ) -> None:
        self.residues, self.identity, self.inside = residues, identity, inside
        self.marked = marked
        self.labels = np.arange(len(residues.lengths))
        self.members = [[i] for i in range(len(residues.lengths))]
        self.words = _WordIndex.of(residues)
        self.likeness = _Likeness(residues) if inside else None

    def components(self) -> Ints:
        """Component of each string, (N,)."""
        waiting: list[tuple[Ints, Ints]] = []
        n_waiting = 0
        for i in range(len(self.labels)):
            candidates = self._candidates(i)
            for chunk in self._chunks(candidates):
                j = self._compare_cheaply(i, candidates[chunk])
                waiting.append((np.full(len(j), i), j))
                n_waiting += len(j)
            if n_waiting >= BATCH_PAIRS:
                self._align(waiting)
                waiting, n_waiting = [], 0
        self._align(waiting)
        return self.labels

    def _allowed_edits(self, i: int, j: Ints) -> Ints:
        """Edits up to which strings i and j are mates."""
        length = self.residues.lengths[np.full(len(j), i) if self.inside else j]
        return allowed_edits(length, self.identity)

    def _candidates(self, i: int) -> Ints:
        """Later strings that could be mates of i and are not yet in its component."""
        length = self.residues.lengths[i]
        longest = np.iinfo(np.int64).max if self.inside else int(length / self.identity + 1e-9)
        stop = int(np.searchsorted(self.residues.lengths, longest, side="right"))
        fits = self.labels[i + 1 : stop] != self.labels[i]
        if not self.marked[i]:
            fits &= self.marked[i + 1 : stop]
        n_others = np.count_nonzero(fits)
        if not n_others:
            return np.zeros(0, np.int64)
        most = int(allowed_edits(np.array([length if self.inside else longest]), self.identity)[0])
        seeds = self.words.rare_disjoint(i)[: most + 1 + SPARE]
        # Reading a posting is about 100 times cheaper than comparing a candidate.
        if len(seeds) > most and self.words.count[seeds].sum() < 100 * n_others:
            fits &= self.words.hits(seeds, len(self.labels))[i + 1 : stop] >= len(seeds) - most
        return np.flatnonzero(fits) + i + 1

    def _compare_cheaply(self, i: int, j: Ints) -> Ints:
        """Join i with those that need no alignment to be mates; return those that need one."""
        same = j[self.residues.lengths[j] == self.residues.lengths[i]]
        if len(same):
            distance = hamming(self.residues, np.array([i]), same)
            for mate in same[distance <= self._allowed_edits(i, same)]:
                self._join(i, mate)
        j = j[self.labels[j] != self.labels[i]]
        if self.inside or not len(j):
            return j
        lost = self.words.lengths[j] - self.words.shared(i, j)
        return j[lost <= WORD * self._allowed_edits(i, j)]

    def _align(self, waiting: list[tuple[Ints, Ints]]) -> None:
        if not waiting:
            return
        i, j = (np.concatenate([pair[end] for pair in waiting]) for end in (0, 1))
        for chunk in self._chunks(j):
            left, right = i[chunk], j[chunk]
            apart = self.labels[left] != self.labels[right]
            left, right = left[apart], right[apart]
            if not len(left):
                continue
            for near in np.flatnonzero(self._are_mates(left, right)):
                self._join(left[near], right[near])

    def _are_mates(self, left: Ints, right: Ints) -> NDArray[np.bool_]:
        edits = allowed_edits(self.residues.lengths[left if self.inside else right], self.identity)
        if self.likeness is None:
            return edit_distances(self.residues, left, right) <= edits
        low, high = self.likeness.bounds(left, right)
        mates = high <= edits
        unsure = np.flatnonzero((low <= edits) & ~mates)
        if len(unsure):
            distance = edit_distances(self.residues, left[unsure], right[unsure], inside=True)
            mates[unsure] = distance <= edits[unsure]
        return mates

    def _chunks(self, j: Ints) -> list[Ints]:
        """Indices into j, cut so that memory stays bounded whatever the lengths."""
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


class _Likeness:
    """Bounds on the distance of two variants from that of those they are like.

    Tables hold many point mutants of few antigens. An edit of either side changes a distance by
    at most one, so one alignment settles most pairs of mutants of the same two antigens.
    """

    def __init__(self, residues: Residues) -> None:
        self.residues = residues
        self.like = np.arange(len(residues.lengths))
        self.off = np.zeros(len(residues.lengths), np.int64)
        self.known: dict[tuple[int, int], int] = {}
        for same in rows_by_group(residues.lengths):
            self._find_leaders(same)

    def _find_leaders(self, rest: Ints) -> None:
        while len(rest):
            distance = hamming(self.residues, rest[:1], rest)
            near = distance <= ALIKE * self.residues.lengths[rest[0]]
            self.like[rest[near]], self.off[rest[near]] = rest[0], distance[near]
            rest = rest[~near]

    def bounds(self, left: Ints, right: Ints) -> tuple[Ints, Ints]:
        """Least and greatest distance of each pair, (K,) each."""
        ends = np.stack([self.like[left], self.like[right]], axis=1)
        leaders, index = np.unique(ends, axis=0, return_inverse=True)
        new = np.array([pair for pair in map(tuple, leaders.tolist()) if pair not in self.known])
        if len(new):
            found = edit_distances(self.residues, new[:, 0], new[:, 1], inside=True)
            self.known |= dict(zip(map(tuple, new.tolist()), found.tolist(), strict=True))
        distance = np.array([self.known[a, b] for a, b in leaders.tolist()], np.int64)[index]
        slack = self.off[left] + self.off[right]
        return distance - slack, distance + slack


def allowed_edits(lengths: Ints, identity: float) -> Ints:
    """Most edits at which sequences compared over ``lengths`` are still this identical."""
    edits: Ints = np.floor((1 - identity) * lengths + 1e-9).astype(np.int64)
    return edits


@dataclass(frozen=True, slots=True)
class _WordIndex:
    """Where each word of ``WORD`` residues occurs."""

    words: NDArray[np.int32]
    """Dense ids of the words of all strings, laid end to end; padded for `ragged_rows`."""
    starts: Ints
    lengths: Ints
    """Words of each string."""
    count: Ints
    """Occurrences of each word."""
    postings: NDArray[np.int32]
    """Strings that hold each word, words in ascending order."""
    first: Ints
    """Where each word's postings begin."""

    @classmethod
    def of(cls, residues: Residues) -> _WordIndex:
        lengths = np.maximum(residues.lengths - WORD + 1, 0)
        owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        starts = np.cumsum(lengths) - lengths
        at = np.arange(len(owner)) - starts[owner] + residues.starts[owner]
        code = np.zeros(len(at), np.int32)
        for offset in range(WORD):
            code = code * np.int32(LETTERS) + residues.codes[at + offset]
        _, words, count = np.unique(code, return_inverse=True, return_counts=True)
        postings = owner[np.argsort(words, kind="stable")]
        padded = np.zeros(len(words) + lengths.max(initial=1), np.int32)
        padded[: len(words)] = words
        return cls(padded, starts, lengths, count, postings, np.cumsum(count) - count)

    def of_string(self, i: int) -> NDArray[np.int32]:
        """Words of string i in order."""
        return self.words[self.starts[i] : self.starts[i] + self.lengths[i]]

    def rare_disjoint(self, i: int) -> NDArray[np.int32]:
        """Words of string i that share no residue, the rare ones taken first."""
        words = self.of_string(i)
        taken, chosen = [False] * (len(words) + WORD), []
        for position in np.argsort(self.count[words], kind="stable").tolist():
            if not (taken[position] or taken[position + WORD - 1]):
                taken[position : position + WORD] = [True] * WORD
                chosen.append(position)
        return words[chosen]

    def hits(self, words: NDArray[np.int32], n: int) -> NDArray[np.uint16]:
        """How many of the words each string holds, shape (n,)."""
        count = np.zeros(n, np.uint16)
        for word in words.tolist():
            count[self.postings[self.first[word] : self.first[word] + self.count[word]]] += 1
        return count

    def shared(self, i: int, j: Ints) -> Ints:
        """Places in each of the strings j whose word string i has too, (len(j),)."""
        known = np.zeros(len(self.count), bool)
        known[self.of_string(i)] = True
        rows = ragged_rows(self.words, self.starts[j], self.lengths[j], 0)
        inside = np.arange(rows.shape[1]) < self.lengths[j][:, None]
        return np.asarray((known[rows] & inside).sum(axis=1), np.int64)


def rows_by_group(group: Ints) -> list[Ints]:
    """Row indices of each group, groups in ascending order of their id."""
    if not len(group):
        return []
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
