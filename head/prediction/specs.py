"""What a predictor consists of, apart from its behaviour: parts, measured regimes, vectors, noise.

These are the records that predictor.json and weights.safetensors hold. P pairs, N sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from abag.embed.sequences.columns import CHAIN_ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import PairModel
    from abag.head.models.pair_vectors import PairVectors

WEIGHTS = "weights.safetensors"
RECORD = "predictor.json"
NEARLY_ALL = 0.95
"""Share of the training antibodies from which a chain is one that they have; the rest is odd."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the prediction: the mean of models of one kind."""

    name: str
    models: tuple[PairModel, ...]

    def predict(self, vectors: PairVectors) -> NDArray[np.float64]:
        """Return the mean prediction of the models in pKd, (P,)."""
        return np.asarray(np.mean([model.predict(vectors) for model in self.models], axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRegime:
    """Mixture and limits of a regime that the run has measured."""

    name: str
    weights: tuple[float, ...]
    """Of all parts, in their order; they add up to 1."""
    spread: float
    """Factor of the prediction's standard deviation in sigma; see `models.sigma`."""
    noise: float
    growth: float
    """Share by which each unseen residue enlarges the variance of the errors."""
    most_unseen: int
    """Unseen residues that 95 % of the tested pairs did not exceed."""
    most_mutations: int
    """Mutations that none of them exceeded."""
    verdict: str
    """What the run has shown."""


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """Sequences of one kind whose errors are smaller or larger than those of others."""

    keys: NDArray[np.uint8]
    """Shape (T, 16)."""
    factor: NDArray[np.float64]
    """Of the variance of errors, (T,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedChains:
    """Shares of the distinct training antibodies that have a heavy and a light chain."""

    heavy: float
    light: float

    @classmethod
    def of(cls, antibodies: Sequence[Chains]) -> Self:
        """Count the chains of the training antibodies, N of them."""
        present = np.array([[bool(chain) for chain in chains] for chains in antibodies])
        heavy, light = present.mean(axis=0).tolist()
        return cls(heavy=heavy, light=light)

    def check(self) -> None:
        """Raise ValueError for what no fit has written."""
        if not (0 <= self.heavy <= 1 and 0 <= self.light <= 1):
            msg = f"shares of heavy and light chains are {self.heavy} and {self.light}"
            raise ValueError(msg)

    def why_far(self, antibodies: Sequence[Chains]) -> NDArray[np.object_]:
        """Say of N antibodies why their chains are not those of training, (N,); empty if not."""
        why = np.full(len(antibodies), "", object)
        for place, role in enumerate(CHAIN_ROLES):
            share = getattr(self, role)
            has_chain = np.array([bool(chains[place]) for chains in antibodies], np.bool_)
            if share >= NEARLY_ALL:
                why[~has_chain] = f"it has no {role} chain, which {self.owners(role)} have"
            elif share == 0:
                why[has_chain] = f"it has a {role} chain, which no training antibody has"
        return why

    def lacking(self, antibodies: Sequence[Chains]) -> str:
        """Return the role of a chain that nearly all had in training and none has here, or ""."""
        for place, role in enumerate(CHAIN_ROLES):
            is_usual = getattr(self, role) >= NEARLY_ALL
            if is_usual and not any(chains[place] for chains in antibodies):
                return role
        return ""

    def owners(self, role: str) -> str:
        """Say which training antibodies have a chain."""
        share = getattr(self, role)
        return f"{'all' if share == 1 else f'{share:.1%} of the'} training antibodies"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSpec:
    """One of the vectors that a predictor reads of each sequence of one kind."""

    name: str
    origin: str
    """Alias, hub name or folder that the encoder was loaded from."""
    fingerprint: str
    long: str
    """How long chains were encoded, as in encoder.json."""
    random_weights: bool
    pooling: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec:
    """The vectors that a predictor needs of one kind of sequence."""

    views: tuple[ViewSpec, ...]
    """One or more, whose vectors are joined; none of antigens in a run of antibodies alone."""
    training_sequences: int

    @property
    def encoders(self) -> list[ViewSpec]:
        """The first view of each distinct encoder, in the order of the views."""
        first: dict[str, ViewSpec] = {}
        for view in self.views:
            first.setdefault(view.fingerprint, view)
        return list(first.values())

    @property
    def name(self) -> str:
        """Names of the encoders."""
        return " + ".join(view.name for view in self.encoders) or "none"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the first encoder; empty without one."""
        return self.views[0].fingerprint if self.views else ""

    @property
    def random_weights(self) -> bool:
        """Whether an encoder has random weights, with which scores mean nothing."""
        return any(view.random_weights for view in self.views)

    @property
    def pooling(self) -> str:
        """Poolings of the views, as messages list them."""
        return ", ".join(view.pooling for view in self.views)

    @property
    def width(self) -> int:
        """Numbers of a vector; that of a sequence that nobody encodes is one 0."""
        return sum(view.width for view in self.views) or 1
