"""The mixture of a regime: from the predictions of the parts to pKd and sigma.

`fit` measures it, `Predictor` applies it, and both call this one. P pairs, K parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Ints
from abag.head.models.registry import MODELS

if TYPE_CHECKING:
    from abag.head.models.pair_model import PairModel
    from abag.head.models.pair_vectors import PairVectors


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights of parts, and what turns the variance of their predictions into sigma."""

    weights: Mapping[str, float]
    """By part; they add up to 1."""
    spread: float
    """Factor of the standard deviation of the predictions; see `models.sigma`."""
    noise: float
    """Standard deviation of all else, in pKd."""
    growth: float = 0.0
    """Share by which each unseen residue enlarges the variance of the errors."""

    def pkd(self, parts: Mapping[str, Floats]) -> Floats:
        """Mix the predictions of the parts, (P,) each in pKd; a missing part is a KeyError."""
        weighed = [weight * parts[name] for name, weight in self.weights.items()]
        return np.asarray(np.sum(weighed, axis=0))

    def sigma(
        self, variance: Floats, unseen: Ints | None = None, factor: Floats | float = 1.0
    ) -> Floats:
        """Return the standard deviation of the errors in pKd, (P,).

        Parameters
        ----------
        variance : ndarray, shape=(P,)
            That of the predictions, from `variance_of`, in pKd^2.
        unseen : ndarray, shape=(P,), optional
            Residues of each pair that no training sequence has at their positions.
        factor : ndarray, shape=(P,), or float
            Of the variance of the errors, for the two sequences of each pair.
        """
        larger = 1.0 if unseen is None else 1.0 + self.growth * unseen
        square = (self.spread**2 * variance + self.noise**2) * larger * factor
        return np.asarray(np.sqrt(square))

    def scaled(self, factor: float) -> Mixture:
        """Return the mixture whose sigma is so many times as large."""
        return replace(self, spread=self.spread * factor, noise=self.noise * factor)


def variance_parts(models: Mapping[str, Sequence[PairModel]]) -> list[str]:
    """Return the names of the parts whose variance `variance_of` returns, given their models.

    A predictor needs them for sigma even if no regime gives weight to their predictions.
    """
    with_posterior = [name for name in models if MODELS[name].has_posterior]
    return with_posterior or [name for name, part in models.items() if len(part) > 1]


def variance_of(parts: Iterable[Sequence[PairModel]], vectors: PairVectors) -> Floats:
    """Return the variance of predictions in pKd^2, (P,), given the models of each part.

    It is the mean over the models that have a variance, else the variance between the models of a
    part, else 0.
    """
    models = [tuple(part) for part in parts]
    variances = [model.variance(vectors) for part in models for model in part]
    if all(variance is None for variance in variances):
        for part in models:
            if len(part) > 1:
                predicted = [model.predict(vectors) for model in part]
                variances.append(np.var(predicted, axis=0))
    return mean_variance(variances, len(vectors.antibody))


def mean_variance(variances: Iterable[Floats | None], pairs: int) -> Floats:
    """Return the mean of the variances of models that have one, (P,); 0 if none has."""
    measured = [variance for variance in variances if variance is not None]
    return np.asarray(np.mean(measured or [np.zeros(pairs)], axis=0))
