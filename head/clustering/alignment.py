"""Edit distances of many pairs of strings of residues, exact.

Distances of whole strings come from rapidfuzz, which has no alignment of one string inside
another. That is Myers' bit-parallel method in numpy: one bit per residue of the pattern, one step
per residue of the text, each step for all pairs of a batch at once.

References
----------
Myers, J. ACM 46, 395 (1999); Hyyrö, Nordic J. Computing 10, 29 (2003) for patterns of
several words.

Legend: K pairs, W words of 64 residues, L residues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints

Words: TypeAlias = NDArray[np.uint64]
Strings: TypeAlias = NDArray[np.object_]

LETTERS = 27
"""Codes 0 to 25 are A to Z; 26 is padding and equals nothing."""
BITS = 64
BATCH_PAIRS = 8192
"""Pairs per call of the alignment: few enough for the processor's cache, enough for numpy."""
WINDOWS, SIMILAR = 8, 32
"""Windows of `contained_bounds` in the length of a string, and strings that share windows."""
_ONE, _TOP = np.uint64(1), np.uint64(BITS - 1)


@dataclass(frozen=True, slots=True)
class Residues:
    """Concatenated strings of residues, encoded as numbers."""

    codes: NDArray[np.uint8]
    """Followed by the padding that `rows` needs."""
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, strings: Sequence[str]) -> Residues:
        """Encode strings of the letters A to Z."""
        lengths = np.array([len(s) for s in strings], np.int64)
        codes = np.frombuffer("".join(strings).encode("ascii"), np.uint8) - np.uint8(ord("A"))
        padding = np.full(lengths.max(initial=1), LETTERS - 1, np.uint8)
        return cls(np.concatenate([codes, padding]), np.cumsum(lengths) - lengths, lengths)

    def rows(self, which: Ints) -> NDArray[np.uint8]:
        """Codes of K strings, padded to the longest, shape (K, L)."""
        lengths = self.lengths[which]
        width = int(lengths.max(initial=1))
        rows = np.lib.stride_tricks.sliding_window_view(self.codes, width)[self.starts[which]]
        rows[np.arange(width) >= lengths[:, None]] = LETTERS - 1
        return rows


def whole_distances(strings: Strings, i: Ints, j: Ints, largest: int | None = None) -> Ints:
    """Edit distance of strings i and j, shape (K,).

    A distance above `largest` may be any number above it.
    """
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cpdist

    found = cpdist(
        strings[i].tolist(), strings[j].tolist(), scorer=Levenshtein.distance,
        score_cutoff=largest, dtype=np.int32, workers=-1,
    )  # fmt: skip
    return np.asarray(found, np.int64)


def contained_bounds(strings: Strings, texts: Strings) -> Ints:
    """Lower bounds on the edits that turn each of C strings into a part of each of B texts.

    `strings` are sorted by length. The result has shape (C, B).

    A string of m residues that becomes a part of a text by d edits keeps m - d residues in order,
    and has them in common with at most m residues of the text: those of a longer part beyond m
    are insertions. So d is at least m minus the longest common subsequence with any part of m
    residues. Overlapping windows contain all of them.
    """
    bounds = np.empty((len(strings), len(texts)), np.int64)
    for start in range(0, len(strings), SIMILAR):
        group = strings[start : start + SIMILAR].tolist()
        lengths = np.array([len(text) for text in group])
        bounds[start : start + SIMILAR] = lengths[:, None] - _longest_common(group, texts)
    return bounds


def _longest_common(strings: list[str], texts: Strings) -> NDArray[np.int32]:
    from rapidfuzz.distance import LCSseq
    from rapidfuzz.process import cdist

    longest = max(len(text) for text in strings)
    step = -(-longest // WINDOWS)
    windows: list[str] = []
    first = []
    for text in texts:
        first.append(len(windows))
        starts = range(0, max(len(text) - longest, 1), step)
        windows += [text[at : at + longest + step] for at in starts]
    common = cdist(strings, windows, scorer=LCSseq.similarity, dtype=np.int32, workers=-1)
    return np.maximum.reduceat(common, first, axis=1)


def contained_distances(residues: Residues, i: Ints, j: Ints) -> Ints:
    """Smallest number of edits that turn string i into a part of string j.

    `i`, `j` and the result have shape (K,); no string in `i` is empty.
    """
    lengths = residues.lengths
    order = np.lexsort((lengths[j], -(-lengths[i] // BITS)))  # wastes little on padding
    distance = np.empty(len(i), np.int64)
    for first in range(0, len(order), BATCH_PAIRS):
        batch = order[first : first + BATCH_PAIRS]
        distance[batch] = _batch_distances(residues, i[batch], j[batch])
    return distance


def _batch_distances(residues: Residues, i: Ints, j: Ints) -> Ints:
    """As `contained_distances`, of few pairs."""
    patterns, row_K = np.unique(i, return_inverse=True)
    masks_WP = _letter_masks(residues, patterns)
    n_words, n_pairs = len(masks_WP), len(i)
    last_word, last_bit = np.divmod(residues.lengths[i] - 1, BITS)
    last_bit = last_bit.astype(np.uint64)
    ends = {w: (last_word == w).astype(np.uint64) for w in np.unique(last_word).tolist()}
    up_WK = np.full((n_words, n_pairs), ~np.uint64(0))
    down_WK = np.zeros((n_words, n_pairs), np.uint64)
    distance = residues.lengths[i].copy()
    best = distance.copy()
    equal, plus, minus, grows, shrinks, *spare = np.empty((7, n_pairs), np.uint64)
    for letters in residues.rows(j).T.copy():
        at = row_K * LETTERS + letters
        grows[:], shrinks[:] = 0, 0
        for w in range(n_words):
            np.take(masks_WP[w], at, out=equal, mode="clip")
            _advance(equal, up_WK[w], down_WK[w], grows, shrinks, plus, minus, *spare)
            if w in ends:
                distance += ((plus >> last_bit) & ends[w]).view(np.int64)
                distance -= ((minus >> last_bit) & ends[w]).view(np.int64)
            np.right_shift(plus, _TOP, out=grows)
            np.right_shift(minus, _TOP, out=shrinks)
        # Padding after the end of the text equals nothing, so it never improves a distance.
        np.minimum(best, distance, out=best)
    return best


def _advance(
    equal: Words, up: Words, down: Words, grows: Words, shrinks: Words,
    plus: Words, minus: Words, vertical: Words, above: Words,
) -> None:  # fmt: skip
    """Advance one word of every pattern by one residue of its text; updates `up` and `down`.

    `up` and `down` hold the steps of +1 and -1 down the column of the distance table, `grows` and
    `shrinks` those along the row above the word. Fills `plus` and `minus` with the steps along
    each row of the word. All results go to given arrays: allocating them takes half of the time.
    """
    np.bitwise_or(equal, down, out=vertical)
    np.bitwise_or(equal, shrinks, out=equal)
    horizontal = np.bitwise_and(equal, up, out=above)
    horizontal += up
    horizontal ^= up
    horizontal |= equal
    np.bitwise_or(horizontal, up, out=plus)
    np.invert(plus, out=plus)
    plus |= down
    np.bitwise_and(up, horizontal, out=minus)
    np.left_shift(plus, _ONE, out=above)
    above |= grows
    np.bitwise_and(above, vertical, out=down)
    above |= vertical
    np.invert(above, out=above)
    np.left_shift(minus, _ONE, out=up)
    up |= shrinks
    up |= above


def _letter_masks(residues: Residues, patterns: Ints) -> Words:
    """Positions of each letter in each pattern as bits, shape (W, patterns * LETTERS)."""
    lengths = residues.lengths[patterns]
    n_words = -(-int(lengths.max()) // BITS)
    masks_WP = np.zeros((n_words, len(patterns) * LETTERS), np.uint64)
    for position, letters in enumerate(residues.rows(patterns).T):
        word, bit = divmod(position, BITS)
        here = np.flatnonzero(position < lengths)
        masks_WP[word][here * LETTERS + letters[here]] |= np.uint64(1 << bit)
    return masks_WP
