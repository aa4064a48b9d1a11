"""Tell what of a pair is new to a predictor, and which of its regimes applies.

N sequences, P pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.head.regimes.library import SeenMutations
from abag.head.regimes.recognise import SeenSequences
from abag.head.regimes.regimes import REGIMES, Regime

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind

KNOWN, NEW, OUTSIDE = 0, 1, 2
"""States of a sequence; outside: no variant of a library's antibody."""
UNRELATED = "the antibody is no variant of those in training"
UNMEASURED = "the run could not measure {}"


class NewSequences(NamedTuple):
    """States of the two sequences of P pairs, (P,) each, dtype int8."""

    antibody: NDArray[np.int8]
    antigen: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Recogniser:
    """The sketches of the training sequences."""

    antibodies: SeenSequences
    antigens: SeenSequences
    mutations: SeenMutations | None
    """Of a library of variants; None if the training antibodies are not one."""

    def states(self, kind: Kind, chains: Sequence[Chains]) -> NDArray[np.int8]:
        """Return the state of each of N sequences, (N,)."""
        if kind == "antigen":
            return np.where(self.antigens.near(chains), KNOWN, NEW).astype(np.int8)
        near = self.antibodies.near(chains)
        if self.mutations is None:
            return np.where(near, KNOWN, NEW).astype(np.int8)
        state = np.where(self.mutations.is_new(chains), NEW, KNOWN).astype(np.int8)
        state[~near] = OUTSIDE
        return state

    def regimes_of(
        self, new: NewSequences, measured: Collection[str]
    ) -> tuple[NDArray[np.object_], NDArray[np.object_], NDArray[np.object_]]:
        """Return the regime of each pair, the measured one that is used, and why it is far, (P,).

        A pair of a regime that was not measured is predicted like those of a stricter one, in which
        at least as much is new. If none was measured, the pair is far. The reason is empty for
        pairs that are not far.
        """
        shape = new.antibody.shape
        name, used, why = (np.full(shape, "", object) for _ in range(3))
        changed = "new_mutations" if self.mutations is not None else "new_antibody"
        for a in (KNOWN, NEW, OUTSIDE):
            for g in (KNOWN, NEW):
                rows = (new.antibody == a) & (new.antigen == g)
                if rows.any():
                    of_antibody = "new_antibody" if a == OUTSIDE else changed
                    names = {(0, 0): "known", (1, 0): of_antibody, (0, 1): "new_antigen"}
                    regime = REGIMES[names.get((int(a != KNOWN), g), "both_new")]
                    covers, found = applicable(regime, measured)
                    name[rows], used[rows] = regime.name, found
                    if a == OUTSIDE:
                        why[rows] = UNRELATED
                    elif not covers:
                        why[rows] = UNMEASURED.format(regime.words)
        return name, used, why

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` needs."""
        sides = {"antibody": self.antibodies, "antigen": self.antigens}
        if self.mutations is not None:
            sides["mutations"] = self.mutations  # type: ignore[assignment]
        return {
            f"seen.{side}.{name}": array
            for side, one in sides.items()
            for name, array in one.arrays().items()
        }

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> Recogniser:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""

        def of(side: str) -> dict[str, NDArray[Any]]:
            prefix = f"seen.{side}."
            return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

        mutations = of("mutations")
        return cls(
            SeenSequences.load("antibody", of("antibody")),
            SeenSequences.load("antigen", of("antigen")),
            SeenMutations.load(mutations) if mutations else None,
        )


def applicable(regime: Regime, measured: Collection[str]) -> tuple[bool, str]:
    """Return whether a measured regime covers another one, and the measured one to use."""
    if "given" in measured:
        return True, "given"
    known = [REGIMES[name] for name in measured]
    if regime.name in measured:
        return True, regime.name
    covering = [one for one in known if set(regime.new) <= set(one.new)]
    if covering:
        return True, min(covering, key=lambda one: len(one.new)).name
    shared = max(known, key=lambda one: (len(set(one.new) & set(regime.new)), len(one.new)))
    return False, shared.name
