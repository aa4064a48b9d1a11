"""Kernels of pairs: how similar two pairs are, from the distances of their sequences' vectors.

Each side has a rational-quadratic kernel with exponent 1. A kernel of pairs mixes both sides and
their product; it is 1 for equal pairs. N, M sequences; A, G training sequences; R, C pairs.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning, MIT Press 2006, equation 4.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.head.closed_form.pair_model import Index
from abag.head.data.scaling import Standardizer

Real: TypeAlias = NDArray[np.floating]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""


@dataclass(frozen=True, slots=True)
class PairKernel:
    """A mixture of an antibody kernel, an antigen kernel and their product."""

    scale: float
    """Squared length scale of both sides, in units of their mean squared distance."""
    product: float
    """Share of the product, 0 to 1; each side has half of the rest."""

    @property
    def side(self) -> float:
        """Share of each side."""
        return (1 - self.product) / 2

    def of_distances(self, squared: Floats) -> Floats:
        """Turn squared distances into the kernel of one side."""
        return np.asarray(1 / (1 + squared / (2 * self.scale)))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, of shape (R, C), into that of pairs."""
        return np.asarray(self.product * antibody * antigen + self.side * (antibody + antigen))


@dataclass(frozen=True, slots=True)
class Side:
    """The training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    unit: float
    """Mean squared distance of the training sequences."""
    train_AD: NDArray[np.float32]
    """Standardised vectors."""

    @classmethod
    def of(cls, train_AD: NDArray[np.float32], scaling: Standardizer | None = None) -> Side:
        """Measure the vectors of the unique training sequences, (A, D); by default, scale them."""
        scaling = scaling or Standardizer.of(train_AD)
        z_AD = scaling.apply(train_AD)
        unit = 2 * float(z_AD.var(axis=0, dtype=np.float64).sum())
        return cls(scaling, unit or 1.0, z_AD)

    def kernel(self, kernel: PairKernel, x_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of stored vectors, (N, D), and the training sequences: (N, A)."""
        return kernel.of_distances(self.distances(self.scaling.apply(x_ND)))

    def distances(self, z_ND: NDArray[np.float32]) -> Floats:
        """Return the squared distances of standardised vectors, in units of the mean: (N, A)."""
        return squared_distances(z_ND, self.train_AD) / self.unit

    def select(self, used: Index) -> Side:
        """Keep some of the training sequences."""
        return Side(self.scaling, self.unit, self.train_AD[used])


@dataclass(frozen=True, slots=True)
class PairSet:
    """Training pairs as a kernel sees them: two sides, and the sequences of each pair."""

    antibodies: Side
    antigens: Side
    antibody: Index
    """Training antibody of each pair, (C,)."""
    antigen: Index
    """Training antigen of each pair, (C,)."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.antibody)

    def select(self, pairs: Index | slice) -> PairSet:
        """Keep some of the pairs, and the sequences that they use."""
        (used_A, antibody), (used_G, antigen) = (
            np.unique(index[pairs], return_inverse=True) for index in (self.antibody, self.antigen)
        )
        return PairSet(
            self.antibodies.select(used_A), self.antigens.select(used_G), antibody, antigen
        )

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, `BLOCK` rows at a time.

        Shape (R, C) in all.
        """
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            part = pairs.select(rows)
            sides = (
                (self.antibodies, self.antibody, part.antibodies, part.antibody),
                (self.antigens, self.antigen, part.antigens, part.antigen),
            )
            yield (
                rows,
                kernel.mix(
                    *(
                        kernel.of_distances(own.distances(other.train_AD))[of_row][:, of_column]
                        for own, of_column, other, of_row in sides
                    )
                ),
            )

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of all pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for rows, block in self.blocks(kernel, self):
            matrix[rows] = block
        return np.asarray(matrix.T)  # symmetric


def squared_distances(x_ND: NDArray[np.float32], y_MD: NDArray[np.float32]) -> Floats:
    """Return the squared Euclidean distances of all rows, (N, M), in float64."""
    left_ND, right_MD = x_ND.astype(np.float64), y_MD.astype(np.float64)
    squares = left_ND @ right_MD.T
    squares *= -2
    squares += np.square(left_ND).sum(axis=1)[:, None]
    squares += np.square(right_MD).sum(axis=1)
    return np.maximum(squares, 0, out=squares)
