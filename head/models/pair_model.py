"""What a model of pairs offers, so that predictors can average and store any of them.

The simplest ones are here: the training mean, and ridges on vectors, which as heads are the
baselines of the same names, kept as weights. A ridge also gives the expected labels of censored
training pairs. Models in closed form minimise squared errors, which a bound does not have.
Expectation maximisation alternates between a ridge on both vectors and the mean of a normal
distribution that is cut off at the bound, around the ridge's prediction from the other inner folds.
All models and baselines of a split then learn from these labels as from exact ones.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors; F training pairs, R
pairs.

References
----------
Tobin: Estimation of relationships for limited dependent variables, Econometrica 26, 1958.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from abag import AbagError
from abag.core.arrays import Floats, Ints
from abag.embed.sequences.chains import KINDS
from abag.head.data.vectors import Standardizer
from abag.head.models.ridge import FeatureBlock, fit_ridges

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.data.labels import LabelledPairs

Index: TypeAlias = NDArray[np.integer]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
ROUNDS, CLOSE = 20, 0.01
"""Most ridges that are fitted, and the change of all labels in pKd at which no more are."""
LEAST_SIGMA = 1e-6


class SequencesMissing(AbagError):
    """A model that reads residues was given vectors only."""


class DoesNotApply(AbagError):
    """A head cannot be fitted to these pairs."""


class PairVectors(NamedTuple):
    """Vectors of unique sequences, and the two that form each pair."""

    antibody_ND: NDArray[np.float32]
    antigen_ME: NDArray[np.float32]
    antibody: Index
    """Row of `antibody_ND` of each pair, (P,)."""
    antigen: Index
    """Row of `antigen_ME` of each pair, (P,)."""
    antibody_chains: Sequence[Chains] | None = None
    """The N antibodies, for models that read residues."""
    antigen_chains: Sequence[Chains] | None = None

    def chains(self, kind: Kind = "antibody") -> Sequence[Chains]:
        """Return the unique antibodies or antigens.

        Raises
        ------
        SequencesMissing
            If they are not known.
        """
        found = self.antibody_chains if kind == "antibody" else self.antigen_chains
        if found is None:
            msg = (
                "the model reads residues, but only vectors were given; expected the chains of "
                f"each {kind}, too."
            )
            raise SequencesMissing(msg)
        return found


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The training pairs that a head learns from; `impute_censored` makes all of them exact."""

    pairs: LabelledPairs
    vectors: PairVectors
    """Of all P pairs."""
    rows: Ints
    """Training pairs, (F,)."""
    fold: Ints
    """Inner fold of each training pair, (F,); the groups of the split stay together."""
    device: torch.device | None = None
    """GPU for the sums of a ridge; by default, and for all else, the CPU."""
    shared: dict[str, object] = field(default_factory=dict, compare=False)
    """What several heads compute from these rows, so that only the first does."""

    def with_vectors(self, vectors: PairVectors) -> TrainingRows:
        """Return the same pairs with other vectors."""
        return replace(self, vectors=vectors, shared={})

    @property
    def pkd(self) -> Floats:
        """Labels of the training pairs, (F,)."""
        return self.pairs.pkd[self.rows]

    @property
    def noise_share(self) -> Floats:
        """Variance of the noise of each label, in units of that of one measurement, (F,)."""
        return np.asarray(1 / self.pairs.measurements[self.rows])


class PairModel(Protocol):
    """Predicts the affinity of pairs of vectors, and can be stored as settings and arrays."""

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
    def load(cls, arrays: Arrays, settings: ConstantSettings) -> ConstantModel:
        """Restore a model."""
        return cls(settings)


@dataclass(frozen=True, slots=True)
class ClosedFormFit:
    """A fitted closed-form head and its predictions of pairs that it had not seen."""

    model: PairModel
    inner: Floats
    """pKd of each training pair, (F,), as predicted from the other inner folds; NaN where that
    would take too long."""
    inner_variance: Floats | None
    """Variance of these predictions, (F,); None if the model has none."""
    description: str
    """What was chosen, for messages."""


Fit: TypeAlias = Callable[[TrainingRows], ClosedFormFit]


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


SIDES = ((0, 1), (0,), (1,))
"""Sides with weights, 0 for the antibody and 1 for the antigen, of all ridges on vectors."""


def fit_linear(training: TrainingRows, sides: tuple[int, ...] = (0, 1)) -> ClosedFormFit:
    """Fit a ridge to the exact training pairs; the inner folds choose its strength.

    The first call fits those of all `SIDES`, which share most of the work.
    """
    fits = training.shared.get("ridges")
    if fits is None:
        fits = training.shared["ridges"] = dict(
            zip(SIDES, _fit_ridges(training, SIDES), strict=True)
        )
    return cast("dict[tuple[int, ...], ClosedFormFit]", fits)[sides]


def _fit_ridges(training: TrainingRows, choices: Sequence[tuple[int, ...]]) -> list[ClosedFormFit]:
    vectors, rows = training.vectors, training.rows
    antibody = Standardizer.of(vectors.antibody_ND, vectors.antibody[rows])
    antigen = Standardizer.of(vectors.antigen_ME, vectors.antigen[rows])
    blocks = [
        FeatureBlock(antibody.apply(vectors.antibody_ND), vectors.antibody.astype(np.int64)),
        FeatureBlock(antigen.apply(vectors.antigen_ME), vectors.antigen.astype(np.int64)),
    ]
    pkd, found = training.pairs.pkd, []
    fits = fit_ridges(blocks, pkd, rows, training.fold, choices, training.device)
    for sides, fit in zip(choices, fits, strict=True):
        weights = [np.zeros(block.table_ND.shape[1]) for block in blocks]
        ends = np.cumsum([len(weights[side]) for side in sides])[:-1]
        for side, weight_D in zip(sides, np.split(fit.weight_D, ends), strict=True):
            weights[side] = weight_D
        model = LinearModel(LinearSettings(fit.intercept), antibody, antigen, *weights)
        names = " and ".join(KINDS[side] for side in sides)
        found.append(ClosedFormFit(model, fit.inner, None, f"ridge on the vectors of {names}"))
    return found


def expected_labels(
    label: Floats, censored: NDArray[np.int8], mean: Floats, sigma: Floats | float
) -> tuple[Floats, Floats]:
    """Return mean and variance of the hidden labels, (R,) each; exact ones have no variance.

    Parameters
    ----------
    label : NDArray, shape=(R,), dtype=float64
        Label, or the bound of a censored one.
    censored : NDArray, shape=(R,), dtype=int8
        -1: the hidden label is below the bound; +1: above; 0: exact.
    mean, sigma : NDArray, shape=(R,), dtype=float64
        Normal distribution of the hidden label if no bound were known.
    """
    allowed = censored * (mean - label) / sigma  # sigmas from the bound, above 0 if it is satisfied
    ratio = np.sqrt(2 / np.pi) / erfcx(-allowed / np.sqrt(2))  # normal density / probability
    expected = np.where(censored == 0, label, mean + censored * sigma * ratio)
    left = np.clip(1 - ratio * (allowed + ratio), 0, 1)  # share of the variance
    return expected, np.where(censored == 0, 0.0, np.square(sigma) * left)


def impute_censored(training: TrainingRows) -> TrainingRows:
    """Replace the bounds of censored training pairs by expected labels, and mark these as exact."""
    pairs, rows, bound = training.pairs, training.rows, training.pkd
    censored = pairs.censored[rows]
    if not censored.any():
        return training
    pkd, side = pairs.pkd.copy(), pairs.censored.copy()
    side[rows] = 0
    training = replace(training, pairs=replace(pairs, pkd=pkd, censored=side))
    sigma = float(bound.std())
    for _ in range(ROUNDS):
        mean = _fit_ridges(training, SIDES[:1])[0].inner
        label, variance = expected_labels(bound, censored, mean, max(sigma, LEAST_SIGMA))
        sigma = float(np.sqrt(np.mean(np.square(label - mean) + variance)))
        moved = np.abs(label - pkd[rows]).max()
        pkd[rows] = label
        if moved < CLOSE:
            break
    return training
