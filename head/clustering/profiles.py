"""Lower bounds on edit distances from the pairs of neighbouring residues, for many strings at once.

A string's profile has two bits for each pair of residues: it occurs, and it occurs again. One edit
changes at most `BITS_PER_EDIT` of them, so the number of differing bits bounds the distance from
below. So does the squared distance between projections of profiles, which is never larger and is
a matrix product of few columns.

Legend: N strings, B strings of a block, C candidates, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints, Matrix
from abag.embed.sequences.chains import STANDARD_RESIDUES

Counts: TypeAlias = NDArray[np.int16]

BITS = 832
"""Two for each pair of 20 residues, rounded up to words of 64."""
BITS_PER_EDIT = 4
"""A substitution removes two pairs of residues and adds two."""
BITS_PER_LOSS = 2
"""Largest number of bits of a string that are lost by one edit."""
SAMPLE = 8192
"""Strings whose principal components become the axes; up to twice as many are not projected."""
DIMENSIONS = (64, 96, 128, 160, 192, 256)
ROUNDING = 0.5
"""More than the error of `Projections.distances`."""
PAIR_COST = 3000
"""Time to compare the profiles of one pair, in dimensions of the matrix product."""
PIVOTS = 256
_RESIDUES = 20
_NUMBER = np.zeros(128, np.int64)  # of a residue; others count as A, which adds no difference
_NUMBER[[ord(letter) for letter in STANDARD_RESIDUES]] = np.arange(_RESIDUES)


class Profiles:
    """Profiles of N strings of residues."""

    def __init__(self, strings: Sequence[str]) -> None:
        parts = [strings[part] for part in slices(0, len(strings))]
        self._words = np.concatenate([_pack(part) for part in parts])

    def __len__(self) -> int:
        return len(self._words)

    def sort(self, order: Ints) -> None:
        """Rearrange the strings."""
        self._words = self._words[order]

    def lost(self, i: Ints, j: Ints) -> Counts:
        """Number of bits of each of strings i that each of j lacks, shape (C, B)."""
        bits_CD = self.bits(i)
        shared_CB = bits_CD @ self.bits(j).T
        return np.asarray(bits_CD.sum(axis=1)[:, None] - shared_CB, np.int16)

    def differing(self, i: Ints, j: Ints) -> Ints:
        """Number of bits that differ between strings i and j, shape (pairs,)."""
        differing = np.empty(len(i), np.int64)
        for part in slices(0, len(i)):  # each pair takes over 200 bytes
            words = self._words[i[part]] ^ self._words[j[part]]
            differing[part] = np.bitwise_count(words).sum(axis=1)
        return differing

    def bits(self, which: Ints | slice) -> Matrix:
        """Profiles as zeros and ones, shape (C, BITS)."""
        return np.unpackbits(self._words[which].view(np.uint8), axis=1).astype(np.float32)


class Projections:
    """Projections of N profiles, to compare many pairs at once.

    Parameters
    ----------
    profiles : Profiles
    edits : int
        Distance at which pairs are to be told apart; decides the number of dimensions.
    """

    def __init__(self, profiles: Profiles, edits: int) -> None:
        axes = _axes(profiles, edits) if len(profiles) > 2 * SAMPLE else None
        width = BITS if axes is None else axes.shape[1]
        self._x_ND = np.ones((len(profiles), width + 2), np.float32)

        for part in slices(0, len(profiles)):
            x_CD = profiles.bits(part) if axes is None else profiles.bits(part) @ axes
            self._x_ND[part, :width] = x_CD
            np.einsum("CD,CD->C", x_CD, x_CD, out=self._x_ND[part, width])

    def sort(self, group: NDArray[np.bool_]) -> Ints:
        """Rearrange the strings by group and then by similarity; return where each was."""
        n = len(self._x_ND)
        pivots = np.random.default_rng(0).permutation(n)[:PIVOTS]
        nearest, distance = np.empty(n, np.int64), np.empty(n, np.float32)
        for part in slices(0, n):
            to_pivots = self.distances(part, pivots)
            nearest[part], distance[part] = to_pivots.argmin(axis=1), to_pivots.min(axis=1)
        order = np.lexsort((distance, nearest, group))
        for few in slices(0, self._x_ND.shape[1], 16):  # a copy of all takes much memory
            self._x_ND[:, few] = self._x_ND[order, few]
        return order

    def distances(self, i: Ints | slice, j: Ints | slice) -> Matrix:
        """Squared distance of each of strings i to each of j, shape (C, B).

        Except for an error below `ROUNDING`, it is at most the number of bits that differ.
        """
        y_BD = self._x_ND[j]
        square_B, one_B = y_BD[:, -2:-1], y_BD[:, -1:]
        y_BD = np.concatenate([-2 * y_BD[:, :-2], one_B, square_B], axis=1)
        return np.asarray(self._x_ND[i] @ y_BD.T)


def _axes(profiles: Profiles, edits: int) -> Matrix:
    """Orthonormal axes of the largest variance, as many as make comparisons cheapest."""
    drawn = np.random.default_rng(0).permutation(len(profiles))
    x_CD = profiles.bits(drawn[:SAMPLE])
    x_CD -= x_CD.mean(axis=0)
    axes = np.linalg.eigh(x_CD.T @ x_CD)[1][:, : -max(DIMENSIONS) - 1 : -1]
    # Other strings than those of the axes, to which distances are too large.
    first, second = (profiles.bits(drawn[-k:][: SAMPLE // 2]) @ axes for k in (SAMPLE, SAMPLE // 2))
    bounds_CD = ((first - second) ** 2).cumsum(axis=1)
    near = {d: (bounds_CD[:, d - 1] <= BITS_PER_EDIT * edits).mean() for d in DIMENSIONS}
    cheapest = min(near, key=lambda d: d + PAIR_COST * near[d])
    return np.ascontiguousarray(axes[:, :cheapest])


def slices(start: int, stop: int, size: int = 2048) -> list[slice]:
    """Divide a range into slices of at most `size`."""
    return [slice(k, min(k + size, stop)) for k in range(start, stop, size)]


def _pack(strings: Sequence[str]) -> NDArray[np.uint64]:
    """Bits of the profile of each string, in words."""
    codes = _NUMBER[np.frombuffer("".join(strings).encode("ascii"), np.uint8)]
    lengths = np.array([len(text) for text in strings])
    owner = np.repeat(np.arange(len(strings)), lengths)
    within = owner[1:] == owner[:-1]
    pairs = owner[1:] * _RESIDUES**2 + codes[:-1] * _RESIDUES + codes[1:]
    counts = np.bincount(pairs[within], minlength=len(strings) * _RESIDUES**2)
    counts = counts.reshape(len(strings), -1)
    bits = np.packbits(np.concatenate([counts > 0, counts > 1], axis=1), axis=1)
    return np.pad(bits, ((0, 0), (0, BITS // 8 - bits.shape[1]))).view(np.uint64)
