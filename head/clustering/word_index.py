"""Index of the words (k-mers) in a set of sequences, to find candidates for an alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.head.clustering.alignment import LETTERS, Residues, ragged_rows

Ints: TypeAlias = NDArray[np.int64]

WORD = 5
"""Residues per word: long enough to be rare, short enough that many disjoint ones fit."""


@dataclass(frozen=True, slots=True)
class WordIndex:
    """Where each word of `WORD` residues occurs in N strings."""

    words: NDArray[np.int32]
    """Ids of the words of all strings, concatenated; padded for `ragged_rows`."""
    starts: Ints
    """Where the words of each string begin, shape (N,)."""
    lengths: Ints
    """Words per string, shape (N,)."""
    count: Ints
    """Occurrences of each word."""
    postings: NDArray[np.int32]
    """Strings that contain each word, ordered by word."""
    first: Ints
    """Where the postings of each word begin."""

    @classmethod
    def of(cls, residues: Residues) -> WordIndex:
        """Index encoded strings."""
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

    def words_of(self, i: int) -> NDArray[np.int32]:
        """Words of string i in order, shape (lengths[i],)."""
        return self.words[self.starts[i] : self.starts[i] + self.lengths[i]]

    def rare_disjoint(self, i: int) -> NDArray[np.int32]:
        """Words of string i that do not overlap, shape (W,), chosen greedily from the rarest."""
        words = self.words_of(i)
        taken, chosen = [False] * (len(words) + WORD), []
        for position in np.argsort(self.count[words], kind="stable").tolist():
            if not (taken[position] or taken[position + WORD - 1]):
                taken[position : position + WORD] = [True] * WORD
                chosen.append(position)
        return words[chosen]

    def hits(self, words: NDArray[np.int32]) -> NDArray[np.uint16]:
        """How many of the given words each string contains, shape (N,)."""
        count = np.zeros(len(self.lengths), np.uint16)
        for word in words.tolist():
            count[self.postings[self.first[word] : self.first[word] + self.count[word]]] += 1
        return count

    def shared(self, i: int, j: Ints) -> Ints:
        """How many words of each string in j occur in string i, shape (len(j),)."""
        known = np.zeros(len(self.count), bool)
        known[self.words_of(i)] = True
        rows = ragged_rows(self.words, self.starts[j], self.lengths[j], 0)
        inside = np.arange(rows.shape[1]) < self.lengths[j][:, None]
        return np.asarray((known[rows] & inside).sum(axis=1), np.int64)
