"""Edit distances of many pairs of sequences at once, exact, in numpy.

Myers' bit-parallel method: one bit a residue of the pattern, one step a residue of the text, and
every step done for all pairs together.

References
----------
Myers, J. ACM 46, 395 (1999); Hyyrö, Nordic J. Computing 10, 29 (2003) for patterns of many words.

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
"""A to Z are 0 to 25; 26 is padding and equals nothing."""
BITS = 64
_ONE, _TOP = np.uint64(1), np.uint64(BITS - 1)


def ragged_rows(flat: NDArray[Any], starts: Ints, lengths: Ints, fill: int) -> NDArray[Any]:
    """Pieces of a flat array as rows of one matrix, filled up at the end.

    ``flat`` must go on for the longest piece beyond every start.
    """
    width = int(lengths.max(initial=1))
    rows = np.lib.stride_tricks.sliding_window_view(flat, width)[starts]
    if (lengths < width).any():
        rows[np.arange(width) >= lengths[:, None]] = fill
    return rows


@dataclass(frozen=True, slots=True)
class Residues:
    """Strings laid end to end, as numbers."""

    codes: NDArray[np.uint8]
    """Followed by padding, as `ragged_rows` wants it."""
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
        """Residues of the strings ``which``, padded: shape (K, L)."""
        return ragged_rows(self.codes, self.starts[which], self.lengths[which], LETTERS - 1)


def hamming(residues: Residues, i: Ints, j: Ints) -> Ints:
    """Differing positions of each pair of strings of one length, (K,)."""
    differs: NDArray[np.bool_] = residues.rows(i) != residues.rows(j)
    return np.asarray(differs.sum(axis=1), np.int64)


def edit_distances(residues: Residues, i: Ints, j: Ints, *, inside: bool = False) -> Ints:
    """Least insertions, deletions and substitutions between strings ``i`` and ``j``.

    Parameters
    ----------
    residues : Residues
        The strings; none of ``i`` is empty.
    i, j : NDArray, shape=(K,), dtype=int64
        The pairs.
    inside : bool
        What string ``j`` has before and after string ``i`` costs nothing.

    Returns
    -------
    NDArray, shape=(K,), dtype=int64
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
        grows = np.full(len(i), 0 if inside else 1, np.uint64)
        shrinks = np.zeros(len(i), np.uint64)
        active = step < residues.lengths[j]
        for w in range(n_words):
            plus, minus = _advance(masks_WP[w][at], up_WK[w], down_WK[w], grows, shrinks)
            change = ((plus >> last_bit) & _ONE).astype(np.int64)
            change -= ((minus >> last_bit) & _ONE).astype(np.int64)
            distance += np.where(active & (last_word == w), change, 0)
            grows, shrinks = plus >> _TOP, minus >> _TOP
        np.minimum(best, distance, out=best, where=active)
    return best if inside else distance


def _advance(
    equal: Words, up: Words, down: Words, grows: Words, shrinks: Words
) -> tuple[Words, Words]:
    """Take one word of every pattern over one residue of its text; ``up``, ``down`` change.

    ``up`` and ``down`` hold the steps of +1 and -1 down the column of the distance table,
    ``grows`` and ``shrinks`` those along the row above the word; returned are the steps along
    each row of the word.
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
    """Where each pattern has each letter: bits, shape (W, patterns * LETTERS)."""
    lengths = residues.lengths[patterns]
    n_words = -(-int(lengths.max()) // BITS)
    masks_WP = np.zeros((n_words, len(patterns) * LETTERS), np.uint64)
    for position, letters in enumerate(residues.rows(patterns).T):
        word, bit = divmod(position, BITS)
        here = np.flatnonzero(position < lengths)
        masks_WP[word][here * LETTERS + letters[here]] |= np.uint64(1 << bit)
    return masks_WP
