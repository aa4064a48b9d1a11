"""A side of a table's pairs, antibody or antigen: its groups, and what is new about a sequence.

All that regimes, folds and metrics ask of antibodies they ask of antigens. P pairs, N unique
sequences of the side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abag.core.arrays import Bools, Ints, distinct
from abag.core.cache import cache_dir
from abag.embed.sequences.numbering import number_antibodies
from abag.head.regimes.regimes import KNOWN, NEW, VARIANT, NewSequences
from abag.head.regimes.seen_residues import Aligner, Residues, SeenResidues, usual_tokens
from abag.head.regimes.splits import grouped_folds

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.domains import ChainName
    from abag.embed.sequences.numbering import Numbered
    from abag.head.regimes.clusters import PairGroups

LEAST_GROUPS = 5.0
"""Effective groups below which nothing can be measured."""
LEAST_ROWS = 10
"""Tested pairs below which nothing can be measured."""
LIBRARY_SHARE = 0.5
"""A cluster of near-duplicates with a larger share of the pairs makes a side a library."""
ENOUGH_FAMILIES = 10.0
"""Effective families that stay whole when others are divided into their variants."""
DIVIDED_SHARE = 0.5
"""Largest share of the pairs whose families are divided, if whole families can be measured."""
MOST_DIVIDED = 20
"""Families that are divided, if whole families can be measured."""
COMMON_TOKEN = 0.6
"""Largest share of the sequences that a residue may have to be held out where none is rare."""


def effective_groups(group: Ints) -> float:
    """Return how many groups of equal size are as informative: (sum w)^2 / sum w^2."""
    if not len(group):
        return 0.0
    size = np.unique(group, return_counts=True)[1].astype(np.float64)
    return float(size.sum() ** 2 / np.square(size).sum())


@dataclass
class Side:
    """Hold one side of the pairs of a table, and find what folds of it can hold out."""

    kind: Kind
    chains: Sequence[Chains]
    """The N unique sequences."""
    sequence: Ints
    """Number of each pair's sequence, (P,)."""
    near: Ints
    """Clusters of near-duplicates, of which one in training makes the others known, (P,)."""
    family: Ints
    """Clusters of families, (P,); of antibodies the same clusters."""
    _numbered: Mapping[ChainName, Numbered] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, groups: PairGroups, kind: Kind) -> Side:
        """Take a side of a table's pairs."""
        pairs = groups.pairs
        near = groups.antibody if kind == "antibody" else groups.near_antigen
        family = groups.of_method(kind)
        return cls(kind, pairs.table.sequences[kind].chains, pairs.index(kind), near, family)

    @cached_property
    def is_library(self) -> bool:
        """Return whether the sequences are variants of one."""
        sizes = np.bincount(self.near)
        is_dominated = sizes.max() > LIBRARY_SHARE * sizes.sum()
        if effective_groups(self.near) >= LEAST_GROUPS or not is_dominated:
            return False
        in_largest = self.near == sizes.argmax()
        return len(distinct(self.sequence[in_largest])) >= LEAST_ROWS

    @cached_property
    def units(self) -> Ints:
        """Group known pairs by what counts as one sequence, (P,): library variants or families.

        Errors of strains have much in common: as groups of their own, they would make intervals
        too narrow.
        """
        return self.sequence if self.is_library else self.family

    @cached_property
    def held_out(self) -> Ints:
        """Group pairs by what folds hold out as a whole where the side is no library, (P,).

        The groups are families, or the clusters of near-duplicates of families that are divided:
        of all that can be, if too few families are left to measure, or of the largest, while enough
        stay whole.
        """
        near_of_family = np.unique(np.stack([self.family, self.near]), axis=1)[0]
        several: Ints = np.flatnonzero(np.bincount(near_of_family) > 1)
        if effective_groups(self.family) >= LEAST_GROUPS:
            several = self._divisible(several)
        is_divided = np.isin(self.family, several)
        return np.where(is_divided, self.near + self.family.max() + 1, self.family)

    def _divisible(self, several: Ints) -> Ints:
        """Choose families to divide, the largest first, while enough stay whole."""
        size = np.bincount(self.family)
        largest = several[np.argsort(-size[several], kind="stable")][:MOST_DIVIDED]
        chosen = list[int]()
        for family in largest.tolist():
            is_divided = np.isin(self.family, [*chosen, family])
            whole = effective_groups(self.family[~is_divided])
            if whole >= ENOUGH_FAMILIES and is_divided.mean() <= DIVIDED_SHARE:
                chosen.append(family)
        return np.array(chosen, np.int64)

    @property
    def testable(self) -> tuple[int, ...]:
        """Return the levels, apart from known, that folds of this side can test."""
        return (VARIANT,) if self.is_library else (VARIANT, NEW)

    def counted(self, level: int) -> Ints:
        """Return what counts as independent among tested pairs of a level, (P,)."""
        if self.is_library:
            return self.sequence
        return self.family if level == NEW else self.near

    @cached_property
    def aligner(self) -> Aligner:
        """Return what finds the residues of the library."""
        largest = np.bincount(self.near).argmax()
        members = distinct(self.sequence[self.near == largest]).tolist()
        return Aligner.of(self.kind, [self.chains[i] for i in members])

    @cached_property
    def residues(self) -> Residues:
        """Return the residues of the N sequences."""
        if self.kind == "antigen":
            return self.aligner.residues(self.chains)
        return self.aligner.residues(self.chains, self.numbered)

    @property
    def numbered(self) -> Mapping[ChainName, Numbered]:
        """Return the IMGT numbering of the antibodies."""
        if self._numbered is None:
            self._numbered = number_antibodies(self.chains, cache_dir() / "numbering")
        return self._numbered

    def seen(self, sequences: Ints) -> SeenResidues:
        """Collect the residues of some training sequences of a library."""
        token_NL, region_NR = self.residues
        of_training = Residues(token_NL[sequences], region_NR[sequences])
        return SeenResidues.of(self.aligner, of_training)

    def compare(self, train: Ints) -> NewSequences:
        """Compare each pair's sequence with those of the training pairs."""
        is_near = np.isin(self.near, self.near[train])
        in_family = np.isin(self.family, self.family[train])
        level = np.where(is_near, KNOWN, np.where(in_family, VARIANT, NEW)).astype(np.int8)
        if not self.is_library:
            none = np.zeros(len(level), np.int64)
            return NewSequences(level, none, none)
        trained = distinct(self.sequence[train])
        seen = self.seen(trained)
        count_N, is_new_N = seen.count_unseen(self.residues)
        mutations_N = seen.count_mutations(self.residues)
        is_new_N[trained] = False  # also one that cannot be aligned
        level[is_near & is_new_N[self.sequence]] = VARIANT
        is_variant = level != NEW
        unseen = count_N[self.sequence] * is_variant
        return NewSequences(level, unseen, mutations_N[self.sequence] * is_variant)

    def folds(self, number: int, seed: Sequence[int]) -> list[Bools]:
        """Hold out sequences in each of some folds: which pairs have one, (P,) each."""
        if self.is_library:
            return self._residue_folds(number, seed)
        fold = grouped_folds(self.held_out, number, seed)
        return [fold == k for k in range(number)]

    def _residue_folds(self, number: int, seed: Sequence[int]) -> list[Bools]:
        """Hold out residues at positions, each once: pairs whose sequence has one."""
        used = distinct(self.sequence)
        token_NL = self.residues.token_NL[used]
        tokens, index = np.unique(token_NL, return_inverse=True)
        x_NT = np.zeros((len(used), len(tokens)), np.bool_)
        x_NT[np.arange(len(used))[:, None], index.reshape(token_NL.shape)] = True
        x_NT = x_NT[:, tokens != 0]
        share = 1 / number
        count_T = x_NT.sum(axis=0)
        # 9: a stream that no other draw of these seeds uses
        order = np.random.default_rng([*seed, 9]).permutation(len(count_T)).tolist()
        queue = [t for t in order if 0 < count_T[t] <= share * len(used)]
        if x_NT[:, queue].any(axis=1).mean() < share:  # each variant has many of the residues
            # what most of them have at a position cannot be new
            is_usual = np.isin(tokens[tokens != 0], usual_tokens(token_NL))
            is_common = ~is_usual & (count_T <= COMMON_TOKEN * len(used))
            common = [t for t in order if is_common[t]]
            masks = [x_NT[:, t] for t in common[:number]]
        else:
            masks = []
            for _ in range(number):
                test_N, queue = _fill(x_NT, queue, share)
                masks.append(test_N)
        return [np.isin(self.sequence, used[test_N]) for test_N in masks]


class Sides(NamedTuple):
    """Hold both sides of the pairs of a table."""

    antibody: Side
    antigen: Side

    @property
    def has_library(self) -> bool:
        """Return whether a side is a library."""
        return self.antibody.is_library or self.antigen.is_library

    def of_kind(self, kind: Kind) -> Side:
        """Return one side."""
        return self.antibody if kind == "antibody" else self.antigen

    def compare(self, train: Ints) -> tuple[NewSequences, NewSequences]:
        """Compare both sequences of each pair with those of the training pairs."""
        return self.antibody.compare(train), self.antigen.compare(train)


def sides_of(groups: PairGroups) -> Sides:
    """Return the antibodies and the antigens of a table's pairs."""
    return Sides(Side.of(groups, "antibody"), Side.of(groups, "antigen"))


def _fill(x_NT: Bools, queue: Sequence[int], share: float) -> tuple[Bools, list[int]]:
    """Hold out residues until the sequences that have one are about a share; return the rest."""
    test_N = np.zeros(len(x_NT), np.bool_)
    left = list[int]()
    for t in queue:
        # within a tenth of the share: tokens of many sequences would overshoot it
        with_token_N = test_N | x_NT[:, t]
        if test_N.mean() < 0.9 * share and with_token_N.mean() <= 1.1 * share:
            test_N = with_token_N
        else:
            left.append(t)
    return test_N, left
