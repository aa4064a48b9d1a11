"""Features of pairs as models read them, and their standardisation by training pairs.

R pairs, F columns of numbers, C columns of 0 and 1, K = F + C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Ints, Matrix
from abag.head.data.vectors import Z_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

CONSTANT = 1e-9
"""Spread of a column, relative to its values, below which it is rounding."""


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
