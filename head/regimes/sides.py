"""A side of a table's pairs, antibody or antigen: its groups, and what is new about a sequence.

All that regimes, folds and metrics ask of antibodies they ask of antigens. A library is a side
whose sequences are variants that align to one reference: antibodies by IMGT numbering, antigens to
the most common residues of those of the usual lengths. A residue at a position is kept as a digest
of both.

A predictor keeps its training sequences, and tells what is new about those of other tables by the
comparisons of a fit. One that was shared without them keeps their keys: an exact repeat is known,
and everything else counts as new.

P pairs, N unique sequences of the side, T training sequences, L positions of all chains, R regions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints, checked_array, distinct, is_among
from abag.core.files import cache_dir
from abag.core.messages import LONGEST_QUOTE, bar
from abag.embed.tables.chains import (
    CHAIN_ROLES,
    IMGT_REGIONS,
    RESIDUES,
    ChainName,
    Chains,
    Kind,
    keys_array,
    position_number,
)
from abag.embed.tables.numbering import Numbered, number_antibodies
from abag.head.regimes.relations import (
    NONE,
    Distances,
    Nearest,
    are_related,
    by_length,
    cdr3_of_chains,
    consensus,
)
from abag.head.regimes.similar import Words, lengths_of
from abag.head.regimes.splits import (
    KNOWN,
    LEAST_GROUPS,
    LEAST_ROWS,
    MUTATED,
    NEW,
    VARIANT,
    Levels,
    NewSequences,
    PairGroups,
    effective_groups,
    grouped_folds,
)

GAP = ord("-")
"""Code of a place without a residue."""
UNKNOWN = ord("X")
"""Code of a residue that nobody knows, which counts as none."""
REGIONS = len(IMGT_REGIONS)
"""Regions of one chain of an antibody."""
INSERTED = 1 << 20
"""Places of insertions are numbered from here, so that they differ from positions."""


LIBRARY_SHARE = 0.5
"""A cluster of near-duplicates with a larger share of the pairs makes a side a library."""
ENOUGH_FAMILIES = 10.0
"""Effective families that stay whole when others are divided into their variants."""
DIVIDED_SHARE = 0.5
"""Largest share of the pairs whose families are divided, if whole families can be measured."""
MOST_DIVIDED = 20
"""Families that are divided, if whole families can be measured."""
NEIGHBOURS_SHARE = 0.02
"""Share of the variants of a library in a neighbourhood that is held out."""
MOST_NEIGHBOURS = 60
"""Variants of a neighbourhood: in a large library more neighbourhoods tell more."""
LEAST_NEIGHBOURS = 6
"""Variants of a neighbourhood below which none is held out."""
APART_SHARE = 0.06
"""Share of the variants that a fold holds out in neighbourhoods."""
VARIANTS_SHARE = 0.1
"""Share of the sequences with relatives that a fold of single pairs holds out as a whole."""
LEAST_SHARE = 0.1
"""Share of the pairs that such sequences have, without which none is held out."""
MOST_COMPARED = 200_000_000
"""Comparisons of sequences for the distances of a fold, about 4 s of a core."""
LEAST_SAMPLE = 500
"""Sequences whose distances are found in any case."""
COMMON_TOKEN = 0.6
"""Largest share of the sequences that a residue may have to be held out where none is rare."""
COMMON_TOKENS = 0.45
"""Largest share of those that have one of two residues."""


class Residues(NamedTuple):
    """Hold the residues of N sequences of a side."""

    token_NL: Words
    """Digest of position and residue; 0 for none."""
    region_NR: Words
    """Digest of each region of both chains of an antibody; of antigens there are none."""


@dataclass(frozen=True, slots=True)
class Aligner:
    """Find the residues of the sequences of one kind."""

    kind: Kind
    reference: tuple[str, ...] = ()
    """Chains of the antigen to which others are aligned; antibodies are numbered instead."""

    @classmethod
    def of(cls, kind: Kind, chains: Sequence[Chains]) -> Aligner:
        """Choose the reference of a library: the consensus of those of the most common lengths."""
        if kind == "antibody":
            return cls(kind)
        by_lengths: dict[tuple[int, ...], list[Chains]] = {}
        for antigen in map(by_length, chains):
            lengths = tuple(map(len, antigen))
            by_lengths.setdefault(lengths, []).append(antigen)
        # of equally common lengths the smallest: the order of the sequences does not matter
        usual = min(by_lengths, key=lambda lengths: (-len(by_lengths[lengths]), lengths))
        reference = map(consensus, zip(*by_lengths[usual], strict=True))
        return cls(kind, tuple(reference))

    def residues(
        self, chains: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
    ) -> Residues:
        """Find the residues of N sequences; `numbered` has antibodies and any others."""
        if self.kind == "antibody":
            return _of_antibodies(chains, numbered or number_antibodies(chains, None))
        antigens = [by_length(antigen) for antigen in chains]
        columns = []
        for number, reference in enumerate(self.reference):
            texts = [antigen[number] if number < len(antigen) else "" for antigen in antigens]
            columns.append(_aligned(texts, reference, number))
        # chains that the reference lacks: each is one unseen residue
        n_chains = np.array([len(antigen) for antigen in antigens])
        more = (n_chains > len(self.reference)).astype(np.uint64)
        token_NL = np.concatenate([*columns, more[:, None]], axis=1)
        return Residues(token_NL, np.zeros((len(chains), 0), np.uint64))


@dataclass(frozen=True, slots=True)
class SeenResidues:
    """Hold what occurs in the training sequences of a library."""

    aligner: Aligner
    tokens: Words
    """Sorted digests of position and residue."""
    consensus: Words
    """Most frequent digest of each region, (R,)."""
    changed: Ints
    """Sorted sets of regions that differ from the consensus, one bit each."""

    @classmethod
    def of(cls, aligner: Aligner, residues: Residues) -> SeenResidues:
        """Collect what occurs in N training sequences."""
        usual_regions = []
        for column in residues.region_NR.T:
            regions, counts = np.unique(column, return_counts=True)
            usual_regions.append(regions[counts.argmax()])
        usual_R = np.array(usual_regions, np.uint64)
        return cls(
            aligner,
            tokens=np.unique(residues.token_NL),
            consensus=usual_R,
            changed=np.unique(_changed(residues.region_NR, usual_R)),
        )

    def are_new(self, residues: Residues) -> Bools:
        """Return which of N sequences have what training lacks, (N,).

        That is a residue at a position, a set of changed regions, or nothing that can be aligned.
        """
        token_NL = residues.token_NL
        # variants have the residues of one of them but for a few
        is_seen_NL = np.repeat(self._are_seen(token_NL[:1]), len(token_NL), axis=0)
        is_other_NL = token_NL != token_NL[:1]
        is_seen_NL[is_other_NL] = self._are_seen(token_NL[is_other_NL])
        changed = _changed(residues.region_NR, self.consensus)
        is_known = is_seen_NL.all(axis=1) & np.isin(changed, self.changed)
        return np.asarray(~(is_known & token_NL.any(axis=1)))

    def _are_seen(self, tokens: Words) -> Bools:
        return np.asarray(is_among(tokens, self.tokens) | (tokens == 0))


def _changed(region_NR: Words, usual_R: Words) -> Ints:
    """Return the set of regions of each antibody that differ from the consensus, (N,)."""
    bits = 1 << np.arange(len(usual_R), dtype=np.int64)
    return np.asarray((region_NR != usual_R) @ bits)


def _of_antibodies(
    antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered]
) -> Residues:
    tokens = []
    regions = []
    for at, name in enumerate(CHAIN_ROLES):
        positions, x_NL = align([chains[at] for chains in antibodies], numbered[name])
        number_L = np.array([position_number(position) for position in positions], np.int64)
        inserted = []
        for position, number in zip(positions, number_L, strict=True):
            letters = position[len(str(number)) :]  # 111A and 111 are different places
            inserted.append(sum(map(ord, letters)))
        # chain, position and letters of an insertion in one number
        place_L = (at << 24) | (number_L << 12) | np.array(inserted, np.int64)
        token_NL = _digest(place_L, x_NL)
        tokens.append(token_NL)
        # a sum, in which gaps are 0: positions that only other sequences have change nothing
        region_L = np.searchsorted([end for _, end in IMGT_REGIONS[:-1]], number_L)
        with np.errstate(over="ignore"):  # sums of digests wrap around
            for region in range(REGIONS):
                regions.append(token_NL[:, region_L == region].sum(axis=1))
    region_NR = np.stack(regions, axis=1).astype(np.uint64)
    return Residues(np.concatenate(tokens, axis=1), region_NR)


def _aligned(texts: Sequence[str], reference: str, chain: int) -> Words:
    """Digest the residues of one chain, aligned to a reference by edits, (N, L)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    unique, of_text = np.unique(np.array(texts, object), return_inverse=True)
    codes = np.full((len(unique), length), GAP, np.uint8)
    is_as_long = lengths_of(unique) == length
    letters = np.frombuffer("".join(unique[is_as_long]).encode("ascii"), np.uint8)
    codes[is_as_long] = letters.reshape(-1, length)
    insertions: dict[tuple[int, str], list[int]] = {}
    for row in np.flatnonzero(~is_as_long).tolist():
        text = unique[row]
        for edit in Levenshtein.opcodes(reference, text):
            letters_here = text[edit.dest_start : edit.dest_end]
            if edit.tag == "insert":
                insertions.setdefault((edit.src_start, letters_here), []).append(row)
            elif letters_here:
                codes[row, edit.src_start : edit.src_end] = list(letters_here.encode("ascii"))
    place_L = (chain << 24) | np.arange(length, dtype=np.int64)
    # a deletion is a letter, too; unlike in antibodies, where numbering has gaps anyway
    token_NL = _digest(place_L, codes, gaps=True)
    if insertions:
        columns = np.zeros((len(unique), len(insertions)), np.uint64)
        for at, ((place, text), rows) in enumerate(insertions.items()):
            hashed = np.uint64(INSERTED + ((chain << 24) | place))
            for letter in text.encode("ascii"):
                hashed = mix(np.array([hashed ^ np.uint64(letter)], np.uint64))[0]
            columns[rows, at] = hashed
        token_NL = np.concatenate([token_NL, columns], axis=1)
    return token_NL[of_text]


def _digest(place_L: Ints, code_NL: NDArray[np.uint8], *, gaps: bool = False) -> Words:
    code_C1 = np.arange(256)[:, None]
    token_CL = mix((place_L << 8 | code_C1).astype(np.uint64))
    # letters have larger codes than a gap; 0 is beyond the ends of a chain
    is_none_C1 = (code_C1 < GAP) if gaps else (code_C1 <= GAP)
    token_CL[(is_none_C1 | (code_C1 == UNKNOWN))[:, 0]] = 0
    return token_CL[code_NL, np.arange(len(place_L))]


def align(chains: Sequence[str], numbered: Numbered) -> tuple[list[str], NDArray[np.uint8]]:
    """Align N chains: the L positions that occur, and ASCII codes, (N, L), 0 beyond the ends."""
    positions = dict.fromkeys(itertools.chain.from_iterable(numbered.layouts))
    columns = {position: column for column, position in enumerate(positions)}
    number_L = np.array([position_number(position) for position in columns], np.int16)
    x_ML = np.zeros((len(numbered.chains) + 1, len(columns)), np.uint8)  # the last has no domain
    for layout, rows, codes_RL in numbered.by_layout():
        numbers = [position_number(position) for position in layout]
        inside = (number_L >= min(numbers, default=0)) & (number_L <= max(numbers, default=0))
        line_RL = np.tile(inside * np.uint8(GAP), (len(rows), 1))
        line_RL[:, [columns[position] for position in layout]] = codes_RL
        x_ML[rows] = line_RL
    row_of = {text: row for row, text in enumerate(numbered.chains)}
    row_of[""] = len(numbered.chains)
    rows_of_chains = [row_of[text] for text in chains]
    x_NL = x_ML[rows_of_chains]
    # the others, which are numbered too, may have residues where these have gaps only
    occurs_L = np.asarray((x_NL > GAP).any(axis=0))
    return [*itertools.compress(columns, occurs_L.tolist())], x_NL[:, occurs_L]


def mix(x: Words) -> Words:
    """Hash 64-bit numbers; the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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

    def testable(self, *, held_out: bool) -> tuple[int, ...]:
        """Return the levels that folds can test which hold out sequences of this side, or pairs."""
        if not held_out:
            return (KNOWN, VARIANT, MUTATED) if self.is_library else (KNOWN, VARIANT)
        return (MUTATED,) if self.is_library else (VARIANT, NEW)

    def counted(self, level: int) -> Ints:
        """Return what counts as independent among tested pairs of a level that is new, (P,)."""
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

    def levels(self, train: Ints) -> Levels:
        """Tell what is new about each pair's sequence, given the training pairs, (P,)."""
        in_family = np.isin(self.near, self.near[train]) | np.isin(self.family, self.family[train])
        level = np.where(in_family, VARIANT, NEW).astype(np.int8)
        trained = distinct(self.sequence[train])
        if self.is_library:
            is_new_N = self.seen(trained).are_new(self.residues)
            level[in_family & is_new_N[self.sequence]] = MUTATED
        level[np.isin(self.sequence, trained)] = KNOWN
        return level

    def distances(self, train: Ints, rows: Ints) -> Ints:
        """Return how far the sequences of some pairs are from those of the training pairs, (R,).

        If these are too many comparisons, a sample is measured, and the others have its median.
        """
        trained = distinct(self.sequence[train])
        asked, of_row = np.unique(self.sequence[rows], return_inverse=True)
        new = np.flatnonzero(~np.isin(asked, trained))
        most = max(LEAST_SAMPLE, MOST_COMPARED // len(trained))
        sample = new
        if len(new) > most:
            sample = np.sort(np.random.default_rng(len(new)).permutation(new)[:most])
        found = self._distances.nearest(asked[sample], trained)
        distance = np.zeros(len(asked), np.int64)
        if len(sample) < len(new):
            distance[new] = np.median(found.distance)
        distance[sample] = np.maximum(found.distance, 0)
        return distance[of_row]

    @cached_property
    def _distances(self) -> Distances:
        return Distances(self.kind, self.chains)

    def variants(self, fold: int, folds: int, seed: Sequence[int]) -> Bools:
        """Hold out some sequences with relatives among the others, (P,): each in one fold at most.

        Where nearly every sequence has one pair, random pairs are new variants anyway; and where
        families are divided, folds of this side hold out variants.
        """
        divided = not self.is_library and bool((self.held_out != self.family).any())
        pairs_of = np.bincount(self.sequence, minlength=len(self.chains))
        in_family = np.zeros(len(self.chains), np.int64)
        in_family[self.sequence] = self.family
        used = np.flatnonzero(pairs_of)
        relatives = np.bincount(in_family[used])
        several = used[(pairs_of[used] > 1) & (relatives[in_family[used]] > 1)]
        if divided or pairs_of[several].sum() < LEAST_SHARE * len(self.sequence):
            return np.zeros(len(self.sequence), np.bool_)
        # 7: a stream that no other draw of these seeds uses
        order = np.random.default_rng([*seed, 7]).permutation(several)
        size = min(round(VARIANTS_SHARE * len(several)), len(several) // folds)
        chosen = order[fold * size : (fold + 1) * size]
        return np.isin(self.sequence, chosen)

    def neighbourhoods(self, seed: Sequence[int]) -> Bools:
        """Hold out the variants of a library that surround some of its own, (P,).

        What is left is further from these than from variants drawn at random.
        """
        used = distinct(self.sequence)
        size = min(MOST_NEIGHBOURS, round(NEIGHBOURS_SHARE * len(used)))
        held_out = np.zeros(len(used), np.bool_)
        if size < LEAST_NEIGHBOURS:
            return np.zeros(len(self.sequence), np.bool_)
        token_NL = self.residues.token_NL[used]
        # 8: a stream that no other draw of these seeds uses
        order = np.random.default_rng([*seed, 8]).permutation(len(used)).tolist()
        for centre in order:
            if held_out.mean() + NEIGHBOURS_SHARE > APART_SHARE:
                break
            if held_out[centre]:
                continue
            differing = (token_NL != token_NL[centre]).sum(axis=1)
            held_out[np.argsort(differing, kind="stable")[:size]] = True
        return np.isin(self.sequence, used[held_out])

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
        masks = list[Bools]()
        if x_NT[:, queue].any(axis=1).mean() < share:  # each variant has many of the residues
            # what most of them have at a position cannot be new
            usual = []
            for column in token_NL.T:
                present, occurring = np.unique(column[column > 0], return_counts=True)
                if len(present):
                    usual.append(present[occurring.argmax()])
            is_usual = np.isin(tokens[tokens != 0], np.array(usual, np.uint64))
            is_common = ~is_usual & (count_T <= COMMON_TOKEN * len(used))
            common = [t for t in order if is_common[t]]
            for at, token in enumerate(common[:number]):
                mask_N = x_NT[:, token]
                # every other fold two, so that sequences of both are further from training
                for beside in common[number:] if at % 2 else ():
                    both_N = mask_N | x_NT[:, beside]
                    if both_N.mean() <= COMMON_TOKENS:
                        mask_N = both_N
                        break
                masks.append(mask_N)
        else:
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

    def levels(self, train: Ints) -> tuple[Levels, Levels]:
        """Tell what is new about both sequences of each pair, given the training pairs."""
        return self.antibody.levels(train), self.antigen.levels(train)

    def distances(self, train: Ints, rows: Ints, levels: tuple[Levels, Levels]) -> Ints:
        """Return how far some pairs are from training, (R,), given what is new about all pairs."""
        total = np.zeros(len(rows), np.int64)
        for side, level in zip(self, levels, strict=True):
            related = level[rows] != NEW
            if related.any():
                total[related] += side.distances(train, rows[related])
        return total


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


Arrays: TypeAlias = Mapping[str, NDArray[Any]]
NEARLY_ALL = 0.95
"""Share of the training antibodies from which a chain is one that they have; the rest is odd."""
SEPARATOR = "|"
"""Stands between the chains of a stored sequence."""
END = "\n"
"""Stands after each stored sequence."""
COMPARED = 1 << 15
"""Sequences whose residues are compared with those of training at a time: some 100 MB."""


@dataclass(frozen=True)  # no slots: the cached property is kept in __dict__
class KnownSequences:
    """Hold the training sequences of one kind."""

    kind: Kind
    keys: NDArray[np.uint8]
    """Keys of the sequences, (T, 16)."""
    identity: float
    """Identity from which sequences are of one family."""
    chains: Sequence[Chains] | None = None
    """The T sequences; None if the predictor was shared without them."""
    residues: SeenResidues | None = None
    """Of a library; None if the training sequences are not one."""
    names: Sequence[str] | None = None
    """What the table calls each of them, or the row that has it first, (T,); None: not known."""
    loops: NDArray[np.int32] | None = None
    """First and last residue of CDR H3 in each heavy chain, (T, 2), equal if there is none."""

    @classmethod
    def of(cls, side: Side, names: Mapping[int, str], identity: float) -> KnownSequences:
        """Keep some of a table's sequences, given their names by index."""
        used = np.array([*names], np.int64)
        chains = [side.chains[number] for number in used.tolist()]
        residues = side.seen(used) if side.is_library else None
        keys = keys_array(side.kind, chains)
        loops = None
        if side.kind == "antibody":
            of_chain = cdr3_of_chains(side.numbered["heavy"])
            loops = np.zeros((len(chains), 2), np.int32)
            for row, (heavy, _) in enumerate(chains):
                loop = of_chain.get(heavy, "")
                start = heavy.find(loop)  # 0 without a loop, which ends there, too
                loops[row] = start, start + len(loop)
        return cls(
            side.kind,
            keys,
            identity,
            chains,
            residues,
            names=[*names.values()],
            loops=loops,
        )

    def without_sequences(self) -> KnownSequences:
        """Keep nothing that tells what the sequences are."""
        return replace(self, chains=None, residues=None, names=None, loops=None)

    def compare(self, chains: Sequence[Chains]) -> NewSequences:
        """Tell what is new about N sequences, of which `COMPARED` at a time take memory."""
        trained = {key.tobytes(): row for row, key in enumerate(self.keys)}
        parts = []
        what = f"comparing {self.kind} sequences"
        with bar(total=len(chains), desc=what, unit_scale=True, delay=1) as drawn:
            for at in range(0, max(1, len(chains)), COMPARED):
                compared = chains[at : at + COMPARED]
                parts.append(self._compare(compared, trained))
                drawn.update(len(compared))
        return NewSequences(*map(np.concatenate, zip(*parts, strict=True)))

    def _compare(self, chains: Sequence[Chains], trained: Mapping[bytes, int]) -> NewSequences:
        keys = [key.tobytes() for key in keys_array(self.kind, chains)]
        nearest = np.array([trained.get(key, NONE) for key in keys], np.int64)
        level = np.where(nearest == NONE, NEW, KNOWN).astype(np.int8)
        distance = np.zeros(len(chains), np.int64)
        rows = np.flatnonzero(level == NEW)
        if self.chains is None or not len(rows):
            return NewSequences(level, distance, nearest)
        asked = [chains[row] for row in rows.tolist()]
        distances = Distances(self.kind, asked, self.chains)
        every = np.arange(len(self.chains))
        found = distances.nearest_as_long(np.arange(len(asked)), every)
        of_asked = np.flatnonzero(
            are_related(self.kind, asked, self.chains, self.identity, self._loops, found)
        )
        rows = rows[of_asked]
        related = [asked[row] for row in of_asked.tolist()]
        level[rows] = VARIANT
        if self.residues is not None and len(rows):
            numbered = None
            if self.kind == "antibody":  # the next command reads the numbering from the cache
                numbered = number_antibodies(related, cache_dir() / "numbering")
            residues = self.residues.aligner.residues(related, numbered)
            level[rows[self.residues.are_new(residues)]] = MUTATED
        as_long = Nearest(found.distance[of_asked], found.row[of_asked])
        found = distances.nearest_of_other_lengths(of_asked, every, as_long)
        distance[rows] = np.maximum(found.distance, 0)
        nearest[rows] = found.row
        return NewSequences(level, distance, nearest)

    @cached_property
    def _loops(self) -> dict[str, str]:
        """Return the CDR H3 of each training heavy chain that has one."""
        loops: dict[str, str] = {}
        if self.chains is None or self.loops is None:
            return loops
        for (heavy, _), (start, end) in zip(self.chains, self.loops.tolist(), strict=True):
            if end > start:
                loops[heavy] = heavy[start:end]
        return loops

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` restores, by name."""
        name = f"seen.{self.kind}"
        arrays: dict[str, NDArray[Any]] = {f"{name}.keys": self.keys}
        arrays[f"{name}.identity"] = np.array([self.identity])
        if self.chains is not None:
            lines = [SEPARATOR.join(chains) + END for chains in self.chains]
            text = "".join(lines)
            arrays[f"{name}.sequences"] = np.frombuffer(text.encode("ascii"), np.uint8)
        if self.names is not None:
            text = "".join(f"{line}{END}" for line in self.names)
            arrays[f"{name}.names"] = np.frombuffer(text.encode("utf-8"), np.uint8)
        if self.loops is not None:
            arrays[f"{name}.loops"] = self.loops
        if self.residues is not None:
            reference = SEPARATOR.join(self.residues.aligner.reference).encode("ascii")
            # a space stands for the reference that antibodies lack
            arrays[f"{name}.reference"] = np.frombuffer(reference or b" ", np.uint8)
            arrays[f"{name}.tokens"] = self.residues.tokens
            arrays[f"{name}.consensus"] = self.residues.consensus
            arrays[f"{name}.changed"] = self.residues.changed
        return arrays

    @classmethod
    def load(cls, kind: Kind, arrays: Arrays) -> KnownSequences:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""
        name = f"seen.{kind}"
        keys = checked_array(arrays, f"{name}.keys", (None, 16), np.uint8)
        (identity,) = checked_array(arrays, f"{name}.identity", (1,), np.float64).tolist()
        if not 0 < identity <= 1:
            msg = f"{name}.identity is {identity}"
            raise ValueError(msg)
        chains = None
        names = None
        loops = None
        if f"{name}.sequences" in arrays:
            text = checked_array(arrays, f"{name}.sequences", (None,), np.uint8)
            chains = _parsed(kind, text.tobytes().decode("ascii"))
            if not np.array_equal(keys_array(kind, chains), keys):
                msg = f"{name}.sequences and {name}.keys are of other sequences"
                raise ValueError(msg)
            names = _load_names(kind, arrays, len(chains))
            if kind == "antibody":
                loops = checked_array(arrays, f"{name}.loops", (len(chains), 2), np.int32)
        residues = _load_residues(kind, arrays) if f"{name}.tokens" in arrays else None
        return cls(kind, keys, identity, chains, residues, names, loops)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedChains:
    """Shares of the distinct training antibodies that have a heavy and a light chain."""

    heavy: float
    light: float

    @classmethod
    def of(cls, antibodies: Sequence[Chains]) -> TrainedChains:
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


def _load_residues(kind: Kind, arrays: Arrays) -> SeenResidues:
    """Restore the residues of a library; ValueError or LookupError if they do not fit."""
    name = f"seen.{kind}"
    text = checked_array(arrays, f"{name}.reference", (None,), np.uint8)
    reference = text.tobytes().decode("ascii").strip()
    reference_chains = tuple(reference.split(SEPARATOR)) if reference else ()
    if set(reference) - {*RESIDUES, SEPARATOR} or (kind == "antigen") != bool(reference):
        msg = f"{name}.reference is not a sequence"
        raise ValueError(msg)
    residues = SeenResidues(
        aligner=Aligner(kind, reference_chains),
        tokens=checked_array(arrays, f"{name}.tokens", (None,), np.uint64),
        consensus=checked_array(arrays, f"{name}.consensus", (None,), np.uint64),
        changed=checked_array(arrays, f"{name}.changed", (None,), np.int64),
    )
    if (residues.tokens[1:] <= residues.tokens[:-1]).any():
        msg = f"{name}.tokens are not in ascending order"
        raise ValueError(msg)
    expected = 0 if kind == "antigen" else len(CHAIN_ROLES) * REGIONS
    if len(residues.consensus) != expected:
        msg = f"{name}.consensus has {len(residues.consensus)} regions"
        raise ValueError(msg)
    return residues


def _load_names(kind: Kind, arrays: Arrays, number: int) -> list[str]:
    """Restore the names of sequences; ValueError or LookupError if there are not so many."""
    text = checked_array(arrays, f"seen.{kind}.names", (None,), np.uint8)
    names = text.tobytes().decode("utf-8").split(END)
    is_long = any(len(name) > LONGEST_QUOTE or not name.isprintable() for name in names)
    if len(names) != number + 1 or names[-1] or is_long:
        msg = f"seen.{kind}.names are not {number} names of sequences"
        raise ValueError(msg)
    return names[:-1]


def _parsed(kind: Kind, text: str) -> list[Chains]:
    if set(text) - {*RESIDUES, SEPARATOR, END} or not text.endswith(END):
        msg = f"seen.{kind}.sequences holds other letters than residues"
        raise ValueError(msg)
    sequences = [tuple(line.split(SEPARATOR)) for line in text[:-1].split(END)]
    for chains in sequences:
        is_whole = len(chains) == len(CHAIN_ROLES) if kind == "antibody" else all(chains)
        if not is_whole:
            msg = f"seen.{kind}.sequences has chains missing"
            raise ValueError(msg)
    return sequences
