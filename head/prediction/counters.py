"""What is counted in sequences to predict: `Novelty`, `TrainingAntigens`, or nothing.

N sequences, C counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains


class SequenceCounter(Protocol):
    """Counts what is new in sequences of one kind."""

    def count(self, sequences: Sequence[Chains], /) -> NDArray[np.int16]:
        """Return the counts of N sequences, (N, C)."""

    def is_far(self, new_NC: NDArray[np.int16], /) -> NDArray[np.bool_]:
        """Return which sequences are far from the training set by these counts, (N,)."""

    def reasons(self, new_NC: NDArray[np.int16], /) -> dict[str, NDArray[np.bool_]]:
        """Return which sequences are far for each reason, (N,) each."""

    def columns(self, new_NC: NDArray[np.int16], /) -> dict[str, Any]:
        """Return the columns of a table, (N,) each."""


class NothingCounted:
    """Stands for the counter that a predictor lacks."""

    def count(self, sequences: Sequence[Chains]) -> NDArray[np.int16]:
        """Return no counts, (N, 0)."""
        return np.zeros((len(sequences), 0), np.int16)

    def is_far(self, new_NC: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return that no sequence is far, (N,)."""
        return np.zeros(len(new_NC), np.bool_)

    def reasons(self, _new_NC: NDArray[np.int16]) -> dict[str, NDArray[np.bool_]]:
        """Return no reason."""
        return {}

    def columns(self, _new_NC: NDArray[np.int16]) -> dict[str, Any]:
        """Return no columns."""
        return {}
