"""Kernels of pairs: how alike two antibodies, two antigens, and two pairs of them are.

Each view of a sequence has a rational-quadratic kernel with exponent 1, a side their weighted mean,
and a pair a mixture of both sides and their product; features of pairs add a linear kernel.

N, M sequences; A training sequences; C training pairs; R pairs; K columns of their features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_vectors import Index

Real: TypeAlias = NDArray[np.floating]
Weights: TypeAlias = tuple[float, ...]
BLOCK = 1024
"""Rows of a kernel matrix that are computed at a time."""
FIRST_VIEW = (0.0, 0.5, 1.0)
"""Weights of the first view that are tried; all views share the rest equally."""


@dataclass(frozen=True, slots=True)
class PairKernel:
    """Mix an antibody kernel, an antigen kernel and their product."""

    scale: float
    """Squared length scale of all views, in units of their mean squared distance."""
    product: float
    """Share of the product, 0 to 1; each side has half of the rest."""
    weights: tuple[Weights, Weights]
    """Weights of the views of antibodies and of antigens; those of a side add up to 1."""
    features: float = 0.0
    """Mean variance of the linear kernel of the features, beside the 1 of both sides."""

    @property
    def side(self) -> float:
        """Return the share of each side alone."""
        return (1 - self.product) / 2

    def of_views(self, side: int, squared: Sequence[Floats]) -> Floats:
        """Turn the squared distances in each view of a side into its kernel."""
        parts = []
        for weight, squared_NA in zip(self.weights[side], squared, strict=True):
            if weight:
                parts.append(weight / (1 + squared_NA / (2 * self.scale)))
        return np.asarray(sum(parts[1:], parts[0]))

    def mix(self, antibody: Real, antigen: Real) -> Floats:
        """Mix the kernels of both sides, (R, C), into that of pairs."""
        # in place where it can be: each (R, C) that is made takes as long as a product
        mixed = self.product * antibody
        mixed *= antigen
        if self.side:
            alone = antibody + antigen
            alone *= self.side
            mixed += alone
        return np.asarray(mixed)

    def of_features(self, left_RK: Real, right_CK: Real) -> Floats:
        """Return the linear kernel of standardised features, (R, C)."""
        left_RK = left_RK.astype(np.float64)
        return np.asarray(self.features / right_CK.shape[1] * (left_RK @ right_CK.T))

    def feature_variance(self, z_RK: Real) -> Floats:
        """Return the variance that standardised features add to that of their pairs, (R,)."""
        squares_R = np.square(z_RK, dtype=np.float64).sum(axis=1)
        return np.asarray(self.features / z_RK.shape[1] * squares_R)


def view_weights(views: int) -> list[Weights]:
    """Return the weights of the views of a side that are tried, the equal ones first."""
    tried = []
    for first in FIRST_VIEW:
        share = (1 - first) / views
        tried.append((share + first, *[share] * (views - 1)))
    return list(dict.fromkeys(tried))  # of a single view there is one


@dataclass(frozen=True, slots=True)
class Side:
    """Hold the training sequences of one kind, as a kernel sees them."""

    scaling: Standardizer
    widths: tuple[int, ...]
    units: tuple[float, ...]
    """Mean squared distance of the training sequences in each view."""
    train_AD: NDArray[np.float32]
    """Scaled vectors of the unique training sequences."""

    @classmethod
    def of(
        cls,
        train_AD: NDArray[np.float32],
        widths: tuple[int, ...],
        scaling: Standardizer | None = None,
        stretch: Weights = (),
    ) -> Side:
        """Scale the unique training sequences, (A, D); `stretch` multiplies the views' units."""
        scaling = scaling or Standardizer.of(train_AD, widths=widths)
        z_AD = scaling.apply(train_AD)
        factors = stretch or (1.0,) * len(widths)
        units = []
        for view_AD, factor in zip(split(z_AD, widths), factors, strict=True):
            unit = 2 * float(view_AD.var(axis=0, dtype=np.float64).sum())
            # 0 if all sequences are alike in a view
            units.append((unit or 1.0) * factor)
        return cls(scaling, widths, tuple(units), z_AD)

    def kernel(self, kernel: PairKernel, side: int, x_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of stored vectors with the training sequences, (N, A)."""
        similar_NA = np.empty((len(x_ND), len(self.train_AD)))
        for at in range(0, len(x_ND), BLOCK):  # the distances of all take several times as much
            rows = slice(at, at + BLOCK)
            similar_NA[rows] = self.scaled_kernel(kernel, side, self.scaling.apply(x_ND[rows]))
        return similar_NA

    def scaled_kernel(self, kernel: PairKernel, side: int, z_ND: NDArray[np.float32]) -> Floats:
        """Return the kernel of scaled vectors with the training sequences, (N, A)."""
        return kernel.of_views(side, self.distances(z_ND, kernel.weights[side]))

    def distances(self, z_ND: NDArray[np.float32], weights: Weights = ()) -> list[Floats]:
        """Return squared distances to the training sequences in each view, (N, A), in units.

        Those of a view whose weight is 0 are left empty, (0, 0).
        """
        views = split(z_ND, self.widths)
        train_views = split(self.train_AD, self.widths)
        weights = weights or (1.0,) * len(self.widths)
        distances = []
        for view_ND, view_AD, unit, weight in zip(
            views, train_views, self.units, weights, strict=True
        ):
            squared = squared_distances(view_ND, view_AD) / unit if weight else np.empty((0, 0))
            distances.append(squared)
        return distances

    def paired_distances(self, x_ND: NDArray[np.float32], row: Index, other: Index) -> list[Floats]:
        """Return the squared distances of R sequences from others in each view, (R,), in units."""
        z_ND = self.scaling.apply(x_ND).astype(np.float64)
        differences = split(z_ND[row] - z_ND[other], self.widths)
        return [
            np.square(view_RD).sum(axis=1) / unit
            for view_RD, unit in zip(differences, self.units, strict=True)
        ]


def split(x_ND: Real, widths: Sequence[int]) -> list[Real]:
    """Split columns into views; ValueError if the vectors have other columns."""
    if sum(widths) != x_ND.shape[1]:
        msg = f"views of {widths} columns; the vectors have {x_ND.shape[1]}"
        raise ValueError(msg)
    return np.split(x_ND, np.cumsum(widths)[:-1], axis=1)


def squared_distances(x_ND: Real, y_MD: Real) -> Floats:
    """Return the squared Euclidean distances of vectors, (N, M) in float64."""
    left_ND = x_ND.astype(np.float64)
    right_MD = y_MD.astype(np.float64)
    squares = left_ND @ right_MD.T
    squares *= -2
    squares += np.square(left_ND).sum(axis=1)[:, None]
    squares += np.square(right_MD).sum(axis=1)
    # of equal vectors, rounding may leave less than 0
    return np.maximum(squares, 0, out=squares)


@dataclass(frozen=True, slots=True)
class PairSet:
    """Hold training pairs as a kernel sees them: two sides, and each pair's sequences, (C,)."""

    antibodies: Side
    antigens: Side
    antibody: Index
    antigen: Index
    features: NDArray[np.float32] | None = None
    """Their standardised features, (C, K), if they have any."""

    def __len__(self) -> int:
        return len(self.antibody)

    @property
    def sides(self) -> tuple[tuple[Side, Index], tuple[Side, Index]]:
        """Return the sequences of each side, with the row of each pair among them."""
        return (self.antibodies, self.antibody), (self.antigens, self.antigen)

    def select(self, pairs: slice) -> PairSet:
        """Return some pairs, with the sequences that they use."""
        kept = []
        indices = []
        for side, index in self.sides:
            used, of_pair = np.unique(index[pairs], return_inverse=True)
            kept.append(replace(side, train_AD=side.train_AD[used]))
            indices.append(of_pair)
        features = None if self.features is None else self.features[pairs]
        return PairSet(kept[0], kept[1], indices[0], indices[1], features)

    def mix(self, kernel: PairKernel, antibody: Real, antigen: Real, other: PairSet) -> Floats:
        """Return the kernel of `other` pairs and these, (R, C), given those of their sides."""
        mixed = kernel.mix(antibody, antigen)
        if kernel.features and self.features is not None and other.features is not None:
            mixed += kernel.of_features(other.features, self.features)
        return mixed

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, (R, C), in blocks."""
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            block = pairs.select(rows)
            similar = []
            for number in (0, 1):
                side, column_of = self.sides[number]
                other, row_of = block.sides[number]
                similar_NA = side.scaled_kernel(kernel, number, other.train_AD)
                similar.append(similar_NA[row_of][:, column_of])
            yield rows, self.mix(kernel, similar[0], similar[1], block)

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of these pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for rows, block in self.blocks(kernel, self):
            matrix[rows] = block
        return np.asarray(matrix.T)  # symmetric
