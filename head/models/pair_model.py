"""What a model of pairs offers, so that predictors can average and store any of them.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors; F training pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats, Ints

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.data.labels import LabelledPairs

Index: TypeAlias = NDArray[np.integer]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class SequencesMissing(AbagError):
    """A model that reads residues was given vectors only."""


class DoesNotApply(AbagError):
    """A model cannot be fitted to these pairs."""


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
    views: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Columns of each view of antibodies and of antigens; None: each side has one view."""

    def widths(self, side: int) -> tuple[int, ...]:
        """Return the columns of each view of a side, 0 or 1."""
        if self.views is not None:
            return self.views[side]
        return ((self.antigen_ME if side else self.antibody_ND).shape[1],)

    def chains(self, kind: Kind = "antibody") -> Sequence[Chains]:
        """Return the unique antibodies or antigens; raise `SequencesMissing` if not known."""
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
    """The training pairs that a model learns from; `ridge.impute_censored` makes all exact."""

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
    """What several models compute from these rows, so that only the first does."""

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
    """Predicts the affinity of pairs of vectors, and can be stored as settings and arrays.

    Its class has ``load(arrays, settings)``.
    """

    @property
    def settings(self) -> Any:  # noqa: ANN401 - a dataclass of JSON values
        """What `load` needs beside the arrays."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64."""

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,); None if the model has none."""

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""


class Posterior(PairModel, Protocol):
    """A model with a joint distribution of its predictions."""

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of the difference between each pair and another, (P,) in pKd^2."""


class Fitted(NamedTuple):
    """A model that was fitted to training pairs."""

    model: PairModel
    chosen: str = ""
    """What the inner folds chose, for messages."""


Fit: TypeAlias = Callable[[TrainingRows], Fitted]


class OnFeatures:
    """Base of the models that compute features of sequences in place of their vectors.

    `inner` is a model of these features. The `PairVectors` must have the chains.
    """

    __slots__ = ()
    inner: Any

    def features(self, vectors: PairVectors) -> PairVectors:
        """Put the features in place of the vectors."""
        raise NotImplementedError

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        return np.asarray(self.inner.predict(self.features(vectors)))

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,), if the inner model has one."""
        variance: Floats | None = self.inner.variance(self.features(vectors))
        return variance

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of the difference between each pair and another, (P,) in pKd^2."""
        return np.asarray(self.inner.difference_variance(self.features(vectors), other))

    def arrays(self) -> Arrays:
        """Return those of the inner model."""
        arrays: Arrays = self.inner.arrays()
        return arrays


class FitSize(NamedTuple):
    """What the time of a fit depends on."""

    rows: int
    unique: tuple[int, int]
    """Antibodies and antigens."""
    widths: tuple[int, int]
    """Of their vectors."""
    variants: bool = False
    """Whether the antibodies are variants of one, whose residues are compared."""

    @property
    def training_pairs(self) -> int:
        """Pairs that a fold is trained on."""
        return max(1, int(TRAIN_SHARE * self.rows))


TRAIN_SHARE = 0.8
