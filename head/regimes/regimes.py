"""Regimes: what is new about a pair, given the pairs that a model was trained on.

Each side of a pair, antibody and antigen, has one of four levels:

known
    the sequence itself is in training;
new variant
    it is not, but a sequence of its family is: a near-duplicate, a clone, a strain;
new mutations
    it has residues that no training sequence of its library has at their positions;
new
    training has nothing of its family.

How far a known family reaches is told by a number, the distance to the nearest training sequence
(`nearest`), with which sigma grows. A regime is a cell of both levels. The sides are equal: a table
with its sides exchanged has the mirror image of its regimes. `abag.head.regimes.sides` finds the
levels of a table's pairs and of other pairs, by the same comparisons. P pairs, N sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints
from abag.embed.tables.chains import KINDS, Kind

KNOWN = 0
VARIANT = 1
MUTATED = 2
NEW = 3
LEVELS = 4
"""Number of levels of a side."""
Levels: TypeAlias = NDArray[np.int8]
"""`KNOWN`, `VARIANT`, `MUTATED` or `NEW` of each sequence or pair."""


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

    def covers(self, other: Regime) -> bool:
        """Return whether no side of another regime is newer."""
        return self.antibody >= other.antibody and self.antigen >= other.antigen

    @property
    def new(self) -> tuple[Kind, ...]:
        """Return the sides that are not known."""
        return tuple(kind for kind, level in zip(KINDS, self.levels, strict=True) if level)


_ANTIBODIES = (
    ("", "known antibodies"),
    ("new_variant", "new variants"),
    ("new_mutations", "new mutations"),
    ("new_antibody", "new antibodies"),
)
"""Names of the levels of antibodies in files and in sentences, in the order of the levels."""
_ANTIGENS = (
    ("", "known antigens"),
    ("antigen_variant", "new antigen variants"),
    ("antigen_mutations", "new antigen mutations"),
    ("new_antigen", "new antigens"),
)
_OTHER_NAMES = {(KNOWN, KNOWN): "known", (NEW, NEW): "both_new"}


def _regime_of(antibody: int, antigen: int) -> Regime:
    name_of_antibody, antibody_words = _ANTIBODIES[antibody]
    name_of_antigen, antigen_words = _ANTIGENS[antigen]
    name = "_".join(filter(None, (name_of_antibody, name_of_antigen)))
    name = _OTHER_NAMES.get((antibody, antigen), name)
    return Regime(name, f"{antibody_words}, {antigen_words}", antibody, antigen)


OF_LEVELS = {
    levels: _regime_of(*levels)
    for levels in sorted(product(range(LEVELS), repeat=2), key=lambda both: (sum(both), both[::-1]))
}
"""By the levels of antibody and antigen; a table shows them in this order."""
GIVEN = Regime("given", "the test pairs that were given", KNOWN, KNOWN)
"""The regime of a test part that users name: what is new about its pairs is theirs to say."""
REGIMES = {regime.name: regime for regime in (*OF_LEVELS.values(), GIVEN)}
"""By name."""
OF_SPLIT = {
    "random": "known",
    "antibody": "new_antibody",
    "antigen": "new_antigen",
    "both": "both_new",
    "mutations": "new_mutations",
    "column": "given",
    "file": "given",
}
"""The regime that a split measures; ``mutations`` of an antigen library: antigen_mutations."""
OF_ANTIGENS = (", known antigens", " within antigens")
"""Words that say nothing where pairs have no antigens."""
UNMEASURED = "the run could not measure {}"
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
    """Shape (N,)."""
    distance: Ints
    """Shape (N,); differences from the nearest training sequence, see `nearest`; 0 of new ones,
    which have no relative to be compared with."""
    nearest: Ints
    """Shape (N,); which training sequence that is; `nearest.NONE` of new ones."""

    def take(self, index: NDArray[np.integer]) -> NewSequences:
        """Return those of pairs, given the sequence of each, (P,)."""
        return NewSequences(self.level[index], self.distance[index], self.nearest[index])


class FoundRegimes(NamedTuple):
    """Hold the regimes of P pairs, (P,) each, dtype object."""

    name: NDArray[np.object_]
    """The regime that the pair is in."""
    used: NDArray[np.object_]
    """The measured regime whose weights and sigma apply."""
    why_far: NDArray[np.object_]
    """Why no tested pair was as new; empty if some were."""
    distance: Ints
    """Differences from the nearest training sequences on the sides that are not new in the measured
    regime, dtype int64: sigma grows with these."""

    @property
    def is_far(self) -> Bools:
        """Return which pairs are newer or further than all whose errors were measured."""
        return np.asarray(self.why_far != "")

    def beside(self, why_far: NDArray[np.object_] | None) -> FoundRegimes:
        """Return regimes of pairs that are far for another reason, too, (P,), where it is one."""
        if why_far is None:
            return self
        return self._replace(why_far=np.where(why_far == "", self.why_far, why_far))


class Shown(NamedTuple):
    """Hold what a run has shown of a regime, as far as other regimes depend on it."""

    reach: int
    """Differences from the nearest training sequences that nearly all tested pairs had at most."""
    error: float
    """Largest RMSE that its tested pairs allow for new ones: the end of an interval, in pKd."""


def find_regimes(
    antibody: NewSequences,
    antigen: NewSequences,
    measured: Mapping[str, Shown],
    kinds: Collection[Kind] = KINDS,
) -> FoundRegimes:
    """Find the regime of P pairs, given what is new about both sequences and the measured regimes.

    A pair is far outside every measured regime, and where it differs more from the nearest training
    sequences than nearly all tested pairs of the regime that is used, which is its reach. The words
    for this name the `kinds` of sequences that pairs have.
    """
    shape = antibody.level.shape
    name = np.full(shape, "", object)
    used = np.full(shape, "", object)
    why = np.full(shape, "", object)
    distance = np.zeros(shape, np.int64)
    for regime in OF_LEVELS.values():
        rows = (antibody.level == regime.antibody) & (antigen.level == regime.antigen)
        if not rows.any():
            continue
        covers, used_here = applicable(regime, measured)
        name[rows] = regime.name
        used[rows] = used_here
        if not covers:
            why[rows] = UNMEASURED.format(words_of(regime.name, kinds))
        for side, level in zip((antibody, antigen), REGIMES[used_here].levels, strict=True):
            if level != NEW:
                distance[rows] += side.distance[rows]
        most = measured[used_here].reach
        beyond = rows & (distance > most)
        for count in np.unique(distance[beyond]).tolist():
            why[beyond & (distance == count) & (why == "")] = FARTHER.format(count, most)
    return FoundRegimes(name, used, why, distance)


def applicable(regime: Regime, measured: Mapping[str, Shown]) -> tuple[bool, str]:
    """Return whether a measured regime covers another one, and the measured one to use.

    A regime covers those in which no side is newer: its errors bound theirs from above. So, of the
    regimes that cover this one and no other such regime, that with the smallest errors is used. If
    none covers it, those that fall short the least bound its errors from below, and that with the
    largest errors is used.
    """
    for name in ("given", regime.name):
        if name in measured:
            return True, name
    regimes = [REGIMES[name] for name in sorted(measured)]
    covering = [other for other in regimes if other.covers(regime)]
    if covering:
        closest = []
        for other in covering:
            if not any(other.covers(beside) for beside in covering if beside != other):
                closest.append(other)
        return True, min(closest, key=lambda other: measured[other.name].error).name

    def short(other: Regime) -> int:
        antibody = max(0, regime.antibody - other.antibody)
        antigen = max(0, regime.antigen - other.antigen)
        return antibody + antigen

    least = min(map(short, regimes))
    closest = [other for other in regimes if short(other) == least]
    return False, max(closest, key=lambda other: measured[other.name].error).name
