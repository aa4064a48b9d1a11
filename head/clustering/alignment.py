"""Edit distances of many pairs of sequences at once, exact, in numpy.

Myers' bit-parallel method: one bit per residue of the pattern, one step per residue of the text,
each step for all pairs at once.

References
----------
Myers, J. ACM 46, 395 (1999); Hyyrö, Nordic J. Computing 10, 29 (2003) for patterns of
several words.

Legend: K pairs, W words of 64 residues, L residues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

LETTERS = 27
"""Codes 0 to 25 are A to Z; 26 is padding and equals nothing."""
BITS = 64
_ONE, _TOP = np.uint64(1), np.uint64(BITS - 1)


def ragged_rows(flat: NDArray[Any], starts: Ints, lengths: Ints, fill: int) -> NDArray[Any]:
    """Copy ``flat[starts[k] : starts[k] + lengths[k]]`` into row k, shape (K, longest length).

    Shorter rows end in `fill`. Every start plus the longest length must lie inside `flat`.
    """
    width = int(lengths.max(initial=1))
    rows = np.lib.stride_tricks.sliding_window_view(flat, width)[starts]
    if (lengths < width).any():
        rows[np.arange(width) >= lengths[:, None]] = fill
    return rows


@dataclass(frozen=True, slots=True)
class Residues:
    """Concatenated strings of residues, encoded as numbers."""

    codes: NDArray[np.uint8]
    """Followed by the padding that `ragged_rows` needs."""
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
        return ragged_rows(self.codes, self.starts[which], self.lengths[which], LETTERS - 1)


def hamming(residues: Residues, i: Ints, j: Ints) -> Ints:
    """Count the differing positions of strings i and j of equal length, shape (K,).

    `i` and `j` have shape (K,) or (1,).
    """
    distance: Ints = np.count_nonzero(residues.rows(i) != residues.rows(j), axis=1)
    return distance


def edit_distances(residues: Residues, i: Ints, j: Ints, *, contained: bool = False) -> Ints:
    """Smallest number of insertions, deletions and substitutions between strings i and j.

    `i`, `j` and the result have shape (K,); no string in `i` is empty. If `contained`, string i is
    aligned inside string j, whose unaligned ends cost nothing.
    """
    patterns, row_K = np.unique(i, return_inverse=True)
    masks_WP = _letter_masks(residues, patterns)
    n_words = len(masks_WP)
    last_word, last_bit = np.divmod(residues.lengths[i] - 1, BITS)
    last_bit = last_bit.astype(np.uint64)
    up_WK = np.full((n_words, len(i)), ~np.uint64(0))
    down_WK = np.zeros((n_words, len(i)), np.uint64)
    distance = residues.lengths[i].copy()
    best = distance.copy()
    for step, letters in enumerate(residues.rows(j).T.copy()):
        at = row_K * LETTERS + letters
        grows = np.full(len(i), 0 if contained else 1, np.uint64)
        shrinks = np.zeros(len(i), np.uint64)
        active = step < residues.lengths[j]
        for w in range(n_words):
            plus, minus = _advance(masks_WP[w][at], up_WK[w], down_WK[w], grows, shrinks)
            change = ((plus >> last_bit) & _ONE).astype(np.int64)
            change -= ((minus >> last_bit) & _ONE).astype(np.int64)
            distance += np.where(active & (last_word == w), change, 0)
            grows, shrinks = plus >> _TOP, minus >> _TOP
        np.minimum(best, distance, out=best, where=active)
    return best if contained else distance


def _advance(
    equal: Words, up: Words, down: Words, grows: Words, shrinks: Words
) -> tuple[Words, Words]:
    """Advance one word of every pattern by one residue of its text; updates `up` and `down`.

    `up` and `down` hold the steps of +1 and -1 down the column of the distance table, `grows` and
    `shrinks` those along the row above the word. Returns the steps along each row of the word.
    """
    vertical = equal | down
    equal = equal | shrinks
    horizontal = (((equal & up) + up) ^ up) | equal
    plus, minus = down | ~(horizontal | up), up & horizontal
    above_plus, above_minus = (plus << _ONE) | grows, (minus << _ONE) | shrinks
    up[:] = above_minus | ~(vertical | above_plus)
    down[:] = above_plus & vertical
    return plus, minus


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
