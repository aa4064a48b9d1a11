"""Gaussian processes on pairs: kernel ridge regression with a variance for each prediction.

Each view of a sequence has a rational-quadratic kernel with exponent 1, a side their weighted mean,
and a pair a mixture of both sides and their product; features of pairs add a linear kernel. One is
chosen, and a process fitted, in `kernel_search`. See Rasmussen and Williams, Gaussian Processes for
Machine Learning, chapters 2, 5 and 8.

From top to bottom: kernels of pairs; processes that were fitted.

N, M sequences; A, G training sequences; C training pairs, V views or pairs of a variance; P pairs
to predict, R of them; K columns of their features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.embed.tables.chains import KINDS, Kind
from abag.head.models.pair_vectors import (
    Arrays,
    FeatureScaling,
    Index,
    PairModel,
    PairVectors,
    Standardizer,
    given_features,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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
class KernelSide:
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
    ) -> KernelSide:
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

    def select(self, used: Index) -> KernelSide:
        """Return the side with some of the training sequences."""
        return replace(self, train_AD=self.train_AD[used])

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
        z_RD = self.scaling.apply(x_ND[row]).astype(np.float64)
        differences = split(z_RD - self.scaling.apply(x_ND[other]), self.widths)
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

    sides: tuple[KernelSide, ...]
    """Antibodies and antigens."""
    index: tuple[Index, ...]
    """Row of each pair's sequence, (C,), on both sides."""
    features: NDArray[np.float32] | None = None
    """Their standardised features, (C, K), if they have any."""

    def __len__(self) -> int:
        return len(self.index[0])

    def select(self, pairs: slice) -> PairSet:
        """Return some pairs, with the sequences that they use."""
        sides = []
        index = []
        for side, row_of in zip(self.sides, self.index, strict=True):
            used, of_pair = np.unique(row_of[pairs], return_inverse=True)
            sides.append(side.select(used))
            index.append(of_pair)
        features = None if self.features is None else self.features[pairs]
        return PairSet(tuple(sides), tuple(index), features)

    def mix(self, kernel: PairKernel, similar: Sequence[Real], other: PairSet) -> Floats:
        """Return the kernel of `other` pairs and these, (R, C), given those of their sides."""
        mixed = kernel.mix(*similar)
        if kernel.features and self.features is not None and other.features is not None:
            mixed += kernel.of_features(other.features, self.features)
        return mixed

    def blocks(self, kernel: PairKernel, pairs: PairSet) -> Iterator[tuple[slice, Floats]]:
        """Yield the kernel of other `pairs` of the same scaling and these, (R, C), in blocks."""
        for at in range(0, len(pairs), BLOCK):
            rows = slice(at, at + BLOCK)
            block = pairs.select(rows)
            similar = []
            for number, (side, other) in enumerate(zip(self.sides, block.sides, strict=True)):
                similar_NA = side.scaled_kernel(kernel, number, other.train_AD)
                # rows after rows, as they are written; an index of columns would transpose them
                similar.append(similar_NA[block.index[number]].take(self.index[number], axis=1))
            yield rows, self.mix(kernel, similar, block)

    def matrix(self, kernel: PairKernel) -> Floats:
        """Return the kernel of these pairs with each other, (C, C), in the order of LAPACK."""
        matrix = np.empty((len(self),) * 2)
        for at in range(0, len(self), BLOCK):
            rows = slice(at, at + BLOCK)
            # each pair of pairs once
            ((_, block),) = self.select(slice(at, None)).blocks(kernel, self.select(rows))
            matrix[rows, at:] = block
            matrix[at:, rows] = block.T
        return np.asarray(matrix.T)  # symmetric


@dataclass(frozen=True, slots=True)
class SideSettings:
    """Describe the views of one side; see `KernelSide` and `PairKernel`."""

    widths: tuple[int, ...]
    units: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Hold the part of a `GaussianProcess` that is no array; see `PairKernel`."""

    scale: float
    product: float
    antibody: SideSettings
    antigen: SideSettings
    pkd_mean: float
    amplitude: float
    """Variance of a pair unlike any other, in pKd^2."""


class ProcessFeatures(NamedTuple):
    """Tell how a process reads the features of pairs."""

    scaling: FeatureScaling
    ratio: float
    """See `PairKernel.features`."""


@dataclass(frozen=True, slots=True)
class GaussianProcess(PairModel):
    """Hold a fitted process; predictions are sums over its training pairs."""

    settings: ProcessSettings
    train: PairSet
    weight: Floats
    """Weight of each training pair in pKd, (C,)."""
    root: NDArray[np.float32]
    """Maps the kernel of the first V training pairs to what reduces the variance: (V, V)."""
    features: ProcessFeatures | None = None
    """None: the process reads none, also where pairs have some."""

    @property
    def kernel(self) -> PairKernel:
        """Return the kernel that was chosen."""
        settings = self.settings
        weights = (settings.antibody.weights, settings.antigen.weights)
        ratio = 0.0 if self.features is None else self.features.ratio
        return PairKernel(settings.scale, settings.product, weights, ratio)

    def _features_of(self, vectors: PairVectors) -> NDArray[np.float32] | None:
        """Return the standardised features of pairs, (P, K), if the process reads any."""
        if self.features is None:
            return None
        return self.features.scaling.apply(given_features(vectors))

    def _weight_of_sequences(self) -> csr_array:
        """Sum the weights of training pairs by their sequences, (A, G)."""
        from scipy import sparse  # takes 0.1 s, and --help lists this model

        shape = [len(side.train_AD) for side in self.train.sides]
        return sparse.csr_array((self.weight, self.train.index), shape)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); kernels are computed per sequence, not per pair."""
        train = self.train
        kernel = self.kernel
        antibodies, antigens = vectors.sides.values()
        weight_AG = self._weight_of_sequences()
        antigen_MG = train.sides[1].kernel(kernel, 1, antigens.x_ND)
        alone_M = kernel.side * (antigen_MG @ weight_AG.sum(axis=0))
        pkd = self.settings.pkd_mean + alone_M[antigens.index]
        # by antibody: the kernel of a block of antibodies serves all their pairs
        order = np.argsort(antibodies.index, kind="stable")
        for first in range(0, len(antibodies.x_ND), BLOCK):
            x_BD = antibodies.x_ND[first : first + BLOCK]
            antibody_BA = train.sides[0].kernel(kernel, 0, x_BD)
            alone_B = kernel.side * (antibody_BA @ weight_AG.sum(axis=1))
            joint_BG = kernel.product * (weight_AG.T @ antibody_BA.T).T
            start, end = np.searchsorted(antibodies.index, [first, first + BLOCK], sorter=order)
            for at in range(start, end, BLOCK):
                rows = order[at : min(at + BLOCK, end)]
                antibody = antibodies.index[rows] - first
                joint_RG = joint_BG[antibody] * antigen_MG[antigens.index[rows]]
                pkd[rows] += alone_B[antibody] + joint_RG.sum(axis=1)
        z_PK = self._features_of(vectors)
        if z_PK is not None and train.features is not None:
            weight_K = self.weight @ train.features.astype(np.float64)
            pkd += kernel.of_features(z_PK, weight_K[None])[:, 0]
        return np.asarray(pkd)

    def values_of(self, vectors: PairVectors, number: int) -> Floats:
        """Return what predictions of pairs change by per unit of kernel, in pKd.

        Shape (P, A) for the A training sequences of one side, 0 or 1, given the other side.
        """
        kernel = self.kernel
        weight_AG = self._weight_of_sequences()
        weight = weight_AG if number == 0 else weight_AG.T
        other = self.train.sides[1 - number]
        sequences = [*vectors.sides.values()][1 - number]
        other_NG = other.kernel(kernel, 1 - number, sequences.x_ND)
        joint_NA = kernel.product * (weight @ other_NG.T).T
        alone_A = kernel.side * weight.sum(axis=1)
        return np.asarray((joint_NA + alone_A)[sequences.index])

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance of each prediction in pKd^2, (P,)."""
        explained = np.empty(len(vectors))
        z_PK = self._features_of(vectors)
        prior = 1.0 if z_PK is None else 1.0 + self.kernel.feature_variance(z_PK)
        rows_of = self._kernel_rows(vectors, np.float32)
        for at in range(0, len(explained), BLOCK):
            rows = slice(at, at + BLOCK)
            explained[rows] = np.square(rows_of(rows) @ self.root).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(prior - explained, 0))

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of each pair's difference from an `other` pair in pKd^2, (P,)."""
        # amplitude x (2 - 2 k(pair, other) - |(k_V - k_V of the other) R|^2), with the prior kernel
        # k, that of a pair and the training pairs k_V, and the root R
        kernel = self.kernel
        root_VV = self.root.astype(np.float64)
        # float64: kernels of a mutant and its parent differ by little more than rounding in float32
        rows_of = self._kernel_rows(vectors, np.float64)
        variance = np.empty(len(other))
        z_PK = self._features_of(vectors)
        sides = [*zip(self.train.sides, vectors.sides.values(), strict=True)]
        for at in range(0, len(other), BLOCK):
            rows = np.arange(at, min(at + BLOCK, len(other)))
            similar = []
            for number, (side, new) in enumerate(sides):
                index = new.index
                squared = side.paired_distances(new.x_ND, index[rows], index[other[rows]])
                similar.append(kernel.of_views(number, squared))
            prior = kernel.mix(similar[0], similar[1])
            away = rows_of(rows) - rows_of(other[rows])
            if z_PK is not None:  # k(a, a) + k(b, b) - 2 k(a, b) of a linear kernel
                prior -= kernel.feature_variance(z_PK[rows] - z_PK[other[rows]]) / 2
            variance[rows] = 2 - 2 * prior - np.square(away @ root_VV).sum(axis=1)
        return np.asarray(self.settings.amplitude * np.maximum(variance, 0))

    def _kernel_rows(
        self, vectors: PairVectors, dtype: type[np.floating]
    ) -> Callable[[Any], Floats]:
        """Return a function from pairs to their kernel with the first training pairs, (R, V)."""
        train = self.train.select(slice(len(self.root)))
        kernel = self.kernel
        antibodies, antigens = vectors.sides.values()
        antibody_NA = train.sides[0].kernel(kernel, 0, antibodies.x_ND).astype(dtype)
        antigen_MG = train.sides[1].kernel(kernel, 1, antigens.x_ND).astype(dtype)
        z_PK = self._features_of(vectors)

        def kernel_of(rows: Any) -> Floats:  # noqa: ANN401 - a slice or indices
            mixed = kernel.mix(
                antibody_NA[antibodies.index[rows]][:, train.index[0]],
                antigen_MG[antigens.index[rows]][:, train.index[1]],
            )
            if z_PK is not None and train.features is not None:
                mixed += kernel.of_features(z_PK[rows], train.features).astype(dtype)
            return mixed

        return kernel_of

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""
        arrays: dict[str, NDArray[Any]] = {"weight": self.weight, "root": self.root}
        for kind, side, of_pair in zip(KINDS, self.train.sides, self.train.index, strict=True):
            arrays |= side.scaling.arrays(kind)
            arrays[f"{kind}.train"] = side.train_AD
            arrays[f"{kind}.of_pair"] = of_pair.astype(np.int32)
        if self.features is not None and self.train.features is not None:
            arrays |= self.features.scaling.arrays()
            arrays["features.train"] = self.train.features
            arrays["features.ratio"] = np.array([self.features.ratio])
        return arrays

    @classmethod
    def load(cls, arrays: Arrays, settings: ProcessSettings) -> GaussianProcess:
        """Restore from the `arrays` of a predictor; ValueError if their shapes do not fit."""
        sides = [_load_side(arrays, kind, getattr(settings, kind)) for kind in KINDS]
        index = [arrays[f"{kind}.of_pair"] for kind in KINDS]
        root = arrays["root"]
        if root.ndim != 2 or len(root) != root.shape[1]:
            msg = f"root has shape {root.shape}"
            raise ValueError(msg)
        pairs = PairSet(tuple(sides), tuple(index), arrays.get("features.train"))
        features = None
        if pairs.features is not None:
            if pairs.features.ndim != 2 or len(pairs.features) != len(pairs):
                msg = f"features.train has shape {pairs.features.shape} for {len(pairs)} pairs"
                raise ValueError(msg)
            ratio = float(arrays["features.ratio"][0])
            features = ProcessFeatures(FeatureScaling.load(arrays), ratio)
        return cls(settings, pairs, arrays["weight"], root, features)


def _load_side(arrays: Arrays, kind: Kind, settings: SideSettings) -> KernelSide:
    scaling = Standardizer.load(arrays, kind)
    return KernelSide(scaling, settings.widths, settings.units, arrays[f"{kind}.train"])
