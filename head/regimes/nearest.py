"""The training sequence that is nearest to each of other sequences, and how far away it is.

The distance of two sequences is the sum over their chains: the positions at which chains of equal
length differ, the edits between others, and 1 for each chain that only one of them has. Antibodies
without a chain in common have no distance. Chains of an antigen are compared in the order of their
lengths. 0 is the sequence itself. The result is exact: bounds only skip what cannot be nearer.

N sequences, T training sequences, C sequences and B training sequences of a block, Q sequences of a
part of it, K pairs, P chains of each, L positions, U unusual letters at positions, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abag.core.arrays import Ints
from abag.head.regimes.similar import BITS_PER_EDIT, Words, lengths_of, profile_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.tables.chains import Chains, Kind

NONE = -1
"""Nearest training sequence, and distance, where there is none."""
FARTHEST = 1 << 30
"""More than any distance."""
BLOCK_CELLS = 1 << 21
"""Distances that are in memory at a time."""
CACHED_CELLS = 1 << 18
"""Those that are in the cache at a time."""
QUERIES = 1 << 14
"""Sequences whose letters are compared with one table of letters."""
QUERIES_AT_ONCE = 1 << 10
"""Sequences whose distances to a block of others are in the cache."""
TABLE_BYTES = 1 << 20
"""Of the table for a block of training sequences, which stays in the cache."""
LEAST_BLOCK = 1 << 9
"""Training sequences of a block, at least."""
SAMPLE = 1_000
"""Sequences that tell which letters are usual."""
LETTERS = 128
"""Codes of ASCII."""
CLOSEST = 4
"""Training sequences that are aligned at first, of those that bounds do not exclude."""
LONE_CHAIN = 1
"""Distance of a chain to a sequence that lacks it."""


class Nearest(NamedTuple):
    """Hold the nearest training sequences of N sequences, (N,) each."""

    distance: Ints
    """To the nearest training sequence; `NONE` if none has a chain in common."""
    row: Ints
    """Which one it is; `NONE` if there is none."""


def by_length(antigen: Chains) -> Chains:
    """Order the chains of an antigen by length: they are stored by letters, which may mutate."""
    return tuple(sorted(antigen, key=lambda chain: (-len(chain), chain)))


def find_nearest(kind: Kind, queries: Sequence[Chains], targets: Sequence[Chains]) -> Nearest:
    """Find the nearest of T training sequences for each of N others of the same kind."""
    found = nearest_as_long(kind, queries, targets)
    return nearest_of_other_lengths(kind, queries, targets, found)


def nearest_as_long(kind: Kind, queries: Sequence[Chains], targets: Sequence[Chains]) -> Nearest:
    """Find the nearest of those training sequences whose chains are as long; `NONE` without any."""
    distance = np.full(len(queries), NONE, np.int64)
    row = np.full(len(queries), NONE, np.int64)
    if kind == "antigen":
        queries = [*map(by_length, queries)]
        targets = [*map(by_length, targets)]
    trained = _rows_by_lengths(targets)
    for lengths, members in _rows_by_lengths(queries).items():
        if lengths not in trained:
            continue
        alike = np.array(trained[lengths], np.int64)
        code_NL = _codes([queries[member] for member in members])
        found = _by_positions(code_NL, _codes([targets[member] for member in trained[lengths]]))
        distance[members] = found.distance
        row[members] = alike[found.row]
    return Nearest(distance, row)


def nearest_of_other_lengths(
    kind: Kind, queries: Sequence[Chains], targets: Sequence[Chains], found: Nearest
) -> Nearest:
    """Replace what `nearest_as_long` found where training sequences of other lengths are nearer."""
    distance = np.where(found.row == NONE, FARTHEST, found.distance)
    row = found.row.copy()
    open_rows = np.flatnonzero(distance > 1)  # those of other lengths differ by 1 at least
    if not len(open_rows) or not len(targets):
        return found
    chosen = [queries[number] for number in open_rows.tolist()]
    if kind == "antigen":
        chosen = [*map(by_length, chosen)]
        targets = [*map(by_length, targets)]
    n_places = max(map(len, [*chosen, *targets]))
    query_NP = _padded(chosen, n_places)
    target_TP = _padded(targets, n_places)
    search = _OtherLengths(query_NP, target_TP, distance[open_rows], row[open_rows])
    for members in _rows_by_lengths(query_NP.tolist()).values():
        search.find(np.array(members, np.int64))
    distance[open_rows] = search.distance
    row[open_rows] = search.row
    distance[row == NONE] = NONE
    return Nearest(distance, row)


def _rows_by_lengths(sequences: Sequence[Sequence[str]]) -> dict[tuple[int, ...], list[int]]:
    """Sort the rows of sequences into those whose chains have the same lengths."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for number, chains in enumerate(sequences):
        rows.setdefault(tuple(map(len, chains)), []).append(number)
    return rows


def _padded(sequences: Sequence[Chains], places: int) -> NDArray[np.object_]:
    """Return the chains of N sequences, (N, P), empty where there is none."""
    padded = np.full((len(sequences), places), "", object)
    for row, chains in enumerate(sequences):
        padded[row, : len(chains)] = chains
    return padded


def _lengths(chains_NP: NDArray[np.object_]) -> Ints:
    return np.stack([lengths_of(chains_N) for chains_N in chains_NP.T], axis=1)


def _least(lengths_P: Ints, lengths_TP: Ints) -> Ints:
    """Bound the distance to T sequences by their lengths, (T,)."""
    are_both = (lengths_P > 0) & (lengths_TP > 0)
    is_lone = (lengths_P > 0) != (lengths_TP > 0)
    of_chains = np.where(are_both, np.abs(lengths_P - lengths_TP), LONE_CHAIN * is_lone)
    return np.where(are_both.any(axis=1), of_chains.sum(axis=1), FARTHEST)


def _codes(sequences: Sequence[Chains]) -> NDArray[np.uint8]:
    """Return the letters of N sequences whose chains have the same lengths, (N, L)."""
    text = "".join(map("".join, sequences))
    return np.frombuffer(text.encode("ascii"), np.uint8).reshape(len(sequences), -1)


def _by_positions(code_NL: NDArray[np.uint8], code_TL: NDArray[np.uint8]) -> Nearest:
    """Find the nearest of T sequences with as many letters.

    A sequence differs from the T as the usual letters do, but where it has another letter: there, a
    row of a table tells by how much more or less. The sums of these rows are the product of a
    sparse matrix and the table, of bytes: they wrap around, but no distance is above the largest.
    """
    from scipy import sparse

    usual_L = _usual(code_NL)
    varies_L = (code_NL != usual_L).any(axis=0) | (code_TL != usual_L).any(axis=0)
    usual_L = usual_L[varies_L]
    code_LT = code_TL[:, varies_L].T.copy()
    number = np.min_scalar_type(len(usual_L))
    distance = np.full(len(code_NL), FARTHEST, np.int64)
    index = np.zeros(len(code_NL), np.int64)
    for start in range(0, len(code_NL), QUERIES):
        code_CL = code_NL[start : start + QUERIES, varies_L]
        query, place = np.nonzero(code_CL != usual_L)
        unusual = place * LETTERS + code_CL[query, place]
        letters, column = np.unique(unusual, return_inverse=True)
        place_U, letter_U = np.divmod(letters, LETTERS)
        ends = np.searchsorted(query, np.arange(len(code_CL) + 1))
        ones = np.ones(len(query), number)
        unusual_CU = sparse.csr_array((ones, column, ends), (len(code_CL), len(letters)))
        step = max(LEAST_BLOCK, TABLE_BYTES // (number.itemsize * (len(letters) + 1)))
        parts = range(0, len(code_CL), QUERIES_AT_ONCE)
        parts_QU = [unusual_CU[part : part + QUERIES_AT_ONCE] for part in parts]
        for first in range(0, code_LT.shape[1], step):
            code_LB = code_LT[:, first : first + step]
            differs_LB = code_LB != usual_L[:, None]
            more_UB = (code_LB[place_U] != letter_U[:, None].astype(np.uint8)).astype(number)
            more_UB -= differs_LB[place_U]
            usual_B = differs_LB.sum(axis=0, dtype=number)
            for part, part_QU in zip(parts, parts_QU, strict=True):
                count_QB = part_QU @ more_UB
                count_QB += usual_B
                rows = start + part + np.arange(len(count_QB))
                nearest = count_QB.argmin(axis=1)
                least = count_QB[np.arange(len(rows)), nearest]
                is_nearer = least < distance[rows]  # of equal ones the first stays
                distance[rows[is_nearer]] = least[is_nearer]
                index[rows[is_nearer]] = first + nearest[is_nearer]
    return Nearest(distance, index)


def _usual(code_NL: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the most common letter of each position of some of N sequences, (L,)."""
    some = code_NL[:: 1 + len(code_NL) // SAMPLE]
    usual = [int(np.bincount(letters).argmax()) for letters in some.T]
    return np.array(usual, np.uint8)


class _OtherLengths:
    """Find the nearest of T sequences of other lengths for N others, where it is nearer."""

    def __init__(
        self,
        query_NP: NDArray[np.object_],
        target_TP: NDArray[np.object_],
        distance: Ints,
        row: Ints,
    ) -> None:
        self.distance = distance
        """To the nearest of those that were found, (N,)."""
        self.row = row
        """Which one it is, (N,)."""
        self._query_NP = query_NP
        self._target_TP = target_TP
        self._lengths_NP = _lengths(query_NP)
        self._lengths_TP = _lengths(target_TP)
        self._words: list[tuple[Words, Words]] | None = None

    def find(self, rows: Ints) -> None:
        """Compare some of the N, which have the same lengths."""
        lengths_P = self._lengths_NP[rows[0]]
        least_T = _least(lengths_P, self._lengths_TP)
        is_as_long = (self._lengths_TP == lengths_P).all(axis=1)
        others = np.flatnonzero(~is_as_long & (least_T < self.distance[rows].max()))
        others = others[np.argsort(least_T[others], kind="stable")]
        # sorted: the sequences of a block need about the same part of the others
        rows = rows[np.argsort(self.distance[rows], kind="stable")]
        step = max(1, BLOCK_CELLS // max(len(others), 1))
        for start in range(0, len(rows) if len(others) else 0, step):
            block = rows[start : start + step]
            most = int(self.distance[block].max()) - 1
            near = others[: int(np.searchsorted(least_T[others], most, side="right"))]
            if len(near):
                self._find(block, near)

    def _find(self, rows: Ints, others: Ints) -> None:
        """Compare C of the N with B others; of equally near ones the first counts.

        A key is a distance and the place among the others in one number.
        """
        n = len(others)
        place = np.arange(n)
        best = self.distance[rows] * n
        first_best = best.copy()
        key_CB = self._bounds(rows, others) * n + place
        row = np.arange(len(rows))
        closest = key_CB.argmin(axis=1)
        possible = key_CB[row, closest] < best
        self._align(rows, others, row[possible], closest[possible], best)
        key_CB[row, closest] = FARTHEST * n
        query, other = np.nonzero(key_CB < best[:, None])
        key = key_CB[query, other]
        order = np.lexsort((key, query))
        query = query[order]
        other = other[order]
        key = key[order]
        number = np.arange(len(query)) - np.searchsorted(query, query)  # among those of its row
        most = CLOSEST
        while len(query):
            chosen = number < most
            self._align(rows, others, query[chosen], other[chosen], best)
            left = ~chosen & (key < best[query])
            query = query[left]
            other = other[left]
            key = key[left]
            number = number[left]
            most *= CLOSEST
        is_nearer = best < first_best
        self.distance[rows[is_nearer]] = best[is_nearer] // n
        self.row[rows[is_nearer]] = others[best[is_nearer] % n]

    def _bounds(self, rows: Ints, others: Ints) -> Ints:
        """Bound distances from below by pairs of neighbouring residues, (C, B)."""
        if self._words is None:
            pairs = zip(self._query_NP.T, self._target_TP.T, strict=True)
            self._words = [(_words_of(queries), _words_of(targets)) for queries, targets in pairs]
        lone_B = np.zeros(len(others), np.int64)
        compared = []
        for place, (words_NW, words_TW) in enumerate(self._words):
            is_there = self._lengths_NP[rows[0], place] > 0  # in all C
            is_there_B = self._lengths_TP[others, place] > 0
            lone_B += LONE_CHAIN * (is_there != is_there_B)
            if not is_there:
                continue
            words_WB = words_TW[others].T.copy()  # each word of all B in one piece
            for word_C, word_B in zip(words_NW[rows].T, words_WB, strict=True):
                if (word_C != word_C[0]).any() or (word_B != word_C[0]).any():
                    compared.append((word_C, word_B, is_there_B))
        bound_CB = np.empty((len(rows), len(others)), np.int64)
        step = max(1, CACHED_CELLS // len(others))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            bits_QB = np.zeros(bound_CB[part].shape, np.uint16)
            for word_C, word_B, is_there_B in compared:
                count_QB = np.bitwise_count(word_C[part, None] ^ word_B)
                if not is_there_B.all():
                    count_QB *= is_there_B
                bits_QB += count_QB
            bits_QB += BITS_PER_EDIT - 1
            bound_CB[part] = bits_QB // BITS_PER_EDIT + lone_B
        return bound_CB

    def _align(self, rows: Ints, others: Ints, query: Ints, other: Ints, best: Ints) -> None:
        """Lower the best keys of C sequences by those of K pairs with B others."""
        if not len(query):
            return
        most = int(best[query].max()) // len(others)
        edits = _edits(self._query_NP[rows[query]], self._target_TP[others[other]], most)
        np.minimum.at(best, query, edits * len(others) + other)


def _words_of(chains: NDArray[np.object_]) -> Words:
    """Return the profile of each of N chains, (N, W)."""
    unique, index = np.unique(chains, return_inverse=True)
    return profile_words(unique)[index]


def _edits(query_KP: NDArray[np.object_], target_KP: NDArray[np.object_], most: int) -> Ints:
    """Return the distances of K pairs of sequences, (K,); any larger above `most`."""
    from rapidfuzz.distance import Hamming, Levenshtein
    from rapidfuzz.process import cpdist

    total = np.zeros(len(query_KP), np.int64)
    for queries, targets in zip(query_KP.T, target_KP.T, strict=True):
        length = lengths_of(queries)
        other_length = lengths_of(targets)
        total += LONE_CHAIN * ((length > 0) != (other_length > 0))
        are_both = (length > 0) & (other_length > 0)
        for scorer, is_scored in (
            (Hamming.distance, are_both & (length == other_length) & (queries != targets)),
            (Levenshtein.distance, are_both & (length != other_length)),
        ):
            pairs = np.flatnonzero(is_scored)
            if len(pairs):
                total[pairs] += cpdist(
                    queries[pairs].tolist(),
                    targets[pairs].tolist(),
                    scorer=scorer,
                    score_cutoff=most,
                    dtype=np.int32,
                    workers=-1,
                )
    return total
