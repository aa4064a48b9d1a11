"""Kernel ridge on the residues of variants, beside the stored vectors of their antigens.

Where most antibodies share their lengths, residues compared position by position say more than
vectors that average over the whole sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from abag.core.arrays import Floats
from abag.head.closed_form.gaussian_process import (
    GaussianProcess,
    ProcessSettings,
    fit_gaussian_process,
)
from abag.head.closed_form.pair_model import Arrays, ClosedFormFit, PairVectors, TrainingRows
from abag.head.closed_form.residue_model import ResidueModel, find_reference, trained_antibodies
from abag.head.data.one_hot import OneHot

TRAIN = "antibody.train"


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
