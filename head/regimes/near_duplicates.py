"""Connected components of near-duplicates, exact.

Whole strings are compared by edit distance; `contained` aligns the shorter of two antigens inside
the longer. Pairs are skipped that lower bounds exclude, or that already share a component. N
strings, K pairs, C rows and B columns of a block of pairs, L residues, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Bools, Ints, Matrix
from abag.core.cores import count_cores, limit_blas
from abag.core.messages import bar
from abag.embed.sequences.chains import STANDARD_RESIDUES
from abag.head.regimes.contained import Strings, contained_components, count_edits

Words: TypeAlias = NDArray[np.uint64]

NEIGHBOURS = 8
"""Others with which each string is compared before all pairs are."""
FEW_QUERIES = 64
"""Strings up to which all others are compared at once: profiles of 110,000 take seconds."""
CLOSEST = 4
"""Candidates of each string that are aligned at a time, until one is a near-duplicate."""
ROWS, COLUMNS = 512, 4096
"""Sides of a block of pairs; they limit memory."""
BATCH_PAIRS = 1 << 15
"""Pairs that are aligned before it is looked which others are still worth it."""
BITS = 832
"""Of a profile: two for each pair of 20 residues, rounded up to words of 64."""
BITS_PER_EDIT = 4
"""A substitution removes two pairs of residues and adds two."""
SAMPLE = 8192
"""Strings whose principal components become the axes; up to twice as many are not projected."""
DIMENSIONS = 256
"""With 128 axes most pairs of random antibodies pass the bound (`bench_clusters.py`)."""
ROUNDING = 0.5
"""More than the error of `Profiles.distances`."""
PART = 2048
"""Strings or pairs that are unpacked at a time."""
_RESIDUES = len(STANDARD_RESIDUES)
_NUMBER = np.zeros(128, np.int64)  # of a residue; others count as A, which adds no difference
_NUMBER[[ord(letter) for letter in STANDARD_RESIDUES]] = np.arange(_RESIDUES)


def cluster(
    strings: Sequence[str],
    identity: float,
    *,
    contained: bool = False,
    queries: Bools | None = None,
    joined: Ints | None = None,
) -> Ints:
    """Cluster N strings, none empty, by single linkage: numbers by first appearance, (N,).

    Only pairs with one of the `queries`, (N,), are compared, none inside `joined` clusters, (N,).
    """
    if not len(strings):
        return np.zeros(0, np.int64)
    unique, first, index = np.unique(
        np.asarray(strings, dtype=object), return_index=True, return_inverse=True
    )
    labels = np.empty(len(unique), np.int64)
    if contained:
        order = np.argsort([len(text) for text in unique], kind="stable")
        labels[order] = contained_components(unique[order], identity)
    else:
        is_query = np.full(len(unique), queries is None)
        if queries is not None:
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
    return number_by_appearance(_components(used, np.concatenate(items), np.concatenate(nodes))[:n])


def _components(n: int, i: Ints, j: Ints) -> Ints:
    graph = sparse.coo_array((np.ones(len(i)), (i, j)), (n, n))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)


def _join(labels: Ints, i: Ints, j: Ints) -> Ints:
    return _components(len(labels), labels[i], labels[j])[labels] if len(i) else labels


def _edits(strings: Strings, identity: float) -> Ints:
    return count_edits(np.array([len(text) for text in strings]), identity)


class Components:
    """Components of N strings, joined by near-duplicates; a subclass bounds their distances."""

    def __init__(self, strings: Strings, identity: float) -> None:
        self.strings, self.edits = strings, _edits(strings, identity)
        self.labels = np.arange(len(strings))

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """Edits up to which pairs are near-duplicates: relative to the longer string."""
        return np.maximum(self.edits[i], self.edits[j])

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """Lower bounds on the edits between each of C strings i and each of B strings j, (C, B)."""
        raise NotImplementedError

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """Lower bounds for K pairs that take more time than `bounds`, but less than aligning."""
        raise NotImplementedError

    def find(self, first: int | None = None) -> Ints:
        """Return the component of each string, comparing the pairs with one of the first ones."""
        # neighbours first: in a library of variants this joins nearly all
        n = len(self.strings)
        first = n if first is None else first
        for step in range(1, NEIGHBOURS + 1):
            i = np.arange(min(first, n - step))
            self._compare(i, i + step)
        blocks = [
            (np.arange(row, min(row + ROWS, first)), np.arange(column, min(column + COLUMNS, n)))
            for row in range(0, first, ROWS)
            for column in range(row, n, COLUMNS)
        ]
        with bar(desc="clusters", total=len(blocks), unit=" tiles", delay=2) as drawn:
            for i, j, least in self._candidates(blocks):
                drawn.update()
                order = np.argsort(least, kind="stable")  # the closest make others superfluous
                for at in range(0, len(order), BATCH_PAIRS):
                    batch = order[at : at + BATCH_PAIRS]
                    self._compare(i[batch], j[batch])
        return self.labels

    def near_first(self, first: int) -> Bools:
        """Return which of the first strings have a near-duplicate among the others, (first,)."""
        starts = range(0, first, ROWS)
        with (
            limit_blas(1),
            ThreadPoolExecutor(count_cores()) as threads,
            bar(desc="recognition", total=len(starts), unit=" tiles", delay=2) as drawn,
        ):
            found = np.zeros(first, np.bool_)
            each = threads.map(partial(self._near, first), starts)
            for start, near in zip(starts, each, strict=True):
                found[start : start + ROWS] = near
                drawn.update()
        return found

    def _near(self, first: int, start: int) -> Bools:
        """Return which strings of a block have a near-duplicate among those after the first."""
        found = np.zeros(min(ROWS, first - start), np.bool_)
        for column in range(first, len(self.strings), COLUMNS):
            rows = start + np.flatnonzero(~found)
            if not len(rows):
                break
            columns = np.arange(column, min(column + COLUMNS, len(self.strings)))
            most = max(self.edits[rows].max(), self.edits[columns].max())
            at_C, at_B = np.nonzero(self.bounds(rows, columns) <= most)
            i = rows[at_C]
            j = columns[at_B]
            least = self.tighter(i, j)
            possible = least <= self.allowed(i, j)
            self._mark(found, start, i[possible], j[possible], least[possible])
        return found

    def _mark(self, found: Bools, start: int, i: Ints, j: Ints, least: Ints) -> None:
        """Align pairs of a block until each string has a near-duplicate, the closest first."""
        order = np.lexsort((least, i))
        i = i[order]
        j = j[order]
        while len(i):
            # the closest pairs of each string that are left
            _, begins, rest = np.unique(i, return_index=True, return_counts=True)
            chosen = np.concatenate(
                [
                    np.arange(begin, begin + min(count, CLOSEST))
                    for begin, count in zip(begins.tolist(), rest.tolist(), strict=True)
                ]
            )
            allowed = self.allowed(i[chosen], j[chosen])
            distance = whole_distances(
                self.strings[i[chosen]], self.strings[j[chosen]], int(allowed.max()), workers=1
            )
            found[i[chosen[distance <= allowed]] - start] = True
            left = np.ones(len(i), np.bool_)
            left[chosen] = False
            left &= ~found[i - start]
            i = i[left]
            j = j[left]

    def _compare(self, i: Ints, j: Ints) -> None:
        i, j, _ = self._worth_aligning(i, j)
        if len(i):
            allowed = self.allowed(i, j)
            found = whole_distances(self.strings[i], self.strings[j], int(allowed.max()))
            near = found <= allowed
            self.labels = _join(self.labels, i[near], j[near])

    def _worth_aligning(self, i: Ints, j: Ints) -> tuple[Ints, Ints, Ints]:
        apart = self.labels[i] != self.labels[j]
        i, j = i[apart], j[apart]
        least = self.tighter(i, j)
        possible = least <= self.allowed(i, j)
        return i[possible], j[possible], least[possible]

    def _candidates(self, blocks: Sequence[tuple[Ints, Ints]]) -> Iterator[tuple[Ints, ...]]:
        """Yield pairs that could be near-duplicates, with lower bounds, block after block."""
        # Blocks side by side, one thread each: 10 s for 110,000 antibodies on 16 cores; one after
        # the other on all cores 24 s. Few are begun at a time, because all found pairs wait.
        cores = count_cores()
        with limit_blas(1), ThreadPoolExecutor(cores) as threads:
            for at in range(0, len(blocks), cores):
                yield from threads.map(self._possible, blocks[at : at + cores])

    def _possible(self, block: tuple[Ints, Ints]) -> tuple[Ints, ...]:
        rows, columns = block
        labels = self.labels  # others join meanwhile: at worst, a pair is found in vain
        if (labels[rows] == labels[rows[0]]).all():
            columns = columns[labels[columns] != labels[rows[0]]]
        if not len(columns):
            return (columns,) * 3
        most = max(self.edits[rows].max(), self.edits[columns].max())
        at_C, at_B = np.nonzero(self.bounds(rows, columns) <= most)
        i, j = rows[at_C], columns[at_B]
        return self._worth_aligning(i[i < j], j[i < j])


class WholeStrings(Components):
    """Near-duplicates by the edit distance of whole strings, relative to the longer one."""

    def __init__(self, strings: Strings, identity: float) -> None:
        super().__init__(strings, identity)
        self._profiles = Profiles(strings)

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        distance_CB = self._profiles.distances(i, j)
        distance_CB -= ROUNDING
        distance_CB /= BITS_PER_EDIT
        return distance_CB

    def tighter(self, i: Ints, j: Ints) -> Ints:
        return np.asarray(-(-self._profiles.differing(i, j) // BITS_PER_EDIT))


def whole_near(queries: Strings, targets: Strings, identity: float) -> Bools:
    """Return which of N strings have a near-duplicate among T others by edit distance, (N,)."""
    if len(queries) > FEW_QUERIES:
        return WholeStrings(np.concatenate([queries, targets]), identity).near_first(len(queries))
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    own, others = _edits(queries, identity), _edits(targets, identity)
    allowed = np.maximum(own[:, None], others)
    distance = cdist(
        queries.tolist(), targets.tolist(), scorer=Levenshtein.distance,
        score_cutoff=int(allowed.max(initial=0)), dtype=np.int32, workers=-1,
    )  # fmt: skip
    return np.asarray((distance <= allowed).any(axis=1))


class Clones(Components):
    """N heavy chains that are clones: CDR H3, here of one length, differ in few positions too."""

    def __init__(
        self, heavies: Strings, identity: float, loops: Sequence[str], loop_identity: float
    ) -> None:
        super().__init__(heavies, identity)
        residues = np.frombuffer("".join(loops).encode("ascii"), np.uint8)
        self._loops_LN = residues.reshape(len(loops), -1).T.copy()
        self._most_changes = int((1 - loop_identity) * len(self._loops_LN) + 1e-9)

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        changes_CB = np.zeros((len(i), len(j)), np.uint8)
        for letters in self._loops_LN:
            changes_CB += letters[i][:, None] != letters[j]
        return self._exclude(changes_CB)

    def tighter(self, i: Ints, j: Ints) -> Ints:
        return self._exclude((self._loops_LN[:, i] != self._loops_LN[:, j]).sum(axis=0))

    def _exclude(self, changes: NDArray[np.integer]) -> Ints:
        return np.where(changes <= self._most_changes, 0, self.edits.max() + 1)


class Profiles:
    """Which pairs of neighbouring residues occur in N strings, and which occur again.

    The bits that differ, or the squared distance between projections of them, bound the edits.
    """

    def __init__(self, strings: Strings) -> None:
        parts = [slice(at, at + PART) for at in range(0, len(strings), PART)]
        self._words = np.concatenate([_pack(strings[part].tolist()) for part in parts])
        axes = self._axes() if len(strings) > 2 * SAMPLE else np.eye(BITS, dtype=np.float32)
        self._x_ND = np.ones((len(strings), axes.shape[1] + 2), np.float32)
        for part in parts:
            x_CD = self.bits(part) @ axes
            self._x_ND[part, :-2] = x_CD
            np.einsum("CD,CD->C", x_CD, x_CD, out=self._x_ND[part, -2])

    def bits(self, which: Ints | slice) -> Matrix:
        return np.unpackbits(self._words[which].view(np.uint8), axis=1).astype(np.float32)

    def differing(self, i: Ints, j: Ints) -> Ints:
        differing = np.empty(len(i), np.int64)
        for at in range(0, len(i), PART):  # each pair takes over 200 bytes
            part = slice(at, at + PART)
            words = self._words[i[part]] ^ self._words[j[part]]
            differing[part] = np.bitwise_count(words).sum(axis=1)
        return differing

    def distances(self, i: Ints, j: Ints) -> Matrix:
        """Bound the bits that differ between strings i and j, (C, B), from below by projections."""
        y_BD = self._x_ND[j]
        square_B, one_B = y_BD[:, -2:-1], y_BD[:, -1:]
        y_BD = np.concatenate([-2 * y_BD[:, :-2], one_B, square_B], axis=1)
        return np.asarray(self._x_ND[i] @ y_BD.T)

    def _axes(self) -> Matrix:
        x_CD = self.bits(np.random.default_rng(0).permutation(len(self._words))[:SAMPLE])
        x_CD -= x_CD.mean(axis=0)
        axes = np.linalg.eigh(x_CD.T @ x_CD)[1][:, : -DIMENSIONS - 1 : -1]
        return np.ascontiguousarray(axes)


def _pack(strings: Sequence[str]) -> Words:
    """Bits of the profile of each string, in words."""
    codes = _NUMBER[np.frombuffer("".join(strings).encode("ascii"), np.uint8)]
    owner = np.repeat(np.arange(len(strings)), [len(text) for text in strings])
    within = owner[1:] == owner[:-1]
    pairs = owner[1:] * _RESIDUES**2 + codes[:-1] * _RESIDUES + codes[1:]
    counts = np.bincount(pairs[within], minlength=len(strings) * _RESIDUES**2)
    counts = counts.reshape(len(strings), -1)
    bits = np.packbits(np.concatenate([counts > 0, counts > 1], axis=1), axis=1)
    return np.pad(bits, ((0, 0), (0, BITS // 8 - bits.shape[1]))).view(np.uint64)


def whole_distances(
    first: Strings, second: Strings, largest: int | None = None, *, workers: int = -1
) -> Ints:
    """Edit distances of K pairs of whole strings; above `largest` any larger number.

    `workers` is the number of threads; -1: all cores.
    """
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cpdist

    found = cpdist(
        first.tolist(), second.tolist(), scorer=Levenshtein.distance, score_cutoff=largest,
        dtype=np.int32, workers=workers,
    )  # fmt: skip
    return np.asarray(found, np.int64)
