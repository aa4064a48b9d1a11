"""Heads on the residues of variants: antibodies are columns of residues, not vectors.

Where most antibodies share their lengths, residues compared position by position say more than
vectors that average over the whole sequence. `OneHotKernel` is kernel ridge, beside the stored
vectors of the antigens. `OneHotRidge` is the baseline of this name, kept as weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from abag.core.arrays import Floats, distinct
from abag.head.data.vectors import Standardizer
from abag.head.models.baselines import columns_for_ridge
from abag.head.models.gaussian_process import (
    GaussianProcess,
    ProcessSettings,
    fit_gaussian_process,
)
from abag.head.models.one_hot import SHARED_LENGTH, OneHot, common_reference, identity
from abag.head.models.pair_model import (
    Arrays,
    ClosedFormFit,
    DoesNotApply,
    LinearModel,
    LinearSettings,
    PairVectors,
    TrainingRows,
)
from abag.head.models.ridge import FeatureBlock, fit_ridges

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import Index

LEAST_IDENTITY = 0.5
"""Mean share of residues in common with the consensus; unrelated domains have about half."""
TRAIN = "antibody.train"


@dataclass(frozen=True, slots=True)
class ResidueModel:
    """Base of the models that read residues; `PairVectors` must have the chains."""

    one_hot: OneHot

    def encode(self, vectors: PairVectors) -> PairVectors:
        """Put columns of residues in place of the vectors of antibodies."""
        return vectors._replace(antibody_ND=self.one_hot.encode(vectors.chains()))


def find_reference(head: str, chains: Sequence[Chains], of_pair: Index) -> tuple[str, str]:
    """Return what the antibodies of the training pairs, (F,), are compared with by a head.

    Raises
    ------
    DoesNotApply
        If they have no common length, or are unlike each other.
    """
    reference = common_reference(chains, of_pair)
    if reference is None:
        msg = (
            f"{head}: fewer than {SHARED_LENGTH:.0%} of the training pairs have antibodies "
            "of the same lengths; expected variants of one antibody, or another --head"
        )
        raise DoesNotApply(msg)
    used = trained_antibodies(chains, of_pair)
    if len(used) == 1:
        msg = (
            f"{head}: all training pairs have the same antibody; expected variants of one "
            "antibody, or another --head"
        )
        raise DoesNotApply(msg)
    shared = identity(used, reference)
    if shared < LEAST_IDENTITY:
        msg = (
            f"{head}: the training antibodies share {shared:.0%} of their residues with "
            f"their consensus; expected variants of one antibody (at least {LEAST_IDENTITY:.0%}), "
            "or another --head"
        )
        raise DoesNotApply(msg)
    return reference


def trained_antibodies(chains: Sequence[Chains], of_pair: Index) -> list[Chains]:
    """Return the distinct antibodies of the training pairs, (F,)."""
    return [chains[i] for i in distinct(of_pair).tolist()]


@dataclass(frozen=True, slots=True)
class OneHotSettings:
    """The part of a `OneHotKernel` that is no array."""

    one_hot: OneHot
    process: ProcessSettings


@dataclass(frozen=True, slots=True)
class OneHotKernel(ResidueModel):
    """A Gaussian process whose antibodies are columns of residues."""

    process: GaussianProcess

    @property
    def settings(self) -> OneHotSettings:
        """What `load` needs beside the arrays."""
        return OneHotSettings(self.one_hot, self.process.settings)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        return self.process.predict(self.encode(vectors))

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance of each prediction in pKd^2, (P,)."""
        return self.process.variance(self.encode(vectors))

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays; eight columns of residues are one byte."""
        arrays = self.process.arrays()
        return {**arrays, TRAIN: np.packbits(arrays[TRAIN] > 0, axis=1)}

    @classmethod
    def load(cls, arrays: Arrays, settings: OneHotSettings) -> OneHotKernel:
        """Restore a model from `arrays` and `settings`."""
        width, packed = settings.one_hot.width, arrays[TRAIN]
        if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-width // 8):
            msg = f"{TRAIN} is of type {packed.dtype} and shape {packed.shape}"
            raise ValueError(msg)
        train_AC = np.unpackbits(packed, axis=1, count=width).astype(np.float32)
        process = GaussianProcess.load({**arrays, TRAIN: train_AC}, settings.process)
        return cls(settings.one_hot, process)


def fit_one_hot_kernel(training: TrainingRows) -> ClosedFormFit:
    """Fit kernel ridge to the exact training pairs; inner folds choose the kernel.

    Raises
    ------
    DoesNotApply
        If the antibodies are no variants of each other.
    """
    vectors = training.vectors
    chains, of_pair = vectors.chains(), vectors.antibody[training.rows]
    reference = find_reference("one_hot_kernel", chains, of_pair)
    one_hot = OneHot.of(trained_antibodies(chains, of_pair), reference, marks_new=True)
    assert one_hot is not None
    residues = vectors._replace(antibody_ND=one_hot.encode(chains))
    fit = fit_gaussian_process(
        replace(training, vectors=residues, shared={}), "error", scale_antibodies=False
    )
    return replace(fit, model=OneHotKernel(one_hot, cast("GaussianProcess", fit.model)))


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
