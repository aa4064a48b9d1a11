"""What a model of pairs offers, so that predictors can average and store any of them.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors; F training pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints
from abag.core.errors import TrainingError
from abag.head.models.pair_vectors import PairVectors

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs


Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class DoesNotApply(TrainingError):
    """A model cannot be fitted to these pairs."""


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
    run_pairs: int = 0
    """Training pairs of the run's fit to all pairs, by which every fold decides how it fits; 0:
    those of this fit."""
    residue_sides: tuple[Kind, ...] | None = None
    """Sides that models of residues compare by these, as the run decided; None: as suits these
    rows."""
    searches: Mapping[str, object] = field(default_factory=dict, compare=False)
    """What chooses the kernels of this fold by the columns that they see; see `kernel_search`."""

    def with_vectors(self, vectors: PairVectors) -> TrainingRows:
        return replace(self, vectors=vectors, shared={})

    @property
    def pkd(self) -> Floats:
        return self.pairs.pkd[self.rows]

    @property
    def mean(self) -> float:
        """The mean label, in which each counts as much as its weight."""
        weight = self.weight
        return float(self.pkd.mean() if weight is None else np.average(self.pkd, weights=weight))

    @property
    def size(self) -> int:
        """The number of pairs by which a model decides how to fit."""
        return self.run_pairs or len(self.rows)

    @property
    def noise_share(self) -> Floats:
        """Variance of the noise of each label, in units of that of one measurement, (F,)."""
        if self.pairs.share is not None:
            return self.pairs.share[self.rows]
        return np.asarray(1 / self.pairs.measurements[self.rows])

    @property
    def weight(self) -> Floats | None:
        """How much each label counts, with mean 1, (F,); None: all as much."""
        return None if self.pairs.share is None else label_weights(self.pairs.share[self.rows])


def label_weights(share: Floats) -> Floats:
    """Return how much labels count, with mean 1, given the variances of their noise."""
    return np.asarray(1 / share / np.mean(1 / share))


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
