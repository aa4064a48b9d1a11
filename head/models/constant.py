"""The mean label of the training pairs: what every other model must be better than."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.head.models.pair_model import Fitted

if TYPE_CHECKING:
    from abag.core.arrays import Floats
    from abag.head.models.pair_model import Arrays, PairVectors, TrainingRows


@dataclass(frozen=True, slots=True)
class ConstantSettings:
    """The prediction of a `ConstantModel`."""

    pkd_mean: float


@dataclass(frozen=True, slots=True)
class ConstantModel:
    """The training mean."""

    settings: ConstantSettings

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        return np.full(len(vectors.antibody), self.settings.pkd_mean)

    def variance(self, vectors: PairVectors) -> None:
        """Return None: not computed."""

    def arrays(self) -> Arrays:
        """Return no arrays."""
        return {}

    @classmethod
    def load(cls, _arrays: Arrays, settings: ConstantSettings) -> ConstantModel:
        """Restore a model."""
        return cls(settings)


def fit_mean(training: TrainingRows) -> Fitted:
    """Take the mean of the training labels."""
    return Fitted(ConstantModel(ConstantSettings(float(training.pkd.mean()))))
