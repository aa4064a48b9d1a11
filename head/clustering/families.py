"""Families of strings of one length that differ in few positions, such as point mutants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints

VARIANT_DIFFERENCE = 0.1
"""Largest share of positions at which a member differs from the parent of its family."""


@dataclass(frozen=True, slots=True)
class Families:
    """N strings, each in one of F families."""

    parent: Ints
    """Index of the string that the others of a family were compared with, shape (F,)."""
    size: Ints
    """Number of members, the parent included, shape (F,)."""
    members: Ints
    """Indices of the strings, family by family and ascending, shape (N,)."""
    differing: Ints
    """Positions at which each of `members` differs from its parent, shape (N,)."""

    @classmethod
    def of(cls, strings: NDArray[np.object_]) -> Families:
        """Group strings that are sorted by length."""
        lengths = np.array([len(text) for text in strings])
        found: list[tuple[Ints, Ints]] = []
        for same_length in np.split(np.arange(len(strings)), np.flatnonzero(np.diff(lengths)) + 1):
            text = "".join(strings[same_length]).encode("ascii")
            residues = np.frombuffer(text, np.uint8).reshape(len(same_length), -1)
            found += [(same_length[of], differing) for of, differing in _families(residues)]
        members, differing = (np.concatenate(parts) for parts in zip(*found, strict=True))
        parents = np.array([family[0] for family, _ in found])
        return cls(parents, np.array([len(family) for family, _ in found]), members, differing)

    @property
    def last(self) -> Ints:
        """Index of the last member of each family, shape (F,)."""
        return self.members[np.cumsum(self.size) - 1]

    @property
    def radius(self) -> Ints:
        """Largest difference in each family, shape (F,)."""
        return np.maximum.reduceat(self.differing, np.cumsum(self.size) - self.size)

    def member_pairs(self, i: Ints, family: Ints) -> tuple[Ints, Ints]:
        """Pair each i with each member of its family; which pair, and where in `members`."""
        size = self.size[family]
        pair = np.repeat(np.arange(len(i)), size)
        begin = (np.cumsum(self.size) - self.size)[family] - (np.cumsum(size) - size)
        return pair, begin[pair] + np.arange(len(pair))


def _families(residues: NDArray[np.uint8]) -> Iterator[tuple[Ints, Ints]]:
    """Yield each family of strings of L residues, (N, L): members, and where each differs.

    The first string that is in no family yet is the parent of the next one.
    """
    most = int(VARIANT_DIFFERENCE * residues.shape[1])
    # so many positions differ at more than `most` in nearly all pairs of unrelated strings
    first_ones = np.ascontiguousarray(residues[:, : 2 * (most + 1)].T)
    is_free = np.ones(len(residues), np.bool_)
    for parent in range(len(residues)):
        if not is_free[parent]:
            continue
        differ = first_ones[:, parent:] != first_ones[:, parent, None]
        near = parent + np.flatnonzero(differ.sum(axis=0, dtype=np.int32) <= most)
        near = near[is_free[near]]
        differing = np.count_nonzero(residues[near] != residues[parent], axis=1)
        members, differing = near[differing <= most], differing[differing <= most]
        is_free[members] = False
        yield members, differing
