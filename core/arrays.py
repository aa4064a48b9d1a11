"""Names for the types of arrays, and what numpy does too slowly."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Matrix: TypeAlias = NDArray[np.float32]
"""Vectors of sequences, one per row."""
Number = TypeVar("Number", bound=np.integer)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Return the distinct values of an array in ascending order, as ``numpy.unique`` does.

    Since NumPy 2.3 that collects integers in a hash table, which takes many times as long as
    sorting them.
    """
    ordered = np.sort(values, axis=None)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[is_new])
