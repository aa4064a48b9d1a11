"""Which numbers can be affinities or measurements at all.

A label of another unit, or of classes, is refused before anything is learned from it.
"""

from __future__ import annotations

import numpy as np

from abag.core.arrays import Bools, Floats
from abag.core.errors import LabelError

USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""


def refuse_two_values(raw: Floats, where: str, what: str) -> None:
    """Refuse numbers, shape (R,), of which there are only two, as measurements of `what`."""
    distinct = np.unique(raw[np.isfinite(raw)])
    if len(distinct) == 2 < np.isfinite(raw).sum():
        low, high = (f"{value:g}" for value in distinct)
        msg = (
            f"{where} holds only {low} and {high}, which are two classes, not measurements of "
            f"{what}; abag predicts numbers, and expected more than two different ones. Choose a "
            "column of measurements with --column label=NAME."
        )
        raise LabelError(msg)


def outside(values: Floats, bounds: tuple[float, float]) -> Bools:
    """Return which values lie below the first bound or above the second, (R,)."""
    return (values < bounds[0]) | (values > bounds[1])
