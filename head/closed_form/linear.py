"""The ridges on vectors as heads: the baselines of the same names, kept as weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abag.core.arrays import Floats
from abag.embed.sequences.chains import KINDS
from abag.head.closed_form.pair_model import Arrays, ClosedFormFit, PairVectors, TrainingRows
from abag.head.data.scaling import Standardizer
from abag.head.evaluation.ridge import FeatureBlock, fit_ridges


@dataclass(frozen=True, slots=True)
class LinearSettings:
    """The part of a `LinearModel` that is no array."""

    intercept: float
    """Prediction in pKd where both standardised vectors are 0."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A sum of a linear function of each standardised vector and an intercept."""

    settings: LinearSettings
    antibody: Standardizer
    antigen: Standardizer
    antibody_D: Floats
    """Weights of the standardised antibody vector, in pKd."""
    antigen_E: Floats

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        left_N = self.antibody.project(vectors.antibody_ND, self.antibody_D)
        right_M = self.antigen.project(vectors.antigen_ME, self.antigen_E)
        return np.asarray(
            self.settings.intercept + left_N[vectors.antibody] + right_M[vectors.antigen]
        )

    def variance(self, vectors: PairVectors) -> None:
        """Return None: not computed."""

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        return {
            **self.antibody.arrays("antibody"),
            **self.antigen.arrays("antigen"),
            "antibody.weight": self.antibody_D,
            "antigen.weight": self.antigen_E,
        }

    @classmethod
    def load(cls, arrays: Arrays, settings: LinearSettings) -> LinearModel:
        """Restore a model from `arrays` and `settings`."""
        return cls(
            settings,
            Standardizer.load(arrays, "antibody"),
            Standardizer.load(arrays, "antigen"),
            arrays["antibody.weight"],
            arrays["antigen.weight"],
        )


def fit_linear(training: TrainingRows, sides: Sequence[int] = (0, 1)) -> ClosedFormFit:
    """Fit a ridge to the exact training pairs; the inner folds choose its strength.

    `sides` are those with weights: 0 for the antibody, 1 for the antigen.
    """
    vectors, rows = training.vectors, training.rows
    antibody = Standardizer.of(vectors.antibody_ND, vectors.antibody[rows])
    antigen = Standardizer.of(vectors.antigen_ME, vectors.antigen[rows])
    blocks = [
        FeatureBlock(antibody.apply(vectors.antibody_ND), vectors.antibody.astype(np.int64)),
        FeatureBlock(antigen.apply(vectors.antigen_ME), vectors.antigen.astype(np.int64)),
    ]
    pkd, device = training.pairs.pkd, training.device
    used = [blocks[side] for side in sides]
    fit = fit_ridges(used, pkd, rows, training.fold, [range(len(used))], device)[0]
    weights = [np.zeros(block.table_ND.shape[1]) for block in blocks]
    ends = np.cumsum([len(weights[side]) for side in sides])[:-1]
    for side, weight_D in zip(sides, np.split(fit.weight_D, ends), strict=True):
        weights[side] = weight_D
    model = LinearModel(LinearSettings(fit.intercept), antibody, antigen, *weights)
    names = " and ".join(KINDS[side] for side in sides)
    return ClosedFormFit(model, fit.inner, None, f"ridge on the vectors of {names}")
