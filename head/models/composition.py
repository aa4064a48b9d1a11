"""Ridge on the composition of chains, which needs no language model.

The features of a sequence are the frequencies of the 20 residues and the length: of an antibody for
each of its two chains, of an antigen for all its chains together. N sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from abag.core.arrays import Matrix
from abag.embed.sequences.chains import STANDARD_RESIDUES
from abag.head.models.pair_model import Arrays, Fitted, OnFeatures, PairVectors, TrainingRows
from abag.head.models.ridge import LinearModel, LinearSettings, fit_linear

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains

COUNTED = 4_096
"""Texts whose residues are counted at a time, which stay in the CPU's cache."""


@dataclass(frozen=True, slots=True)
class CompositionRidge(OnFeatures):
    """A linear function of the composition of both sequences."""

    inner: LinearModel

    @property
    def settings(self) -> LinearSettings:
        """Those of the linear function."""
        return self.inner.settings

    def features(self, vectors: PairVectors) -> PairVectors:
        """Put compositions in place of the vectors of both sequences."""
        return with_composition(vectors)

    @classmethod
    def load(cls, arrays: Arrays, settings: LinearSettings) -> CompositionRidge:
        """Restore a model."""
        return cls(LinearModel.load(arrays, settings))


def fit_composition_ridge(training: TrainingRows) -> Fitted:
    """Fit the ridge to the training pairs; the inner folds choose its strength."""
    fit = fit_linear(training.with_vectors(with_composition(training.vectors)))
    return Fitted(CompositionRidge(cast("LinearModel", fit.model)))


def with_composition(vectors: PairVectors) -> PairVectors:
    """Put compositions in place of the vectors of both sequences."""
    return vectors._replace(
        antibody_ND=antibody_composition(vectors.chains("antibody")),
        antigen_ME=antigen_composition(vectors.chains("antigen")),
        views=None,
    )


def antibody_composition(antibodies: Sequence[Chains]) -> Matrix:
    """Return frequencies and lengths of heavy and light chains, (N, 42)."""
    return _frequencies(*([chains[at] for chains in antibodies] for at in (0, 1)))


def antigen_composition(antigens: Sequence[Chains]) -> Matrix:
    """Return frequencies and lengths of all chains of each antigen, (N, 21)."""
    return _frequencies(["".join(chains) for chains in antigens])


def _frequencies(*columns: Sequence[str]) -> Matrix:
    """Return the frequencies of residues in each column of texts, then their lengths."""
    counts = [count_residues(texts) for texts in columns]
    lengths = [count.sum(1, keepdims=True) for count in counts]
    frequencies = [c / np.maximum(1, n) for c, n in zip(counts, lengths, strict=True)]
    return np.hstack([*frequencies, *lengths])


def count_residues(texts: Sequence[str]) -> Matrix:
    """Count each of the 20 `STANDARD_RESIDUES` in N texts, (N, 20); other letters are left out."""
    letters = len(STANDARD_RESIDUES)
    column = np.full(256, letters, np.int64)
    column[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(letters)
    counts = np.empty((len(texts), letters), np.float32)
    for at in range(0, len(texts), COUNTED):
        some = texts[at : at + COUNTED]
        cells = column.take(np.frombuffer("".join(some).encode("ascii"), np.uint8))
        row = np.repeat(np.arange(len(some)), [len(text) for text in some])
        cells += row * (letters + 1)
        found = np.bincount(cells, minlength=len(some) * (letters + 1))
        counts[at : at + COUNTED] = found.reshape(len(some), -1)[:, :-1]
    return counts
