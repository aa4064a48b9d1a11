"""What baselines read from the residues of a table, whatever the split.

N antibodies, M antigens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Ints, Matrix
from abag.embed.sequences.chains import STANDARD_RESIDUES
from abag.head.clustering.clusters import distance_to_parent

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable


COUNTED = 4_096
"""Texts whose residues are counted at a time, which stay in the CPU's cache."""


class ResidueFeatures:
    """Computed once, by the first of several threads that asks."""

    def __init__(self, table: SequenceTable) -> None:
        self._table, self._lock = table, Lock()

    @property
    def composition(self) -> tuple[Matrix, Matrix]:
        """Residue frequencies and lengths of the antibodies, (N, 42), and antigens, (M, 21).

        Heavy and light chains are counted separately, the chains of an antigen together.
        """
        with self._lock:
            return self._composition

    @property
    def mutations(self) -> Ints:
        """Edits between each antibody and the consensus of all, (N,)."""
        with self._lock:
            return self._mutations

    @cached_property
    def _composition(self) -> tuple[Matrix, Matrix]:
        antibodies, antigens = self._table.antibodies.chains, self._table.antigens.chains
        heavy, light = ([chains[at] for chains in antibodies] for at in (0, 1))
        return _frequencies(heavy, light), _frequencies(["".join(chains) for chains in antigens])

    @cached_property
    def _mutations(self) -> Ints:
        chains = self._table.antibodies.chains
        return distance_to_parent(chains, np.zeros(len(chains), np.int64))


def _frequencies(*columns: Sequence[str]) -> Matrix:
    """Return the frequencies of residues in each column of texts, then their lengths."""
    counts = [count_residues(texts) for texts in columns]
    lengths = [count.sum(1, keepdims=True) for count in counts]
    frequencies = [c / np.maximum(1, n) for c, n in zip(counts, lengths, strict=True)]
    return np.hstack([*frequencies, *lengths])


def count_residues(texts: Sequence[str]) -> Matrix:
    """Count each of the 20 `STANDARD_RESIDUES` in N texts, (N, 20); other letters are left out."""
    letters = len(STANDARD_RESIDUES)
    column = np.full(256, letters, np.int64)
    column[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(letters)
    counts = np.empty((len(texts), letters), np.float32)
    for at in range(0, len(texts), COUNTED):
        some = texts[at : at + COUNTED]
        cells = column.take(np.frombuffer("".join(some).encode("ascii"), np.uint8))
        row = np.repeat(np.arange(len(some)), [len(text) for text in some])
        cells += row * (letters + 1)
        found = np.bincount(cells, minlength=len(some) * (letters + 1))
        counts[at : at + COUNTED] = found.reshape(len(some), -1)[:, :-1]
    return counts
