"""Which regimes a table allows to measure, and the folds that measure them.

Folds hold out pairs, sequences of one side, or of both; a held-out pair counts in the regime that
it is in, given the pairs that its fold trains on.

P pairs of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Ints, distinct
from abag.embed.sequences.chains import KINDS
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.held_out import HeldOut, held_out_parts, with_validation
from abag.head.regimes.near_duplicates import number_by_appearance
from abag.head.regimes.regimes import KNOWN, OF_LEVELS, REGIMES, VARIANT, NewSequences, Regime
from abag.head.regimes.sides import (
    LEAST_GROUPS,
    LEAST_ROWS,
    Side,
    Sides,
    effective_groups,
    sides_of,
)
from abag.head.regimes.splits import (
    TEST,
    TRAIN,
    UNUSED,
    Split,
    is_tested,
    is_trainable,
    numbered,
)

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind

FOLDS = 5
"""Folds if their number is not given."""
LEAST_PAIRS = 20
"""Distinct pairs from which a table is never refused."""
SINGLE_PAIRS = (
    "too few sequences are independent to measure more than pairs like those of the table, and "
    "each pair counts as one measurement: the intervals are too narrow"
)
ENOUGH_GROUPS = 50.0
"""Effective test groups from which one fold is enough, in tables of `LARGE_TABLE` pairs."""
LARGE_TABLE = 5_000
"""Pairs from which one fold may be enough."""


@dataclass(frozen=True, slots=True)
class MeasuredRegime:
    """Hold the folds that measure a regime, or the reason that there are none."""

    regime: Regime
    splits: tuple[Split, ...] = ()
    groups: tuple[Ints, ...] = ()
    """Each (P,): pairs of one group are one measurement. With two sequences new, there are two."""
    why_not: str = ""
    """Why the regime has no folds; empty if it has."""
    note: str = ""
    """What limits the measurement; added to the sentence of the regime."""


def _informative(groups: Sequence[Ints], rows: Ints) -> float:
    return min(effective_groups(group[rows]) for group in groups)


def is_enough(split: Split, groups: Sequence[Ints]) -> bool:
    """Return whether one fold measures a regime well enough: other folds only take time."""
    is_large = len(split.part) >= LARGE_TABLE
    return is_large and _informative(groups, split.rows(TEST)) >= ENOUGH_GROUPS


def with_counts(split: Split, antibody: NewSequences, antigen: NewSequences) -> Split:
    """Add to a split how many residues of each pair are unseen, and how many are mutations."""
    return replace(
        split,
        unseen=antibody.unseen + antigen.unseen,
        mutations=antibody.mutations + antigen.mutations,
    )


def of_all_held_out(splits: Sequence[Split], sides: Sides) -> tuple[Regime, list[Split]]:
    """Return the regime that folds of single pairs measure, of all held-out pairs, and the folds.

    It has the level of most of these pairs: of a library in which each variant has mutations of its
    own they are variants, as `recognition` calls such pairs of another table. Unseen residues are
    counted in the folds.
    """
    if not sides.has_library:
        return OF_LEVELS[KNOWN, KNOWN], [*splits]
    n_tested = 0
    n_variants = np.zeros(len(KINDS), np.int64)
    counted = []
    for split in splits:
        new = sides.compare(split.rows(TRAIN))
        tested = split.rows(TEST)
        n_tested += len(tested)
        n_variants += [np.count_nonzero(of_side.level[tested] == VARIANT) for of_side in new]
        counted.append(with_counts(split, *new))
    antibody, antigen = np.where(2 * n_variants > n_tested, VARIANT, KNOWN).tolist()
    return OF_LEVELS[antibody, antigen], counted


class RegimesOfTable:
    """Find which regimes a table allows to measure, and their folds."""

    def __init__(self, groups: PairGroups, sides: Sides | None = None) -> None:
        options = groups.options
        self.groups = groups
        self.seed = options.effective_split_seed
        self.folds = options.folds or FOLDS
        self.repeats = options.repeats
        self.sides = sides or sides_of(groups)

    @property
    def of_mutations(self) -> str:
        """Name the regime of new mutations: of antibodies if they are a library, or of antigens."""
        return "new_mutations" if self.sides.antibody.is_library else "antigen_variant"

    def measured(self) -> list[MeasuredRegime]:
        """Return every regime with its folds, or with the reason that it cannot be measured.

        Four sets of folds hold out pairs, sequences of one side, or of both; each tests the
        regimes of what it holds out, so that a table takes as many fits whatever its regimes.
        """
        by_name = {}
        sets: tuple[tuple[Kind, ...], ...] = ((), ("antibody",), ("antigen",), KINDS)
        for held in sets:
            for measured in self._of_set(held):
                by_name[measured.regime.name] = measured
        if not any(measured.splits for measured in by_name.values()):
            by_pairs = self._by_single_pairs(by_name["known"])
            by_name[by_pairs.regime.name] = by_pairs
        return [by_name[name] for name in REGIMES if name in by_name]

    def measure(self, regime: Regime) -> MeasuredRegime:
        """Return one regime with its folds, or with the reason that there are none."""
        by_name = {measured.regime.name: measured for measured in self._of_set(regime.new)}
        return by_name[regime.name]

    def _of_set(self, held: tuple[Kind, ...]) -> list[MeasuredRegime]:
        """Measure the regimes of the folds that hold out sequences of some sides."""
        sides = [self.sides.of_kind(kind) for kind in held]
        cells = self._cells(held)
        reason = self._why_no_folds(sides)
        if reason:
            expected = [cell for cell in cells if self._is_expected(cell)]
            return [MeasuredRegime(cell, why_not=reason) for cell in expected]
        splits_of: dict[str, list[Split]] = {cell.name: [] for cell in cells}
        groups = {cell.name: self._counted(cell) for cell in cells}
        whole = _unit(sides[-1]) if sides else groups["known"][0]  # in validation parts
        for number, held_out in enumerate(self._tests(sides)):
            for split in self._splits_of_fold(number, held_out, groups, whole):
                splits_of[split.name].append(split)
            latest = [splits[-1] for splits in splits_of.values() if splits]
            if self.groups.options.folds or not latest:
                continue
            largest = max(latest, key=lambda split: len(split.rows(TEST)))
            if is_enough(largest, groups[largest.name]):  # the other folds only take time
                splits_of = {name: splits[-1:] for name, splits in splits_of.items()}
                break
        results = []
        for cell in cells:
            measured = self._result(cell, splits_of[cell.name], groups[cell.name])
            if measured.splits or self._is_expected(cell):
                results.append(measured)
        return results

    def _splits_of_fold(
        self, number: int, held_out: HeldOut, groups: Mapping[str, list[Ints]], whole: Ints
    ) -> Iterator[Split]:
        """Yield the split of each regime that a fold can test, given the groups of each."""
        part = held_out.parts(tested=UNUSED)
        train = np.flatnonzero(part == TRAIN)
        if not len(train):
            return
        part = with_validation(part, whole, [self.seed, number])
        antibody, antigen = self.sides.compare(train)
        for name, groups_of_regime in groups.items():
            has_antibody_level = antibody.level == REGIMES[name].antibody
            has_antigen_level = antigen.level == REGIMES[name].antigen
            inside = held_out.test & has_antibody_level & has_antigen_level
            tested = np.where(inside, np.int8(TEST), part)
            if 0 < inside.sum() < len(train) and is_trainable(tested):
                split = Split(name=name, part=tested, group=groups_of_regime[-1], fold=number)
                yield with_counts(split, antibody, antigen)

    def _cells(self, held: tuple[Kind, ...]) -> list[Regime]:
        """Return the regimes that folds can test which hold out sequences of some sides."""
        antibody_levels = self.sides.antibody.testable if "antibody" in held else (KNOWN,)
        antigen_levels = self.sides.antigen.testable if "antigen" in held else (KNOWN,)
        return [OF_LEVELS[levels] for levels in product(antibody_levels, antigen_levels)]

    def _why_no_folds(self, sides: Sequence[Side]) -> str:
        """Say why no folds can hold out sequences of these sides; empty if they can."""
        n_pairs = len(distinct(self.groups.pair))
        if n_pairs < LEAST_GROUPS:
            return _too_few(n_pairs, "pair")
        for side in sides:
            unit = _unit(side)
            informative = effective_groups(unit)
            if informative < LEAST_GROUPS:
                name = f"{side.kind} {'variant' if side.is_library else 'cluster'}"
                return _too_few(len(distinct(unit)), name, informative)
        return ""

    def _is_expected(self, regime: Regime) -> bool:
        """Return whether users are told that a regime is not measured: few tables have strains."""
        for side, level in zip(self.sides, regime.levels, strict=True):
            if level == VARIANT and not side.is_library:
                return False
        return True

    def _result(
        self, regime: Regime, splits: Sequence[Split], groups: Sequence[Ints]
    ) -> MeasuredRegime:
        test_rows = [split.rows(TEST) for split in splits]
        tested = np.concatenate([np.zeros(0, np.int64), *test_rows])
        tested = tested[self.groups.pairs.censored[tested] == 0]  # a bound has no error
        if len(tested) < LEAST_ROWS:
            reason = _too_few(len(tested), "held-out pair", expected=LEAST_ROWS)
            return MeasuredRegime(regime, why_not=reason)
        informative = _informative(groups, tested)
        if informative < LEAST_GROUPS:
            reason = _too_few(len(tested), "held-out pair", informative)
            return MeasuredRegime(regime, why_not=reason)
        return MeasuredRegime(regime, tuple(numbered(splits)), tuple(groups))

    def _counted(self, regime: Regime) -> list[Ints]:
        """Return what counts as one measurement in a regime, (P,) each."""
        if not regime.new:
            antibody = self.sides.antibody.units
            antigen = self.sides.antigen.units
            return [number_by_appearance(antibody * (antigen.max() + 1) + antigen)]
        groups = []
        for side, level in zip(self.sides, regime.levels, strict=True):
            if level != KNOWN:
                groups.append(side.counted(level))
        return groups

    def _by_single_pairs(self, known: MeasuredRegime) -> MeasuredRegime:
        """Measure known pairs of a table in which too little is independent, pair by pair."""
        pairs = self.groups.pair
        if len(distinct(pairs)) < LEAST_PAIRS:
            return known
        splits = list[Split]()
        for number, held_out in enumerate(self._tests(())):
            part = with_validation(held_out.parts(), pairs, [self.seed, number])
            if is_trainable(part):
                splits.append(Split(name="known", part=part, group=pairs, fold=len(splits)))
        if not np.any(is_tested(splits) & (self.groups.pairs.censored == 0)):
            return known
        regime, counted = of_all_held_out(splits, self.sides)
        return MeasuredRegime(regime, tuple(counted), (pairs,), note=SINGLE_PAIRS)

    def _tests(self, sides: Sequence[Side]) -> Iterator[HeldOut]:
        """Yield what each fold holds out: `test` are candidates for its test part."""
        if not any(side.is_library for side in sides):
            held = [side.held_out for side in sides] or [self.groups.pair]
            # the side with more to hold out first, so that exchanged sides give the same folds
            held.sort(key=effective_groups, reverse=True)
            yield from held_out_parts(held, self.folds, self.repeats, self.seed)
            return
        for repeat in range(self.repeats):
            masks = []
            for number, side in enumerate(sides):
                seed = [self.seed, repeat, number] if number else [self.seed, repeat]
                masks.append(side.folds(self.folds, seed))
            # not strict: a library may have residues for fewer folds
            yield from map(HeldOut.of, zip(*masks, strict=False))


def _unit(side: Side) -> Ints:
    """Return what folds of a side hold out as a whole, (P,)."""
    return side.sequence if side.is_library else side.held_out


def _too_few(n: int, name: str, informative: float = 0.0, expected: float = LEAST_GROUPS) -> str:
    """Say why a regime has no folds: too few pairs or clusters, or too unequal ones."""
    many = f"{n or 'no'} {name}{'' if n == 1 else 's'}"
    if name == "held-out pair":
        many += " of this kind"
    if informative and n >= expected:
        many += f", as informative as {informative:.1f} groups of equal size"
    return f"not measured: {many}; expected at least {expected:.0f}"
