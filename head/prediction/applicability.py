"""Applicability domain of a predictor: which sequences are far from the training set.

The measure is the distance to the nearest training vector. A sequence is far if this distance
exceeds that of 99 % of the training sequences to their nearest other one. The predictor contains
the training vectors that this needs, so that it works without a store.

N sequences, R representatives, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FAR_QUANTILE = 0.99
MOST_REPRESENTATIVES = 2048
"""Training sequences that a predictor contains at most: 4 MB at the width of IgT5."""
ROUNDING = 1e-3
"""Relative distance that float16 storage and batch shapes can cause between equal sequences."""
BLOCK = 4096
"""Vectors compared with all representatives at a time."""


@dataclass(frozen=True, slots=True)
class Applicability:
    """Representatives of the training sequences, and the distance beyond which others are far."""

    vectors_RD: NDArray[np.floating]
    """float16, or float32 if the values overflow float16."""
    far_distance: float

    def is_far(self, x_ND: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which vectors are far from all representatives.

        Parameters
        ----------
        x_ND : NDArray, shape=(N, D), dtype=float32

        Returns
        -------
        NDArray, shape=(N,), dtype=bool
        """
        return nearest_distance(x_ND, self.vectors_RD) > self.far_distance


def measure_applicability(
    x_ND: NDArray[np.float32], rows: NDArray[np.integer] | None = None
) -> Applicability:
    """Choose representatives of the distinct training sequences and measure their distances.

    The choice is random: only then is the distance of a new, similar sequence distributed like
    that of a training sequence to the nearest other one.

    Parameters
    ----------
    x_ND : NDArray, shape=(N, D), dtype=float32
    rows : NDArray, optional
        Distinct rows of the training sequences; by default all.
    """
    used = np.arange(len(x_ND)) if rows is None else rows
    if len(used) > MOST_REPRESENTATIVES:
        drawn = np.random.default_rng(0).permutation(len(used))[:MOST_REPRESENTATIVES]
        used = used[np.sort(drawn)]
    x_ND = x_ND[used]  # no more rows are copied
    with np.errstate(over="ignore"):  # overflow is checked below
        half_RD = x_ND.astype(np.float16)
    kept: NDArray[np.floating] = half_RD if np.isfinite(half_RD).all() else x_ND
    distance = nearest_distance(kept, kept, exclude_self=True)
    # A single training sequence has no neighbours: everything that differs from it is far.
    known = distance[np.isfinite(distance)]
    far = float(np.quantile(known, FAR_QUANTILE)) if len(known) else 0.0
    rounding = ROUNDING * float(np.linalg.norm(kept.astype(np.float64), axis=1).mean())
    return Applicability(kept, max(far, rounding))


def nearest_distance(
    x_ND: NDArray[np.floating], others_RD: NDArray[np.floating], *, exclude_self: bool = False
) -> NDArray[np.float64]:
    """Measure the distance of each vector to the nearest of the others.

    Parameters
    ----------
    x_ND : NDArray, shape=(N, D), dtype=floating
    others_RD : NDArray, shape=(R, D), dtype=floating
    exclude_self : bool
        Both are the same vectors, and a vector is not its own neighbour.

    Returns
    -------
    NDArray, shape=(N,), dtype=float64
        Infinite for a vector without neighbours.
    """
    centre_D = others_RD.mean(axis=0, dtype=np.float64).astype(np.float32)
    # Centred, because a squared distance would be a small difference of large numbers.
    others_RD = others_RD.astype(np.float32) - centre_D
    squares_R = np.einsum("rd,rd->r", others_RD, others_RD)
    found = np.empty(len(x_ND))
    for at in range(0, len(x_ND), BLOCK):
        x_BD = x_ND[at : at + BLOCK].astype(np.float32) - centre_D
        squares_BR = squares_R - 2 * (x_BD @ others_RD.T)
        if exclude_self:
            rows = np.arange(len(x_BD))
            squares_BR[rows, at + rows] = np.inf
        least_B = squares_BR.min(axis=1) + np.einsum("bd,bd->b", x_BD, x_BD)
        found[at : at + BLOCK] = np.sqrt(np.maximum(least_B, 0.0))
    return found
