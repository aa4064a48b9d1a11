"""Edit distances of many pairs of strings of residues, exact, and lower bounds on them.

Distances of whole strings come from rapidfuzz, which has no alignment of one string inside
another. That is Myers' bit-parallel method in numpy: one bit per residue of the pattern, one step
per residue of the text, each step for all pairs of a batch at once.

References
----------
Myers, J. ACM 46, 395 (1999); Hyyrö, Nordic J. Computing 10, 29 (2003) for patterns of
several words.

Legend: N strings, K pairs, C rows and B columns of a block of pairs, W words of 64 residues,
L residues, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints, Matrix
from abag.embed.sequences.chains import STANDARD_RESIDUES

Words: TypeAlias = NDArray[np.uint64]
Strings: TypeAlias = NDArray[np.object_]

LETTERS = 27
"""Codes 0 to 25 are A to Z; 26 is padding and equals nothing."""
PADDING = chr(ord("A") + LETTERS - 1)
WORD = 64
BATCH_PAIRS = 8192
"""Pairs aligned at once: few enough for the processor's cache, enough for numpy."""
WINDOWS, SIMILAR = 8, 32
"""Windows of `contained_bounds` in the length of a string, and strings that share windows."""
_ONE, _TOP = np.uint64(1), np.uint64(WORD - 1)


def whole_distances(first: Strings, second: Strings, largest: int | None = None) -> Ints:
    """Edit distances of K pairs of whole strings; above `largest` any larger number."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cpdist

    found = cpdist(
        first.tolist(), second.tolist(), scorer=Levenshtein.distance, score_cutoff=largest,
        dtype=np.int32, workers=-1,
    )  # fmt: skip
    return np.asarray(found, np.int64)


def contained_distances(patterns: Strings, texts: Strings) -> Ints:
    """Smallest numbers of edits that turn K patterns, none empty, into parts of their texts."""
    lengths = [np.array([len(one) for one in strings]) for strings in (patterns, texts)]
    order = np.lexsort((lengths[1], -(-lengths[0] // WORD)))  # wastes little on padding
    distance = np.empty(len(patterns), np.int64)
    for start in range(0, len(order), BATCH_PAIRS):
        batch = order[start : start + BATCH_PAIRS]
        distance[batch] = _batch_distances(patterns[batch], texts[batch])
    return distance


def _batch_distances(patterns: Strings, texts: Strings) -> Ints:
    unique, row_K = np.unique(patterns, return_inverse=True)
    masks_WP = _letter_masks(unique.tolist())
    distance = np.array([len(pattern) for pattern in patterns])
    last_word, last_bit = np.divmod(distance - 1, WORD)
    last_bit = last_bit.astype(np.uint64)
    ends_WK = (last_word == np.arange(len(masks_WP))[:, None]).astype(np.uint64)
    # steps of +1 and -1 down the column of the distance table
    up_WK = np.full(ends_WK.shape, ~np.uint64(0))
    down_WK = np.zeros_like(up_WK)
    best = distance.copy()
    for letters in _codes(texts.tolist()).T:
        at = row_K * LETTERS + letters
        grows = shrinks = np.uint64(0)  # steps along the row above the word
        for w, masks in enumerate(masks_WP):
            equal, up, down = masks[at], up_WK[w], down_WK[w]
            vertical = equal | down
            equal |= shrinks
            horizontal = (((equal & up) + up) ^ up) | equal
            plus, minus = down | ~(horizontal | up), up & horizontal
            distance += ((plus >> last_bit) & ends_WK[w]).view(np.int64)
            distance -= ((minus >> last_bit) & ends_WK[w]).view(np.int64)
            above, below = (plus << _ONE) | grows, (minus << _ONE) | shrinks
            up_WK[w], down_WK[w] = below | ~(vertical | above), above & vertical
            grows, shrinks = plus >> _TOP, minus >> _TOP
        # Padding after the end of the text equals nothing, so it never improves a distance.
        np.minimum(best, distance, out=best)
    return best


def _codes(strings: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letters of strings as numbers, padded to the longest, (N, L)."""
    width = max(map(len, strings), default=0)
    text = "".join(one.ljust(width, PADDING) for one in strings).encode("ascii")
    return np.frombuffer(text, np.uint8).reshape(len(strings), width) - np.uint8(ord("A"))


def _letter_masks(patterns: Sequence[str]) -> Words:
    """Positions of each letter in each pattern as bits, shape (W, patterns * LETTERS)."""
    codes_NL = _codes(patterns)
    masks_WP = np.zeros((-(-codes_NL.shape[1] // WORD), len(patterns) * LETTERS), np.uint64)
    for position, letters in enumerate(codes_NL.T):
        word, bit = divmod(position, WORD)
        here = np.flatnonzero(letters != LETTERS - 1)
        masks_WP[word][here * LETTERS + letters[here]] |= np.uint64(1 << bit)
    return masks_WP


def contained_bounds(strings: Strings, texts: Strings) -> Ints:
    """Lower bounds on the edits that turn each of C strings into a part of each of B texts, (C, B).

    `strings` are sorted by length. A string of m residues that becomes a part of a text by d edits
    keeps m - d residues in order, and has them in common with at most m residues of the text: those
    of a longer part beyond m are insertions. So d is at least m minus the longest common
    subsequence with any part of m residues. Overlapping windows contain all of them.
    """
    from rapidfuzz.distance import LCSseq
    from rapidfuzz.process import cdist

    bounds = np.empty((len(strings), len(texts)), np.int64)
    for start in range(0, len(strings), SIMILAR):
        group = strings[start : start + SIMILAR].tolist()
        lengths = np.array([len(one) for one in group])
        longest, windows, first = int(lengths.max()), list[str](), list[int]()
        step = -(-longest // WINDOWS)
        for text in texts:
            first.append(len(windows))
            starts = range(0, max(len(text) - longest, 1), step)
            windows += [text[at : at + longest + step] for at in starts]
        common = cdist(group, windows, scorer=LCSseq.similarity, dtype=np.int32, workers=-1)
        bounds[start : start + SIMILAR] = lengths[:, None] - np.maximum.reduceat(
            common, first, axis=1
        )
    return bounds


BITS = 832
"""Two for each pair of 20 residues, rounded up to words of 64."""
BITS_PER_EDIT = 4
"""A substitution removes two pairs of residues and adds two."""
SAMPLE = 8192
"""Strings whose principal components become the axes; up to twice as many are not projected."""
DIMENSIONS = (64, 96, 128, 160, 192, 256)
ROUNDING = 0.5
"""More than the error of `Profiles.distances`."""
PAIR_COST = 3000
"""Time to compare the profiles of one pair, in dimensions of the matrix product."""
PART = 2048
"""Strings that are unpacked at a time."""
_RESIDUES = len(STANDARD_RESIDUES)
_NUMBER = np.zeros(128, np.int64)  # of a residue; others count as A, which adds no difference
_NUMBER[[ord(letter) for letter in STANDARD_RESIDUES]] = np.arange(_RESIDUES)


class Profiles:
    """Which pairs of neighbouring residues occur in N strings, and which occur again.

    One edit changes at most `BITS_PER_EDIT` of these bits, so the number of bits that differ bounds
    the edit distance from below. So does the squared distance between projections of the bits,
    which is never larger and is a matrix product of few columns.

    Parameters
    ----------
    edits : int
        Distance at which pairs are to be told apart; decides the number of dimensions.
    """

    def __init__(self, strings: Strings, edits: int) -> None:
        parts = [slice(at, at + PART) for at in range(0, len(strings), PART)]
        self._words = np.concatenate([_pack(strings[part].tolist()) for part in parts])
        axes = self._axes(edits) if len(strings) > 2 * SAMPLE else None
        width = BITS if axes is None else axes.shape[1]
        self._x_ND = np.ones((len(strings), width + 2), np.float32)
        for part in parts:
            x_CD = self.bits(part) if axes is None else self.bits(part) @ axes
            self._x_ND[part, :width] = x_CD
            np.einsum("CD,CD->C", x_CD, x_CD, out=self._x_ND[part, width])

    def bits(self, which: Ints | slice) -> Matrix:
        """Profiles as zeros and ones, shape (C, BITS)."""
        return np.unpackbits(self._words[which].view(np.uint8), axis=1).astype(np.float32)

    def differing(self, i: Ints, j: Ints) -> Ints:
        """Number of bits that differ between K pairs of strings."""
        differing = np.empty(len(i), np.int64)
        for at in range(0, len(i), PART):  # each pair takes over 200 bytes
            part = slice(at, at + PART)
            words = self._words[i[part]] ^ self._words[j[part]]
            differing[part] = np.bitwise_count(words).sum(axis=1)
        return differing

    def distances(self, i: Ints, j: Ints) -> Matrix:
        """Squared distance of each of strings i to each of j, shape (C, B).

        Except for an error below `ROUNDING`, it is at most the number of bits that differ.
        """
        y_BD = self._x_ND[j]
        square_B, one_B = y_BD[:, -2:-1], y_BD[:, -1:]
        y_BD = np.concatenate([-2 * y_BD[:, :-2], one_B, square_B], axis=1)
        return np.asarray(self._x_ND[i] @ y_BD.T)

    def _axes(self, edits: int) -> Matrix:
        """Orthonormal axes of the largest variance, as many as make comparisons cheapest."""
        drawn = np.random.default_rng(0).permutation(len(self._words))
        x_CD = self.bits(drawn[:SAMPLE])
        x_CD -= x_CD.mean(axis=0)
        axes = np.linalg.eigh(x_CD.T @ x_CD)[1][:, : -max(DIMENSIONS) - 1 : -1]
        # Other strings than those of the axes, to which distances are too large.
        first, second = (self.bits(drawn[-k:][: SAMPLE // 2]) @ axes for k in (SAMPLE, SAMPLE // 2))
        bounds_CD = ((first - second) ** 2).cumsum(axis=1)
        near = {d: (bounds_CD[:, d - 1] <= BITS_PER_EDIT * edits).mean() for d in DIMENSIONS}
        cheapest = min(near, key=lambda d: d + PAIR_COST * near[d])
        return np.ascontiguousarray(axes[:, :cheapest])


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
