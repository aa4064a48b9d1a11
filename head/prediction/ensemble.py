"""A weighted mean of fitted models, and its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag import AbagError
from abag.head.closed_form.residue_model import ResidueModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.head.closed_form.pair_model import PairModel, PairVectors


class PredictorDamaged(AbagError):
    """A predictor folder is incomplete, altered or of another version."""


@dataclass(frozen=True, slots=True)
class Member:
    """A fitted model and its share of the prediction."""

    model: PairModel
    weight: float
    """The weights of all members add up to 1."""


@dataclass(frozen=True, slots=True, repr=False)
class Ensemble:
    """Models whose weighted mean is the prediction."""

    members: tuple[Member, ...]
    spread: float
    """Factor of the prediction's standard deviation in sigma; see `training.uncertainty`."""
    noise: float
    """Residual noise in sigma, in pKd."""
    calibrated: bool
    """Whether sigma was fitted to groups of pairs that its heads had not seen."""

    @property
    def reads_residues(self) -> bool:
        """Whether a model reads the residues of antibodies beside their vectors."""
        return any(isinstance(member.model, ResidueModel) for member in self.members)

    def score(self, vectors: PairVectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict for pairs of vectors.

        Parameters
        ----------
        vectors : PairVectors
            With the chains of the antibodies, if the predictor `reads_residues`.

        Returns
        -------
        tuple of NDArray, shape=(P,), dtype=float64
            Predicted pKd and sigma. Sigma grows with the variance that members give, or else with
            the variance over the members.

        Raises
        ------
        PredictorDamaged
            If the weights are so large that a prediction overflows.
        SequencesMissing
            If it needs the chains of the antibodies, and they are not given.
        """
        with np.errstate(all="ignore"):  # checked here
            pkd, sigma = self._score(vectors)
        if not (np.isfinite(pkd).all() and np.isfinite(sigma).all()):
            msg = (
                "the predictor gives infinity or NaN; expected finite predictions. Train it again."
            )
            raise PredictorDamaged(msg)
        return pkd, sigma

    def _score(self, vectors: PairVectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        first = self.members[0].model.predict(vectors)
        # Sums of differences from the first member: accurate, and two numbers per pair.
        total, squares = np.zeros_like(first), np.zeros_like(first)
        for member in self.members[1:]:
            difference = member.model.predict(vectors) - first
            total += member.weight * difference
            squares += member.weight * np.square(difference)
        spread = np.maximum(squares - np.square(total), 0.0)
        own = [v for m in self.members if (v := m.model.variance(vectors)) is not None]
        return first + total, self.sigma(np.mean(own, axis=0) if own else spread)

    def sigma(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn the variance of predictions, shape (P,), into the standard error in pKd, (P,)."""
        return np.sqrt(self.spread**2 * variance + self.noise**2)
