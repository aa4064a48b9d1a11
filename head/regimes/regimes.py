"""Regimes: what is new about a pair, given the pairs that a model was trained on.

Each side of a pair, antibody and antigen, has one of three levels:

known
    a near-duplicate of a training sequence and, where the side is a library of variants, without a
    residue that no training sequence has at its position;
variant
    of a family that training has: with unseen residues, or, of antigens, less than 90 % identical;
new
    neither.

A regime is a cell of both. The sides are equal: a table with its sides exchanged has the mirror
image of its regimes. `abag.head.regimes.sides` finds the levels of a table's pairs, and
`abag.head.regimes.recognition` those of other pairs, by the same comparisons. P pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.embed.tables.chains import KINDS

if TYPE_CHECKING:
    from abag.core.arrays import Ints
    from abag.embed.tables.chains import Kind

KNOWN = 0
VARIANT = 1
NEW = 2
LEVELS = 3
"""Number of levels of a side."""
Levels: TypeAlias = NDArray[np.int8]
"""`KNOWN`, `VARIANT` or `NEW` of each sequence or pair."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Describe a kind of new pairs."""

    name: str
    """Its name in files."""
    words: str
    """Its name in sentences and tables."""
    antibody: int
    """Level of the antibody."""
    antigen: int
    """Level of the antigen."""

    @property
    def levels(self) -> tuple[int, int]:
        """Return the levels of antibody and antigen."""
        return self.antibody, self.antigen

    @property
    def new(self) -> tuple[Kind, ...]:
        """Return the sides that are not known."""
        return tuple(kind for kind, level in zip(KINDS, self.levels, strict=True) if level)


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("known", "known antibodies, known antigens", KNOWN, KNOWN),
        Regime("new_antibody", "new antibodies, known antigens", NEW, KNOWN),
        Regime("new_mutations", "new mutations, known antigens", VARIANT, KNOWN),
        Regime("new_antigen", "known antibodies, new antigens", KNOWN, NEW),
        Regime("antigen_variant", "known antibodies, new antigen variants", KNOWN, VARIANT),
        Regime("both_variant", "new mutations, new antigen variants", VARIANT, VARIANT),
        Regime("new_antibody_variant", "new antibodies, new antigen variants", NEW, VARIANT),
        Regime("new_antigen_mutations", "new mutations, new antigens", VARIANT, NEW),
        Regime("both_new", "new antibodies, new antigens", NEW, NEW),
        Regime("given", "the test pairs that were given", KNOWN, KNOWN),
    )
}
"""By name; a table shows them in this order."""
OF_LEVELS = {regime.levels: regime for regime in REGIMES.values() if regime.name != "given"}
"""By the levels of antibody and antigen."""
OF_SPLIT = {
    "random": "known",
    "antibody": "new_antibody",
    "antigen": "new_antigen",
    "both": "both_new",
    "mutations": "new_mutations",
    "column": "given",
    "file": "given",
}
"""The regime that a split measures; ``mutations`` of an antigen library: antigen_variant."""
OF_ANTIGENS = (", known antigens", " within antigens")
"""Words that say nothing where pairs have no antigens."""
UNMEASURED = "the run could not measure {}"
MORE_UNSEEN = "it has {} unseen residues, more than the {} of nearly all tested pairs"
MORE_MUTATIONS = "it has {} mutations, more than the {} of any tested pair"
FARTHER = (
    "it differs in {} residues from the nearest training sequences, more than the {} of nearly all "
    "tested pairs"
)


def words_of(regime: str, kinds: Collection[Kind]) -> str:
    """Say what is new about the pairs of a regime, which have these kinds of sequences."""
    return without_absent(REGIMES[regime].words, kinds)


def without_absent(text: str, kinds: Collection[Kind]) -> str:
    """Leave kinds of sequences that pairs do not have out of what is said about a regime."""
    for words in () if "antigen" in kinds else OF_ANTIGENS:
        text = text.replace(words, "")
    return text


class NewSequences(NamedTuple):
    """Tell what is new about N sequences of one kind, or about those of N pairs."""

    level: Levels
    """Shape (N,); `KNOWN`, `VARIANT` or `NEW`."""
    unseen: Ints
    """Shape (N,); residues that no training sequence of a library has at their positions."""
    mutations: Ints
    """Shape (N,); residues that most training sequences of a library do not have there."""
    distance: Ints
    """Shape (N,); differences from the nearest training sequence, see `nearest`; 0 of new ones,
    which have no relative to be compared with."""
    nearest: Ints
    """Shape (N,); which training sequence that is; `nearest.NONE` of new ones."""

    def take(self, index: NDArray[np.integer]) -> NewSequences:
        """Return those of pairs, given the sequence of each, (P,)."""
        return NewSequences(
            self.level[index],
            self.unseen[index],
            self.mutations[index],
            self.distance[index],
            self.nearest[index],
        )


class Reach(NamedTuple):
    """Tell how far from training the tested pairs of a regime were."""

    unseen: int
    """Unseen residues that 95 % of them did not exceed."""
    mutations: int
    """The most mutations of any of them."""
    distance: int
    """Differences from the nearest training sequences that 95 % of them did not exceed."""


class FoundRegimes(NamedTuple):
    """Hold the regimes of P pairs, (P,) each, dtype object."""

    name: NDArray[np.object_]
    """The regime that the pair is in."""
    used: NDArray[np.object_]
    """The measured regime whose weights and sigma apply."""
    why_far: NDArray[np.object_]
    """Why no tested pair was as new; empty if some were."""
    is_covered: NDArray[np.bool_]
    """Whether errors were measured of pairs as new and as far, dtype bool."""

    def beside(self, why_far: NDArray[np.object_] | None) -> FoundRegimes:
        """Return regimes of pairs that are far for another reason, too, (P,), where it is one."""
        if why_far is None:
            return self
        reasons = np.where(why_far == "", self.why_far, why_far)
        return self._replace(why_far=reasons, is_covered=self.is_covered & (why_far == ""))


def find_regimes(
    antibody: NewSequences,
    antigen: NewSequences,
    reach: Mapping[str, Reach],
    kinds: Collection[Kind] = KINDS,
) -> FoundRegimes:
    """Find the regime of P pairs, given what is new about both sequences and the measured regimes.

    A pair is far outside every measured regime, and where it has more unseen residues, or differs
    more from the nearest training sequences, than nearly all tested pairs of the regime that is
    used, or has more mutations than any of them. The words for this name the `kinds` of
    sequences that pairs have.
    """
    shape = antibody.level.shape
    name = np.full(shape, "", object)
    used = np.full(shape, "", object)
    why = np.full(shape, "", object)
    is_covered = np.ones(shape, np.bool_)
    unseen = antibody.unseen + antigen.unseen
    mutations = antibody.mutations + antigen.mutations
    distance = antibody.distance + antigen.distance
    for regime in OF_LEVELS.values():
        rows = (antibody.level == regime.antibody) & (antigen.level == regime.antigen)
        if not rows.any():
            continue
        covers, measured = applicable(regime, reach)
        name[rows] = regime.name
        used[rows] = measured
        is_covered[rows] = covers
        if not covers:
            why[rows] = UNMEASURED.format(words_of(regime.name, kinds))
        tested = reach[measured]
        is_covered[rows & (distance > tested.distance)] = False
        limits = (
            (unseen, tested.unseen, MORE_UNSEEN),
            (mutations, tested.mutations, MORE_MUTATIONS),
            (distance, tested.distance, FARTHER),
        )
        for counts, most, words in limits:
            far = rows & (counts > most) & (why == "")
            for count in np.unique(counts[far]).tolist():
                why[far & (counts == count)] = words.format(count, most)
    return FoundRegimes(name, used, why, is_covered)


def applicable(regime: Regime, measured: Collection[str]) -> tuple[bool, str]:
    """Return whether a measured regime covers another one, and the measured one to use.

    A regime covers those in which no side is newer. The least new one is used, or, if none covers,
    the one that falls short the least.
    """
    for name in ("given", regime.name):
        if name in measured:
            return True, name

    def short(other: Regime) -> int:
        antibody = max(0, regime.antibody - other.antibody)
        antigen = max(0, regime.antigen - other.antigen)
        return antibody + antigen

    regimes = [REGIMES[name] for name in measured]
    closest = min(regimes, key=lambda other: (short(other), sum(other.levels), other.name))
    return short(closest) == 0, closest.name
