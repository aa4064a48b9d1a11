"""Batches of pairs that differ: fewer near-duplicates, or vectors far from each other.

B candidates, best first; D and E are the widths of their vectors.

References
----------
Ravi, Rosenkrantz, Tayi: Heuristic and special case algorithms for dispersion problems, Oper. Res.
42:299 (1994): the smallest distance of the farthest-first choice is at least half of the largest
possible.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints


def join_sides(antibody_BD: NDArray[np.floating], antigen_BE: NDArray[np.floating]) -> Floats:
    """Join the vectors of both sides so that both contribute equally to a distance.

    Each side is divided by the square root of its variance; a constant side adds nothing.

    Returns
    -------
    NDArray, shape=(B, D + E), dtype=float64
    """
    sides = []
    for side in (antibody_BD, antigen_BE):
        x_BD = side.astype(np.float64)
        unit = np.sqrt(x_BD.var(axis=0).sum())
        sides.append((x_BD - x_BD.mean(axis=0)) / (unit or 1.0))
    return np.concatenate(sides, axis=1)


def cap_clusters(cluster: Ints, size: int, most: int) -> Ints:
    """Choose the best candidates with at most `most` of each cluster.

    Parameters
    ----------
    cluster : NDArray, shape=(B,), dtype=int64
        Cluster of each candidate.
    size : int
        Candidates to choose; fewer are chosen if the clusters do not hold as many.

    Returns
    -------
    NDArray, shape=(at most size,), dtype=int64
        Chosen candidates, best first.
    """
    better_of_cluster = pd.Series(cluster).groupby(cluster).cumcount().to_numpy()
    return np.flatnonzero(better_of_cluster < most)[:size]


def choose_far_apart(x_BD: NDArray[np.floating], size: int) -> Ints:
    """Choose the best candidate, and then always the one farthest from those chosen.

    Parameters
    ----------
    x_BD : NDArray, shape=(B, D), dtype=floating
    size : int
        Candidates to choose, at most B.

    Returns
    -------
    NDArray, shape=(size,), dtype=int64
        Chosen candidates, best first; of equally far ones the best is chosen.
    """
    x_BD = x_BD.astype(np.float64)
    chosen = [0]
    squares_B = np.full(len(x_BD), np.inf)
    while len(chosen) < size:
        squares_B = np.minimum(squares_B, np.square(x_BD - x_BD[chosen[-1]]).sum(axis=1))
        squares_B[chosen] = -1.0  # equal vectors have the distance 0, too
        chosen.append(int(np.argmax(squares_B)))
    return np.sort(np.array(chosen, np.int64))
