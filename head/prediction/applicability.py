"""How far a sequence lies from the training set: its distance to the nearest training vector.

A sequence is far when it lies further from every training sequence than 99 % of these lie from
each other. The bundle carries the training vectors that this takes, so it works without a store.
N sequences, R representatives, D wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FAR_QUANTILE = 0.99
MOST_REPRESENTATIVES = 2048
"""Training sequences that a bundle carries at most: 4 MB at IgT5's width."""
ROUNDING = 1e-3
"""Share of a vector's length within which two are taken for one: float16 and batch shapes."""
BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Applicability:
    """Representatives of the training sequences, and how far from them is far."""

    vectors_RD: NDArray[np.floating]
    """float16 where that holds them."""
    far_distance: float

    def is_far(self, x_ND: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Tell which vectors lie far from every representative; shape (N,)."""
        return nearest_distance(x_ND, self.vectors_RD) > self.far_distance


def measure_applicability(x_ND: NDArray[np.float32]) -> Applicability:
    """Choose representatives of the distinct training sequences, and measure their distances.

    Random ones, not the most spread: only then do a new sequence of the same kind and a training
    sequence without itself lie equally far from the nearest.
    """
    if len(x_ND) > MOST_REPRESENTATIVES:
        drawn = np.random.default_rng(0).permutation(len(x_ND))[:MOST_REPRESENTATIVES]
        x_ND = x_ND[np.sort(drawn)]
    with np.errstate(over="ignore"):  # what does not fit is looked for below
        half_RD = x_ND.astype(np.float16)
    kept: NDArray[np.floating] = half_RD if np.isfinite(half_RD).all() else x_ND
    apart = nearest_distance(kept, kept, itself=True)
    # One training sequence has no distances: then whatever differs from it is far.
    known = apart[np.isfinite(apart)]
    reach = float(np.quantile(known, FAR_QUANTILE)) if len(known) else 0.0
    same = ROUNDING * float(np.linalg.norm(kept.astype(np.float64), axis=1).mean())
    return Applicability(kept, max(reach, same))


def nearest_distance(
    x_ND: NDArray[np.floating], others_RD: NDArray[np.floating], *, itself: bool = False
) -> NDArray[np.float64]:
    """Measure each vector's distance to the nearest of others.

    Parameters
    ----------
    x_ND, others_RD : NDArray
    itself : bool
        Both are the same vectors, and none counts as its own neighbour.

    Returns
    -------
    NDArray, shape=(N,), dtype=float64
        Infinite where there is no other.
    """
    centre_D = others_RD.mean(axis=0, dtype=np.float64).astype(np.float32)
    # Centred: the square of a distance is a small difference of large numbers otherwise.
    others_RD = others_RD.astype(np.float32) - centre_D
    squares_R = np.einsum("rd,rd->r", others_RD, others_RD)
    found = np.empty(len(x_ND))
    for at in range(0, len(x_ND), BLOCK):
        x_BD = x_ND[at : at + BLOCK].astype(np.float32) - centre_D
        squares_BR = squares_R - 2 * (x_BD @ others_RD.T)
        if itself:
            rows = np.arange(len(x_BD))
            squares_BR[rows, at + rows] = np.inf
        least_B = squares_BR.min(axis=1) + np.einsum("bd,bd->b", x_BD, x_BD)
        found[at : at + BLOCK] = np.sqrt(np.maximum(least_B, 0.0))
    return found
