"""Vectors of unique sequences and the two that form each pair: the input of every model.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import PredictionError
from abag.head.models.residue_counts import frequencies_and_lengths

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.data.feature_scaling import PairFeatures

Index: TypeAlias = NDArray[np.integer]
"""Rows of unique sequences, (P,)."""


@dataclass(frozen=True)
class PairVectors:
    """Hold the vectors of unique sequences, and the two that form each pair."""

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
    features: PairFeatures | None = None
    """Columns of the P pairs themselves, if there are any."""

    def widths(self, side: int) -> tuple[int, ...]:
        """Return the columns of each view of antibodies (side 0) or antigens (side 1)."""
        if self.views is not None:
            return self.views[side]
        vectors = self.antigen_ME if side else self.antibody_ND
        return (vectors.shape[1],)

    def index(self, kind: Kind) -> Index:
        """Return the row of the antibody or the antigen of each pair, (P,)."""
        return self.antibody if kind == "antibody" else self.antigen

    def chains(self, kind: Kind = "antibody") -> Sequence[Chains]:
        """Return the unique antibodies or antigens; raise `PredictionError` if not known."""
        chains = self.antibody_chains if kind == "antibody" else self.antigen_chains
        if chains is None:
            msg = (
                "the model reads residues, but only vectors were given; expected the chains of "
                f"each {kind}, too."
            )
            raise PredictionError(msg)
        return chains

    @cached_property
    def composition(self) -> PairVectors:
        """Replace vectors by residue frequencies and lengths, (N, 42) and (M, 21)."""
        heavy = [chains[0] for chains in self.chains()]
        light = [chains[1] for chains in self.chains()]
        antigens = ["".join(chains) for chains in self.chains("antigen")]
        x_ND = frequencies_and_lengths(heavy, light)
        y_ME = frequencies_and_lengths(antigens)
        return replace(self, antibody_ND=x_ND, antigen_ME=y_ME, views=None)


def given_features(vectors: PairVectors) -> PairFeatures:
    """Return the features of pairs; raise `PredictionError` if none were given."""
    if vectors.features is None:
        msg = "the model reads features, but none were given; expected those of each pair, too."
        raise PredictionError(msg)
    return vectors.features
