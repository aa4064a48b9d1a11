"""Standardisation of stored vectors, with the statistics of the training sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

COLUMNS = 64
"""Columns measured at a time: a whole table in float64 may not fit into memory."""
SPREAD_FLOOR = 0.1
"""Smallest spread used, relative to the median column: columns that hardly vary are mostly noise
and would otherwise be amplified to variance 1."""
Z_LIMIT = 10.0
"""Largest standardised input: values of 39 standard deviations occur in test rows of new
antigens."""


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Mean and scale that standardise the D columns of one kind of vector."""

    mean: NDArray[np.float32]
    """Shape (D,)."""
    scale: NDArray[np.float32]
    """Shape (D,); one over the standard deviation, 0 for a constant column."""

    @classmethod
    def of(cls, x_ND: NDArray[np.float32]) -> Standardizer:
        """Measure the vectors of the unique training sequences, shape (N, D)."""
        mean = x_ND.mean(axis=0, dtype=np.float64)
        spread = np.empty_like(mean)
        for first in range(0, len(mean), COLUMNS):
            part = slice(first, first + COLUMNS)
            spread[part] = x_ND[:, part].std(axis=0, dtype=np.float64)
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
        z_ND = x_ND - self.mean
        z_ND *= self.scale
        return np.clip(z_ND, -Z_LIMIT, Z_LIMIT, out=z_ND)

    def arrays(self, kind: str) -> dict[str, NDArray[np.float32]]:
        """Return mean and scale by the names under which a predictor stores those of a kind."""
        return {f"{kind}.mean": self.mean, f"{kind}.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], kind: str) -> Standardizer:
        """Restore the standardiser of a kind from the `arrays` of a predictor.

        Raises
        ------
        KeyError, ValueError
            They lack it, or it has no columns.
        """
        mean, scale = arrays[f"{kind}.mean"], arrays[f"{kind}.scale"]
        if not mean.ndim == scale.ndim == 1 or not len(mean) == len(scale) > 0:
            msg = f"{kind}.mean and {kind}.scale have shapes {mean.shape} and {scale.shape}"
            raise ValueError(msg)
        return cls(mean, scale)
