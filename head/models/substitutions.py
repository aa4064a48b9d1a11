"""How alike residues are, as columns: distances of substitutions in place of equal or not.

The similarity of two residues is how often they replace each other in related proteins, relative to
chance, from BLOSUM62, divided so that a residue has similarity 1 with itself. A residue then has
coordinates whose squared distances are 2 - 2 x similarity. N antibodies, S places, C columns.

References
----------
Henikoff, Henikoff: Amino acid substitution matrices from protein blocks, PNAS 89, 1992.
Jankowiak et al.: Flexible kernels for protein property prediction, arXiv 2606.11057, 2026.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.core.arrays import Floats

ORDER = "ARNDCQEGHILKMFPSTWYV"
BLOSUM62 = """
 4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0
-1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3
-2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3
-2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3
 0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1
-1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2
-1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2
 0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3
-2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3
-1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""
"""Scores in half bits: twice the logarithm, base 2, of observed / expected."""
JITTER = 1e-9


@cache
def similarity() -> Floats:
    """Return the similarity of each two letters by their ASCII codes, (256, 256).

    Letters that are no residue, a gap among them, are like themselves only.
    """
    scores = np.array(BLOSUM62.split(), np.float64).reshape(len(ORDER), -1)
    odds = np.exp2(scores / 2)
    root = np.sqrt(odds.diagonal())
    found, codes = np.eye(256), np.frombuffer(ORDER.encode(), np.uint8)
    found[np.ix_(codes, codes)] = odds / root / root[:, None]
    return found


def coordinates(seen: str) -> NDArray[np.float32]:
    """Return the columns of every letter at a place where training antibodies have these, (256, C).

    The first column is that of letters that training lacks: 0 for those seen. With it, the squared
    distance of any letter to a seen one is 2 - 2 x similarity. Where nothing varies there is no
    other column, and the distance is half of that, as between one-hot columns.
    """
    alike, codes = similarity(), np.frombuffer(seen.encode(), np.uint8)
    if len(codes) == 1:
        return np.sqrt(np.maximum(0, 1 - alike[:, codes])).astype(np.float32)
    root = np.linalg.cholesky(alike[np.ix_(codes, codes)] + JITTER * np.eye(len(codes)))
    inside = np.linalg.solve(root, alike[codes]).T
    outside = np.sqrt(np.maximum(0, 1 - np.square(inside).sum(axis=1)))
    outside[codes] = 0
    return np.hstack([outside[:, None], inside]).astype(np.float32)
