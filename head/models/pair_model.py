"""The interface of a model of pairs, so that predictors can average and store any of them.

P pairs.
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
"""Arrays of a model by name, as they are stored."""


class DoesNotApply(TrainingError):
    """A model cannot be fitted to these pairs."""


class PairModel(Protocol):
    """Predict pairs of vectors; ``load(arrays, settings)`` of the class restores a model."""

    @property
    def settings(self) -> Any:  # noqa: ANN401 - a dataclass of JSON values
        """Return what `load` needs beside the arrays."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64."""

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,); None if the model has none."""

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Describe a network: its hidden widths, and the scaling of its output to pKd.

    It is here, and not in `network`, because that module imports torch.
    """

    widths: tuple[int, ...]
    pkd_mean: float
    """pKd of an output of 0."""
    pkd_scale: float
    """pKd per unit of the output."""


Fit: TypeAlias = Callable[[TrainingRows], PairModel]
"""Fits a model; raises `DoesNotApply` if these rows do not suit it."""
