"""The ridge on the residues of variants as a head: the baseline of this name, kept as weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats
from abag.head.closed_form.linear import LinearModel, LinearSettings
from abag.head.closed_form.pair_model import (
    Arrays,
    ClosedFormFit,
    DoesNotApply,
    PairVectors,
    TrainingRows,
)
from abag.head.closed_form.residue_model import ResidueModel, find_reference, trained_antibodies
from abag.head.data.one_hot import OneHot
from abag.head.data.scaling import Standardizer
from abag.head.evaluation.baselines import columns_for_ridge
from abag.head.evaluation.ridge import FeatureBlock, fit_ridges

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.closed_form.pair_model import Index


@dataclass(frozen=True, slots=True)
class OneHotRidgeSettings:
    """The part of a `OneHotRidge` that is no array."""

    one_hot: OneHot
    ridge: LinearSettings


@dataclass(frozen=True, slots=True)
class OneHotRidge(ResidueModel):
    """A ridge whose antibodies are columns of residues, and whose antigens have no weight."""

    ridge: LinearModel

    @property
    def settings(self) -> OneHotRidgeSettings:
        """What `load` needs beside the arrays."""
        return OneHotRidgeSettings(self.one_hot, self.ridge.settings)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        return self.ridge.predict(self.encode(vectors))

    def variance(self, vectors: PairVectors) -> None:
        """Return None: not computed."""

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        return self.ridge.arrays()

    @classmethod
    def load(cls, arrays: Arrays, settings: OneHotRidgeSettings) -> OneHotRidge:
        """Restore a model from `arrays` and `settings`."""
        return cls(settings.one_hot, LinearModel.load(arrays, settings.ridge))


def columns_of(chains: Sequence[Chains], of_pair: Index) -> OneHot:
    """Return the columns of residues for the antibodies of the training pairs, (F,).

    Raises
    ------
    DoesNotApply
        If the antibodies are no variants of each other, or too many.
    """
    reference = find_reference("one_hot_ridge", chains, of_pair)
    trained = trained_antibodies(chains, of_pair)
    one_hot = columns_for_ridge(trained, reference)
    if one_hot is None:
        msg = (
            f"one_hot_ridge: {len(trained):,} training antibodies; expected few enough for a ridge "
            "in a minute. Use another --head."
        )
        raise DoesNotApply(msg)
    return one_hot


def fit_one_hot_ridge(training: TrainingRows) -> ClosedFormFit:
    """Fit a ridge to the exact training pairs; the inner folds choose its strength.

    Raises
    ------
    DoesNotApply
        As `columns_of`.
    """
    vectors, rows = training.vectors, training.rows
    chains = vectors.chains()
    one_hot = columns_of(chains, vectors.antibody[rows])
    block = FeatureBlock(one_hot.encode(chains), vectors.antibody.astype(np.int64))
    pkd, device = training.pairs.pkd, training.device
    fit = fit_ridges([block], pkd, rows, training.fold, [(0,)], device)[0]
    width = vectors.antigen_ME.shape[1]
    linear = LinearModel(
        LinearSettings(fit.intercept),
        Standardizer.identity(one_hot.width),
        Standardizer.identity(width),
        fit.weight_D,
        np.zeros(width),
    )
    return ClosedFormFit(OneHotRidge(one_hot, linear), fit.inner, None, "ridge on residues")
