"""The training pairs that a model learns from, and how much each label counts.

P pairs of a table, F of them in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Ints
from abag.head.models.pair_vectors import PairVectors

if TYPE_CHECKING:
    import torch

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Hold the pairs that a model learns from; `ridge.impute_censored` makes all labels exact."""

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
        """Return the same rows with other vectors, and without what was computed from these."""
        return replace(self, vectors=vectors, shared={})

    @property
    def pkd(self) -> Floats:
        """Return the labels of the rows, (F,), in pKd."""
        return self.pairs.pkd[self.rows]

    @property
    def mean(self) -> float:
        """Return the mean label, in which each counts as much as its weight."""
        weight = self.weight
        return float(self.pkd.mean() if weight is None else np.average(self.pkd, weights=weight))

    @property
    def size(self) -> int:
        """Return the number of pairs by which a model decides how to fit."""
        return self.run_pairs or len(self.rows)

    @property
    def noise_share(self) -> Floats:
        """Return the variance of the noise of each label relative to one measurement, (F,)."""
        if self.pairs.share is not None:
            return self.pairs.share[self.rows]
        return np.asarray(1 / self.pairs.measurements[self.rows])

    @property
    def weight(self) -> Floats | None:
        """Return how much each label counts, with mean 1, (F,); None: all as much."""
        return None if self.pairs.share is None else label_weights(self.pairs.share[self.rows])


def label_weights(share: Floats) -> Floats:
    """Return how much labels count, with mean 1, given the variances of their noise."""
    return np.asarray(1 / share / np.mean(1 / share))
