"""The training sequence that is nearest to each of other sequences, and how far away it is.

The distance of two sequences is the sum over their chains: the positions at which chains of equal
length differ, the edits between others, and 1 for each chain that only one of them has. Antibodies
without a chain in common have no distance. Chains of an antigen are compared in the order of their
lengths. 0 is the sequence itself. The result is exact: bounds only skip what cannot be nearer.

N sequences, T training sequences, C sequences of a block, P chains of each, L positions, W words,
B bits of a letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abag.core.arrays import Ints
from abag.head.regimes.similar import lengths_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.tables.chains import Chains, Kind

NONE = -1
"""Nearest training sequence, and distance, where there is none."""
FARTHEST = 1 << 30
"""More than any distance."""
BLOCK_CELLS = 1 << 24
"""Distances that are in memory at a time."""
CUTOFFS = (3, 12, 40, FARTHEST)
"""Edits up to which others are looked for, one after the other: few edits are found fast."""
WORD = 64
"""Positions that are compared at a time."""
LETTER_BITS = 5
"""Bits in which any two capital letters differ."""
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
    if kind == "antigen":
        queries = [*map(by_length, queries)]
        targets = [*map(by_length, targets)]
    distance = np.full(len(queries), FARTHEST, np.int64)
    index = np.full(len(queries), NONE, np.int64)
    row_of = {chains: row for row, chains in reversed([*enumerate(targets)])}
    for row, chains in enumerate(queries):
        if chains in row_of:
            distance[row] = 0
            index[row] = row_of[chains]
    n_places = max(map(len, [*queries, *targets]), default=0)
    queried_NP = _padded(queries, n_places)
    target_TP = _padded(targets, n_places)
    lengths_NP = _lengths(queried_NP)
    lengths_TP = _lengths(target_TP)
    of_lengths: dict[tuple[int, ...], list[int]] = {}
    for row in np.flatnonzero(distance > 0).tolist():
        of_lengths.setdefault(tuple(lengths_NP[row].tolist()), []).append(row)
    for lengths, members in of_lengths.items():
        rows = np.array(members, np.int64)
        least_T = _least(np.array(lengths), lengths_TP)
        is_as_long = (lengths_TP == lengths).all(axis=1)
        alike = np.flatnonzero(is_as_long)
        if len(alike):
            found = _by_positions(queried_NP[rows], target_TP[alike])
            distance[rows] = found.distance
            index[rows] = alike[found.row]
        others = np.flatnonzero(~is_as_long & (least_T < FARTHEST))
        _by_edits(queried_NP, target_TP, rows, others, least_T, distance, index)
    distance[index == NONE] = NONE
    return Nearest(distance, index)


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


def _by_positions(query_NP: NDArray[np.object_], target_TP: NDArray[np.object_]) -> Nearest:
    """Find the nearest of T sequences whose chains are as long, by the bits of their letters."""
    codes_NL = _codes(query_NP)
    codes_TL = _codes(target_TP)
    varies_L = (codes_TL != codes_TL[0]).any(axis=0)
    # where all T are alike, each of them differs from a sequence as the first one does
    distance = (codes_NL[:, ~varies_L] != codes_TL[0, ~varies_L]).sum(axis=1)
    index = np.zeros(len(codes_NL), np.int64)
    words_NBW = _bit_words(codes_NL[:, varies_L])
    target_WBT = _bit_words(codes_TL[:, varies_L]).transpose(2, 1, 0).copy()
    differs_T = np.empty(len(codes_TL), np.uint64)
    bit_T = np.empty(len(codes_TL), np.uint64)
    for row, words_WB in enumerate(words_NBW.transpose(0, 2, 1)):
        count_T = np.zeros(len(codes_TL), np.uint16)
        for target_BT, word_B in zip(target_WBT, words_WB, strict=True):
            np.bitwise_xor(target_BT[0], word_B[0], out=differs_T)
            for target_T, word in zip(target_BT[1:], word_B[1:], strict=True):
                np.bitwise_xor(target_T, word, out=bit_T)
                np.bitwise_or(differs_T, bit_T, out=differs_T)
            count_T += np.bitwise_count(differs_T)
        index[row] = count_T.argmin()
        distance[row] += count_T[index[row]]
    return Nearest(distance, index)


def _codes(chains_NP: NDArray[np.object_]) -> NDArray[np.uint8]:
    """Return the letters of N sequences whose chains have the same lengths, (N, L)."""
    text = "".join(chains_NP.ravel().tolist())
    return np.frombuffer(text.encode("ascii"), np.uint8).reshape(len(chains_NP), -1)


def _bit_words(codes_NL: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return each bit of the letters of N sequences, `WORD` positions in a word: (N, B, W)."""
    n, length = codes_NL.shape
    words = max(1, -(-length // WORD))
    letters_NL = np.zeros((n, words * WORD), np.uint8)
    letters_NL[:, :length] = codes_NL
    planes = []
    for bit in range(LETTER_BITS):
        packed = np.packbits(letters_NL >> bit & 1, axis=1)
        planes.append(packed.view(np.uint64))
    return np.stack(planes, axis=1)


def _by_edits(
    query_NP: NDArray[np.object_],
    target_TP: NDArray[np.object_],
    rows: Ints,
    others: Ints,
    least_T: Ints,
    distance: Ints,
    index: Ints,
) -> None:
    """Replace what is known of some rows by sequences of other lengths that are nearer."""
    others = others[np.argsort(least_T[others], kind="stable")]
    for cutoff in CUTOFFS:
        open_rows = rows[distance[rows] > 1]
        if not len(open_rows):
            return
        most = min(cutoff, int(distance[open_rows].max()) - 1)
        # sorted: those that lengths do not exclude come first
        near = others[: int(np.searchsorted(least_T[others], most, side="right"))]
        step = max(1, BLOCK_CELLS // max(len(near), 1))
        for start in range(0, len(open_rows) if len(near) else 0, step):
            block = open_rows[start : start + step]
            edits_CT = _edits(query_NP[block], target_TP[near], most)
            nearest = edits_CT.argmin(axis=1)
            edits = edits_CT[np.arange(len(block)), nearest]
            is_nearer = (edits <= most) & (edits < distance[block])
            distance[block[is_nearer]] = edits[is_nearer]
            index[block[is_nearer]] = near[nearest[is_nearer]]
        rows = rows[distance[rows] > cutoff]


def _edits(query_CP: NDArray[np.object_], target_TP: NDArray[np.object_], most: int) -> Ints:
    """Return distances from C sequences of the same lengths to T others; any larger above `most`.

    The result is of shape (C, T).
    """
    from rapidfuzz.distance import Hamming, Levenshtein
    from rapidfuzz.process import cdist

    total_CT = np.zeros((len(query_CP), len(target_TP)), np.int64)
    for queries, targets in zip(query_CP.T, target_TP.T, strict=True):
        length = len(queries[0])  # of all C
        length_T = lengths_of(targets)
        if not length:
            total_CT[:, length_T > 0] += LONE_CHAIN
            continue
        total_CT[:, length_T == 0] += LONE_CHAIN
        texts, row_of_query = np.unique(queries, return_inverse=True)
        is_as_long = length_T == length
        for scorer, columns in (
            (Hamming.distance, np.flatnonzero(is_as_long)),
            (Levenshtein.distance, np.flatnonzero(~is_as_long & (length_T > 0))),
        ):
            if not len(columns):
                continue
            others, column_of_target = np.unique(targets[columns], return_inverse=True)
            edits = cdist(
                texts.tolist(),
                others.tolist(),
                scorer=scorer,
                score_cutoff=most,
                dtype=np.int32,
                workers=-1,
            )
            total_CT[:, columns] += edits[row_of_query][:, column_of_target]
    return total_CT
