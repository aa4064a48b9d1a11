"""Counts and frequencies of amino acids in sequences: what a model learns without an encoder.

N texts; columns are in the order of `STANDARD_RESIDUES`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abag.core.arrays import Matrix
from abag.embed.sequences.chains import STANDARD_RESIDUES

COUNTED = 4_096
"""Texts whose residues are counted at a time, which stay in the CPU's cache."""


def frequencies_and_lengths(*columns: Sequence[str]) -> Matrix:
    """Return the residue frequencies of each column of N texts, and then the length of each.

    The result has 21 columns per column of texts: (N, 21) for one.
    Letters other than the 20 `STANDARD_RESIDUES` count in neither.
    """
    frequencies = []
    lengths = []
    for texts in columns:
        counts = count_residues(texts)
        length = counts.sum(1, keepdims=True)
        frequencies.append(counts / np.maximum(1, length))
        lengths.append(length)
    return np.hstack([*frequencies, *lengths])


def count_residues(texts: Sequence[str]) -> Matrix:
    """Count each of the 20 `STANDARD_RESIDUES` in N texts, (N, 20); other letters are left out."""
    letters = len(STANDARD_RESIDUES)
    column = np.full(256, letters, np.int64)
    column[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(letters)
    counts = np.empty((len(texts), letters), np.float32)
    for at in range(0, len(texts), COUNTED):
        batch = texts[at : at + COUNTED]
        cells = column.take(np.frombuffer("".join(batch).encode("ascii"), np.uint8))
        row = np.repeat(np.arange(len(batch)), [len(text) for text in batch])
        cells += row * (letters + 1)
        cell_counts = np.bincount(cells, minlength=len(batch) * (letters + 1))
        counts[at : at + COUNTED] = cell_counts.reshape(len(batch), -1)[:, :-1]
    return counts
