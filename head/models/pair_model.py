"""What a model of pairs offers, so that predictors can average and store any of them.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors; F training pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.core.errors import TrainingError
from abag.head.models.pair_vectors import PairVectors
from abag.head.models.training_rows import TrainingRows

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class DoesNotApply(TrainingError):
    """A model cannot be fitted to these pairs."""


class PairModel(Protocol):
    """Predicts pairs of vectors; ``load(arrays, settings)`` of its class restores it."""

    @property
    def settings(self) -> Any:  # noqa: ANN401 - a dataclass of JSON values
        """What `load` needs beside the arrays."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64."""

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,); None if the model has none."""

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Hidden widths of a network, and the scaling of its output to pKd."""

    widths: tuple[int, ...]
    pkd_mean: float
    pkd_scale: float


Fit: TypeAlias = Callable[[TrainingRows], PairModel]
