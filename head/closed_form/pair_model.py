"""What a model of pairs offers, so that predictors can average and store any of them.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats, Ints

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Chains
    from abag.head.data.labels import LabelledPairs

Index: TypeAlias = NDArray[np.integer]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


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

    def chains(self) -> Sequence[Chains]:
        """Return the antibodies.

        Raises
        ------
        SequencesMissing
            If they are not known.
        """
        if self.antibody_chains is None:
            msg = (
                "the model reads residues, but only vectors were given; expected the chains of "
                "each antibody, too."
            )
            raise SequencesMissing(msg)
        return self.antibody_chains


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
