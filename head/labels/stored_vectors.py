"""Vectors of unique sequences, and features of pairs, as models read them; their standardisation.

Statistics are those of training rows. N sequences, D columns; R pairs, F columns of numbers, C
columns of 0 and 1, K = F + C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, Matrix, distinct

if TYPE_CHECKING:
    from abag.embed.store.store import EncoderFolder


BLOCK = 1 << 19
"""Numbers measured at a time: a whole table in float64 may not fit into memory."""
SPREAD_FLOOR = 0.1
"""Smallest spread used, relative to the median column: columns that hardly vary are mostly noise
and would otherwise be amplified to variance 1."""
Z_LIMIT = 10.0
"""Largest standardised input: values of 39 standard deviations occur in test rows of new
antigens."""
CONSTANT = 1e-9
"""Spread of a column, relative to its values, below which it is rounding."""


@dataclass(frozen=True, slots=True)
class View:
    """One of the vectors that a sequence has."""

    folder: EncoderFolder
    pooling: str
    width: int


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """The vectors of all unique antibodies, or of all unique antigens, of a table."""

    views: tuple[View, ...]
    """One or more, whose vectors are joined in this order; none of antigens that nobody encodes."""
    x_ND: NDArray[np.float32]
    """Shape (N, D), dtype float32; in the order of the unique sequences."""

    @classmethod
    def read(
        cls, folders: Sequence[tuple[EncoderFolder, str]], keys: NDArray[np.uint8]
    ) -> StoredVectors:
        """Read and join a pooling of each folder."""
        views = []
        parts = []
        for folder, pooling in folders:
            part_ND = folder.read(keys, pooling)
            views.append(View(folder, pooling, part_ND.shape[1]))
            parts.append(part_ND)
        # one view is not copied: it may take most of the memory
        x_ND = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return cls(tuple(views), x_ND)

    @classmethod
    def absent(cls, number: int = 1) -> StoredVectors:
        """Return vectors of sequences that nobody encodes: one 0 each, which says nothing."""
        return cls((), np.zeros((number, 1), np.float32))

    @property
    def folder(self) -> EncoderFolder:
        """Folder of the first view."""
        return self.views[0].folder

    @property
    def folders(self) -> list[EncoderFolder]:
        """Where the views are stored, each folder once."""
        by_fingerprint = {view.folder.fingerprint: view.folder for view in self.views}
        return list(by_fingerprint.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of a vector of each view."""
        return tuple(view.width for view in self.views) or (self.x_ND.shape[1],)

    @property
    def names(self) -> list[str]:
        """Fingerprint and pooling of each view, as config.json records them."""
        return [f"{view.folder.fingerprint}:{view.pooling}" for view in self.views]


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Mean and scale that standardise the D columns of one kind of vector."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """Shape (D,); one over the standard deviation, 0 for a constant column."""

    @classmethod
    def of(
        cls,
        x_ND: NDArray[np.floating],
        rows: NDArray[np.integer] | None = None,
        widths: Sequence[int] = (),
    ) -> Standardizer:
        """Measure vectors, (N, D): those of the distinct `rows`, by default all.

        Views of `widths` are scaled by the root of their number: joined, they are as long as one.
        """
        if len(widths) > 1:
            means = []
            scales = []
            for view_ND in np.split(x_ND, np.cumsum(widths)[:-1], axis=1):
                of_view = cls.of(view_ND, rows)
                means.append(of_view.mean)
                scales.append(of_view.scale)
            scale = np.concatenate(scales) / np.sqrt(len(widths))
            return cls(np.concatenate(means), scale.astype(np.float32))
        # each sequence once: one with many pairs would decide
        used = np.arange(len(x_ND)) if rows is None else distinct(rows)
        origin = x_ND[used[0]].astype(np.float64)  # near the mean: sums of squares lose no digits
        sums = []
        sums_of_squares = []
        for part in _blocks(len(used), x_ND.shape[1]):
            away_RD = x_ND[used[part]] - origin
            sums.append(away_RD.sum(axis=0))
            sums_of_squares.append(np.einsum("rd,rd->d", away_RD, away_RD))
        away = np.sum(sums, axis=0) / len(used)
        squares = np.sum(sums_of_squares, axis=0) / len(used)
        mean = origin + away
        spread = np.sqrt(np.maximum(0, squares - away**2))
        # A smaller spread is float16 rounding (2.8e-4 of the value), not signal.
        varies = spread > 5e-4 * np.abs(mean) + 1e-12
        floor = SPREAD_FLOOR * np.median(spread[varies]) if varies.any() else 1.0
        scale = np.where(varies, 1.0 / np.maximum(spread, floor), 0.0)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def identity(cls, width: int) -> Standardizer:
        """Return one that changes nothing, for columns of 0 and 1."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))

    def apply(self, x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Standardise vectors and clip them to `Z_LIMIT`, shape (N, D), dtype float32."""
        # in place from here: the vectors of a table may take most of the memory
        z_ND = np.empty(x_ND.shape, np.float32)
        np.subtract(x_ND, self.mean, out=z_ND)
        z_ND *= self.scale
        return np.clip(z_ND, -Z_LIMIT, Z_LIMIT, out=z_ND)

    def project(
        self, x_ND: NDArray[np.float32], weight_D: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Multiply standardised vectors with weights, (N,), block by block to save memory."""
        parts = [self.apply(x_ND[part]) @ weight_D for part in _blocks(*x_ND.shape)]
        return np.concatenate([np.zeros(0), *parts])

    def arrays(self, kind: str) -> dict[str, NDArray[np.float32]]:
        """Return mean and scale by the names under which a predictor stores those of a kind."""
        return {f"{kind}.mean": self.mean, f"{kind}.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], kind: str) -> Standardizer:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        mean = arrays[f"{kind}.mean"]
        scale = arrays[f"{kind}.scale"]
        if not mean.ndim == scale.ndim == 1 or not len(mean) == len(scale) > 0:
            msg = f"{kind}.mean and {kind}.scale have shapes {mean.shape} and {scale.shape}"
            raise ValueError(msg)
        return cls(mean, scale)


def _blocks(rows: int, width: int) -> list[slice]:
    """Return slices of rows that hold about `BLOCK` numbers."""
    size = max(1, BLOCK // max(1, width))
    return [slice(first, first + size) for first in range(0, rows, size)]


@dataclass(frozen=True, slots=True)
class PairFeatures:
    """Features of pairs as models read them."""

    numbers_RF: Floats
    """NaN where a value is missing."""
    marks_RC: Matrix
    """Columns of 0 and 1: missing numbers, and values of categories."""

    @property
    def width(self) -> int:
        """The number of columns."""
        return int(self.numbers_RF.shape[1] + self.marks_RC.shape[1])

    def take(self, rows: Ints | slice) -> PairFeatures:
        """Return the features of some pairs."""
        return PairFeatures(self.numbers_RF[rows], self.marks_RC[rows])


@dataclass(frozen=True, slots=True)
class FeatureScaling:
    """Mean and scale of F columns of numbers, of training pairs."""

    mean: Floats
    scale: Floats
    """One over the standard deviation; 0 for a column that is constant or missing in training."""

    @classmethod
    def of(cls, features: PairFeatures) -> FeatureScaling:
        """Measure the features of training pairs; missing values do not count."""
        numbers_RF = features.numbers_RF
        known_RF = np.isfinite(numbers_RF)
        count_F = np.maximum(1, known_RF.sum(axis=0))
        mean_F = np.where(known_RF, numbers_RF, 0.0).sum(axis=0) / count_F
        away_RF = np.where(known_RF, numbers_RF - mean_F, 0.0)
        spread_F = np.sqrt(np.square(away_RF).sum(axis=0) / count_F)
        varies = spread_F > CONSTANT * np.abs(mean_F)
        divisor_F = np.where(varies, spread_F, 1.0)
        scale_F = np.where(varies, 1.0 / divisor_F, 0.0)
        return cls(mean_F, scale_F)

    def apply(self, features: PairFeatures) -> Matrix:
        """Return standardised numbers, 0 where one is missing, then columns of 0 and 1: (R, K)."""
        z_RF = (features.numbers_RF - self.mean) * self.scale
        z_RF = np.clip(np.nan_to_num(z_RF, nan=0.0), -Z_LIMIT, Z_LIMIT)
        return np.hstack([z_RF.astype(np.float32), features.marks_RC])

    def arrays(self) -> dict[str, Floats]:
        """Return mean and scale by the names under which a predictor stores them."""
        return {"features.mean": self.mean, "features.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> FeatureScaling:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        mean = arrays["features.mean"]
        scale = arrays["features.scale"]
        if not (mean.ndim == scale.ndim == 1 and len(mean) == len(scale)):
            msg = f"features.mean and features.scale have shapes {mean.shape} and {scale.shape}"
            raise ValueError(msg)
        return cls(mean, scale)
