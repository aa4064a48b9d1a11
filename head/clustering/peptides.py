"""Peptide antigens that are part of another antigen.

Peptides are clustered with peptides only (see `clusters`), because a short one aligns somewhere in
almost any protein. One that occurs in a protein letter by letter is nevertheless the same antigen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from abag.core.arrays import Ints
from abag.embed.sequences.chains import Chains
from abag.head.clustering.clusters import PEPTIDE

SEED = 8
"""Shortest peptide that is looked for: shorter ones occur in unrelated proteins by chance."""


def contained_peptides(antigens: Sequence[Chains]) -> Ints:
    """Find the antigens with a peptide chain that occurs in a longer chain of another antigen.

    Parameters
    ----------
    antigens : sequence of tuple of str, length N

    Returns
    -------
    NDArray, shape=(K, 2), dtype=int64
        Indices of the antigen with the peptide and of the one that contains it.
    """
    peptides: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for i, chains in enumerate(antigens):
        for chain in chains:
            if SEED <= len(chain) < PEPTIDE:
                peptides[chain[:SEED]].append((i, chain))
    found = {
        (i, j)
        for j, chains in enumerate(antigens if peptides else ())
        for chain in chains
        if len(chain) >= PEPTIDE
        for at in range(len(chain) - SEED + 1)
        for i, peptide in peptides.get(chain[at : at + SEED], ())
        if chain.startswith(peptide, at)
    }
    return np.array(sorted(found), np.int64).reshape(-1, 2)
