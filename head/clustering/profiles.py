"""Lower bounds on edit distances from the pairs of neighbouring residues, for many strings at once.

A string's profile has two bits for each pair of residues: it occurs, and it occurs again. One edit
changes at most `BITS_PER_EDIT` of them, so the number of differing bits bounds the distance from
below. It is itself a distance: strings whose distances to a third one differ too much are not
compared at all.

Legend: N strings, P pivots, B strings of a block, C candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = NDArray[np.int16]

BITS_PER_EDIT = 4
"""A substitution removes two pairs of residues and adds two."""
BITS_PER_LOSS = 2
"""Largest number of bits of a string that are lost by one edit."""
PIVOTS = 256
BLOCK = 128
"""Strings that are compared with their candidates at a time."""
_CHUNK = 4096
_RESIDUES = 20
_NUMBER = np.zeros(128, np.int64)  # of a residue; others count as A, which adds no difference
_NUMBER[[ord(letter) for letter in "ACDEFGHIKLMNPQRSTVWY"]] = np.arange(_RESIDUES)


class Profiles:
    """Profiles of N strings of residues."""

    def __init__(self, strings: Sequence[str]) -> None:
        chunks = [strings[k : k + _CHUNK] for k in range(0, len(strings), _CHUNK)]
        self._bits = np.concatenate([_pack(chunk) for chunk in chunks])
        self._ones = np.bitwise_count(self._bits).sum(axis=1, dtype=np.int16)

    def sort(self, order: Ints) -> None:
        """Rearrange the strings."""
        self._bits, self._ones = self._bits[order], self._ones[order]

    def lost(self, i: Ints, j: Ints) -> Counts:
        """Number of bits of each of strings i that each of j lacks, shape (C, B)."""
        shared = self._unpack(i) @ self._unpack(j).T
        return np.asarray(self._ones[i][:, None] - shared.astype(np.int16))

    def differing(self, i: Ints, j: Ints) -> Counts:
        """Number of bits that differ between each of strings i and each of j, shape (C, B)."""
        lost = self.lost(i, j)
        lost += lost
        lost += self._ones[j] - self._ones[i][:, None]
        return lost

    def _unpack(self, which: Ints) -> NDArray[np.float32]:
        return np.unpackbits(self._bits[which], axis=1).astype(np.float32)


class Neighbours:
    """N strings in an order in which neighbours are similar.

    Attributes
    ----------
    order : NDArray, shape=(N,), dtype=int64
        Where each string was; all indices refer to the new order.
    profiles : Profiles
        In the new order.
    """

    def __init__(self, profiles: Profiles, n: int) -> None:
        every = np.arange(n)
        pivots = np.random.default_rng(0).permutation(n)[:PIVOTS]
        chunks = [every[k : k + _CHUNK] for k in range(0, n, _CHUNK)]
        to_pivot_NP = np.concatenate([profiles.differing(chunk, pivots) for chunk in chunks])
        nearest = to_pivot_NP.argmin(axis=1)
        self.order: Ints = np.lexsort((to_pivot_NP[every, nearest], nearest))
        self._to_pivot_PN = np.ascontiguousarray(to_pivot_NP[self.order].T)
        self.profiles = profiles
        profiles.sort(self.order)

    def blocks(self, edits: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield blocks of strings, and the strings from there on that may be within `edits`."""
        slack = BITS_PER_EDIT * edits
        for start in range(0, len(self.order), BLOCK):
            block_PB = self._to_pivot_PN[:, start : start + BLOCK]
            rest_PN = self._to_pivot_PN[:, start:]
            near = np.ones(rest_PN.shape[1], bool)
            low, high = block_PB.min(axis=1) - slack, block_PB.max(axis=1) + slack
            for to_pivot_N, lowest, highest in zip(rest_PN, low, high, strict=True):
                near &= (to_pivot_N >= lowest) & (to_pivot_N <= highest)
            yield start + np.arange(block_PB.shape[1]), start + np.flatnonzero(near)


def _pack(strings: Sequence[str]) -> NDArray[np.uint8]:
    """Bits of the profile of each string, eight per byte."""
    codes = _NUMBER[np.frombuffer("".join(strings).encode("ascii"), np.uint8)]
    lengths = np.array([len(text) for text in strings])
    owner = np.repeat(np.arange(len(strings)), lengths)
    within = owner[1:] == owner[:-1]
    pairs = owner[1:] * _RESIDUES**2 + codes[:-1] * _RESIDUES + codes[1:]
    counts = np.bincount(pairs[within], minlength=len(strings) * _RESIDUES**2)
    counts = counts.reshape(len(strings), -1)
    return np.packbits(np.concatenate([counts > 0, counts > 1], axis=1), axis=1)
